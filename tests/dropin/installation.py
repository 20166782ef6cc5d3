"""The packages, installed as their users install them: next to our wheel, and next to the released peer."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tests.chaos.served import PEER_PYTHON
from tests.warm import WarmProcess, WarmPython

__all__ = [
    "DRIVERS",
    "HERE",
    "MORE",
    "NAMES",
    "PACKAGES",
    "PEER_PYTHON",
    "Installation",
    "checks_of",
    "install_ours",
    "install_peer",
]

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
PACKAGES = HERE / "packages"
DRIVERS = HERE / "drivers"
# Those with a driver of many checks, and those whose episodes alone are compared.
NAMES = ("abacus_env", "parcel_env", "harbor_env")
MORE = ("duel_env", "logbook_env", "snippet_env")
# All dependencies come out of pip's cache or over the network.
INSTALL_S = 400.0
DRIVE_S = 180.0
# What only programs of an event loop that was left in disorder print.
DISORDER = ("was never awaited", "was never retrieved", "Event loop is closed", "Task was destroyed")


@dataclass(frozen=True)
class Installation:
    """A Python that can import the packages.

    Attributes:
        python: Its interpreter.
        folder: A copy of the project folders, for those who work with folders.
        environ: What its processes have in their environment on top.
        system: `ours` or `peer`.
        warm: A process of the interpreter to fork, in place of one that starts: importing the peer takes seconds.
    """

    python: Path
    folder: Path
    system: str
    environ: Mapping[str, str] = field(default_factory=dict)
    warm: WarmPython | None = None

    @property
    def full_environ(self) -> dict[str, str]:
        """The environment of its processes: nobody's settings, nobody's paths."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OPENENV", "PYTHON")) and name not in {"VIRTUAL_ENV", "MAX_CONCURRENT_ENVS"}
        }
        return {**kept, "PYTHONUNBUFFERED": "1", **self.environ}

    def start(
        self,
        *arguments: str | Path,
        cwd: Path,
        said: BinaryIO,
        errors: BinaryIO,
        environ: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes] | WarmProcess:
        """Starts its Python, as the leader of a session of its own.

        Args:
            arguments: Those of the interpreter: a script, or `-m uvicorn`, and what follows.
            cwd: Its working directory.
            said: Its standard output.
            errors: Its standard error.
            environ: All its variables; `full_environ` by default.
        """
        environ = self.full_environ if environ is None else environ
        words = [str(word) for word in arguments]
        if self.warm is None:
            return subprocess.Popen(
                [str(self.python), *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=errors,
                cwd=cwd,
                env=environ,
                start_new_session=True,
            )
        if words[0] == "-m":
            words = ["uvicorn:main", *words[2:]]
        descriptors = {1: said.fileno(), 2: errors.fileno()}
        return self.warm.run(*words, descriptors=descriptors, environment=environ, folder=cwd)

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Runs its Python until it ends."""
        cwd = cwd or self.folder.parent  # where nothing is that could be imported
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
            process = self.start(*arguments, cwd=cwd, said=said, errors=errors)
            try:
                process.wait(DRIVE_S)
            finally:
                process.kill()
                code = process.wait()
            printed = []
            for each in (said, errors):
                each.seek(0)
                printed.append(each.read().decode())
        return subprocess.CompletedProcess(arguments, code, *printed)

    def drive(self, driver: Path, url: str, *options: str) -> dict[str, str | None]:
        """Runs the checks of a driver against a server.

        Returns:
            For each check None, or the traceback of its failure.
        """
        ended = self.run(driver, url, *options)
        try:
            outcome: dict[str, str | None] = json.loads(ended.stdout.rpartition("\n")[2])
        except ValueError:
            raise AssertionError(f"{driver.name} ended with {ended.returncode}: {ended.stderr[-3000:]}") from None
        if self.system == "ours":
            outcome["leaves no disorder"] = next((ended.stderr for sign in DISORDER if sign in ended.stderr), None)
        return outcome


def checks_of(driver: Path, ours: bool = True) -> list[str]:
    """Names of a driver's checks; it need not be importable here."""
    pattern = r"^@check(?:_ours)?\n(?:async )?def (\w+)" if ours else r"^@check\n(?:async )?def (\w+)"
    return re.findall(pattern, driver.read_text(), re.MULTILINE)


@dataclass(frozen=True)
class Wheels:
    """What pip made of our project and of the packages' folders.

    Attributes:
        folder: The copy of the project folders: building writes into them.
        ours: Our distribution.
        packages: Those of `PACKAGES`.
    """

    folder: Path
    ours: Path
    packages: list[Path]


def build(folder: Path) -> Wheels:
    """Builds all wheels, the packages' in isolation, as pip does it for their users."""
    ignored = shutil.ignore_patterns("__pycache__")
    projects = Path(shutil.copytree(PACKAGES, folder / "projects", ignore=ignored))
    for name, options, sources in (
        ("ours", ["--no-build-isolation"], [PROJECT]),
        ("packages", [], [projects / name for name in NAMES + MORE]),
    ):
        words = ["wheel", "--no-deps", *options, "--wheel-dir", str(folder / name), *map(str, sources)]
        pip(Path(sys.executable), *words)
    (ours,) = (folder / "ours").glob("openenv-*.whl")
    packages = sorted((folder / "packages").glob("*.whl"))
    assert len(packages) == len(NAMES + MORE)
    return Wheels(projects, ours, packages)


def install_ours(folder: Path, wheels: Wheels) -> Installation:
    """Makes a virtual environment with our wheel, the packages and all that they need, by pip alone."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True, timeout=INSTALL_S
    )
    python = folder / "venv/bin/python"
    pip(python, "install", "--no-compile", str(wheels.ours), *map(str, wheels.packages))
    ours = Installation(python, wheels.folder, "ours")
    # Four workers that import what nobody has compiled would each compile all of it.
    imported = ours.run("-c", "import openenv.cli.serve, " + ", ".join(f"{name}.server.app" for name in NAMES))
    assert imported.returncode == 0, imported.stderr
    return ours


def install_peer(folder: Path, wheels: Wheels) -> Installation:
    """Puts the packages beside the released peer, whose virtual environment stays as it is."""
    target = folder / "packages"
    pip(PEER_PYTHON, "install", "--no-deps", "--target", str(target), *map(str, wheels.packages))
    return Installation(PEER_PYTHON, wheels.folder, "peer", {"PYTHONPATH": str(target)})


def pip(python: Path, *arguments: str) -> None:
    """Runs this environment's pip, which is quicker than the one that a new environment comes with."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
