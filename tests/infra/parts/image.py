"""Images for tests, made without a registry: one with nothing in it, and those that the repo's Dockerfiles make."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import openenv

__all__ = ["CHECKOUT", "OUT", "QUICK", "Quick", "base_of", "built", "own_wheel", "quick", "wheels", "wheels_beside"]

CHECKOUT = Path(__file__).parents[3]
OUT = CHECKOUT / "out" / "infra"
"""Where what takes long to make stays from one run to the next."""
_RELEASE, _PYTHON = "bookworm", "3.11"
_MADE_S = 600


# The quick one.


def _places() -> list[str]:
    source = str(Path(openenv.__file__).parents[1])
    places = ["/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix, source]
    return [place for place in dict.fromkeys(places) if Path(place).exists()]


@dataclass(frozen=True, slots=True)
class Quick:
    """An image with nothing in it, which is given this machine's own Python and checkout: no build, no download.

    Attributes:
        image: Its name.
        serve: The command that serves the echo environment on port 8000.
        variables: Environment variables without which nothing runs there.
        volumes: What is mounted, in the words of the SDK for containers.
        mounts: The same, in the words of the SDK for services.
    """

    image: str = "openenv-test-empty:1"
    places: list[str] = field(default_factory=_places)

    def serving(self, target: str, *more: str) -> list[str]:
        """The command that serves something on port 8000."""
        return [sys.executable, "-m", "openenv", "serve", target, "--host", "0.0.0.0", "--port", "8000", *more]

    def running(self, code: str) -> list[str]:
        """The command that runs a piece of Python."""
        return [sys.executable, "-c", code]

    @property
    def serve(self) -> list[str]:
        return self.serving("echo")

    @property
    def variables(self) -> dict[str, str]:
        source = str(Path(openenv.__file__).parents[1])
        return {"PYTHONPATH": os.pathsep.join([source, str(CHECKOUT)]), "PYTHONDONTWRITEBYTECODE": "1"}

    @property
    def volumes(self) -> dict[str, dict[str, str]]:
        return {place: {"bind": place, "mode": "ro"} for place in [*self.places, f"{CHECKOUT}/tests"]}

    @property
    def mounts(self) -> list[str]:
        return [f"{place}:{place}:ro" for place in [*self.places, f"{CHECKOUT}/tests"]]

    @property
    def options(self) -> dict[str, Any]:
        """What `LocalDockerProvider` is told for it, besides the image, the command and the variables."""
        return {"volumes": self.volumes, "working_dir": "/"}


QUICK = Quick()


def quick(engine: Any) -> Quick:
    """Puts the image with nothing in it into an engine (a client of the SDK)."""
    tree = io.BytesIO()
    with tarfile.open(fileobj=tree, mode="w") as tar:
        for name in ("tmp", "etc", "proc", "dev", "sys"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o777
            tar.addfile(entry)
    repository, _, tag = QUICK.image.rpartition(":")
    engine.api.import_image_from_data(tree.getvalue(), repository=repository, tag=tag)
    return QUICK


# The real ones.


def built(engine: Any, project: str = "benchmark") -> str:
    """Builds the image of a bundled environment by its Dockerfile, and returns its name.

    Nothing is downloaded during the build: its base is a Debian tree made here, which carries the name that the
    Dockerfile asks for, and its packages are wheels in the build context.
    """
    base_of(engine, project)
    name = f"openenv-test-{project}:1"
    with tempfile.TemporaryDirectory(prefix="oe-build-") as folder:
        context = Path(folder) / project
        shutil.copytree(
            CHECKOUT / "src" / "openenv" / "envs" / project, context, ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copytree(wheels(), context / "wheels")
        own_wheel(context / "wheels")
        engine.images.build(
            path=str(context),
            dockerfile="server/Dockerfile",
            tag=name,
            buildargs={"PIP_NO_INDEX": "1"},
            network_mode="none",
            rm=True,
            forcerm=True,
        )
    return name


def base_of(engine: Any, project: str = "benchmark") -> str:
    """Puts the image that a Dockerfile begins with into an engine, if it is not there, and returns its name."""
    dockerfile = CHECKOUT / "src" / "openenv" / "envs" / project / "server" / "Dockerfile"
    lines = dockerfile.read_text(encoding="utf-8").splitlines()
    name = [line.split()[1] for line in lines if line.startswith("FROM ")][-1]
    if not engine.images.list(name=name):
        repository, _, tag = name.rpartition(":")
        with _base().open("rb") as tree:
            engine.api.import_image_from_data(tree, repository=repository, tag=tag)
    return name


def _base() -> Path:
    """A Debian tree with Python, as a tar file."""
    if shutil.which("debootstrap") is None:
        pytest.skip("a base image is made by debootstrap: apt-get install debootstrap")
    kept = OUT / f"base-{_RELEASE}-bubblewrap.tar"
    with _one_maker("base"):
        if not kept.exists():
            with tempfile.TemporaryDirectory(prefix="oe-base-") as folder:
                # bubblewrap: what a Dockerfile would get from Debian, which builds here cannot ask.
                packages = "--include=python3,python3-venv,ca-certificates,bubblewrap"
                outcome = _run("debootstrap", "--variant=minbase", packages, _RELEASE, f"{folder}/tree", check=False)
                if outcome.returncode:
                    pytest.skip(f"debootstrap cannot make a base image here: {outcome.stdout[-500:]}")
                shutil.rmtree(f"{folder}/tree/var/cache/apt", ignore_errors=True)
                _run("tar", "-C", f"{folder}/tree", "--exclude=./dev/*", "-cf", f"{folder}/base.tar", ".")
                shutil.move(f"{folder}/base.tar", f"{kept}.new")
                Path(f"{kept}.new").rename(kept)
    return kept


def wheels(*extras: str) -> Path:
    """The packages that openenv needs, for the Python of the base; with those of some of its extras."""
    facts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*facts["dependencies"], *(name for extra in extras for name in facts["optional-dependencies"][extra])]
    names = sorted({name.partition(";")[0].strip() for name in needed})  # all that such a base may need
    return _kept(names, *_pip("download"), "--only-binary=:all:", "--python-version", _PYTHON, "--dest")


def wheels_beside(project: Path) -> Path:
    """The packages that a project needs beside openenv. Of some there is no wheel: this machine's Python makes it."""
    facts = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = sorted(name for name in facts["dependencies"] if not name.startswith("openenv"))
    if names and f"{sys.version_info.major}.{sys.version_info.minor}" != _PYTHON:
        pytest.skip(f"packages without a wheel are made for Python {_PYTHON} by Python {_PYTHON}")
    return _kept(names, *_pip("wheel"), "--wheel-dir")


def _kept(names: list[str], *command: str) -> Path:
    """What a command puts into the folder that it is given, followed by names; from the last run, if it is there."""
    kept = OUT / f"wheels-{_PYTHON}-{hashlib.sha256(' '.join(names).encode()).hexdigest()[:12]}"
    with _one_maker("wheels"):
        if not kept.exists():
            with tempfile.TemporaryDirectory(prefix="oe-wheels-") as folder:
                Path(folder, "wheels").mkdir()
                if names:
                    _run(*command, f"{folder}/wheels", *names)
                shutil.copytree(f"{folder}/wheels", f"{kept}.new", dirs_exist_ok=True)
                Path(f"{kept}.new").rename(kept)
    return kept


def own_wheel(folder: Path) -> Path:
    """Makes a wheel of this checkout in a folder."""
    _run(*_pip("wheel"), "--no-deps", "--no-build-isolation", "--wheel-dir", folder, CHECKOUT)
    return next(folder.glob("openenv-*.whl"))


@contextlib.contextmanager
def _one_maker(what: str) -> Iterator[None]:
    """Several test processes make it once."""
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / f".{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pip(verb: str) -> list[str]:
    return [sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check"]


def _run(*command: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    outcome = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=_MADE_S
    )
    assert not check or outcome.returncode == 0, f"{' '.join(words[:6])} failed:\n{outcome.stdout[-2000:]}"
    return outcome
