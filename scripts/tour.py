"""Run the path of a new user, from the wheel to a trained policy, and print the time of each part.

    .venv-trainers/bin/python scripts/tour.py

1. pip builds the wheel of this checkout, and installs it with the extra gymnasium into a new virtual environment.
2. The blocks of README.md run there, in their order. Where README.md installs openenv, pip gets this wheel.
3. `openenv init` writes a project, `openenv serve` serves its class, and its client plays an episode.
4. examples/ppo_cartpole.py learns CartPole-v1 on a server, to a mean return of 450.

The whole path may take ten minutes. Torch and Stable-Baselines3 come from the Python that runs this script, so their
download does not count.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.docs.page import Page  # noqa: E402
from tests.docs.playing import play_page  # noqa: E402

LIMIT_S = 600.0
START_S = 60.0
EPISODE = """
import sys

from my_env import MyAction, MyEnv

with MyEnv(base_url=sys.argv[1]) as env:
    env.reset(seed=1)
    results = [env.step(MyAction(guess=number)) for number in (50, 25)]
    print([(result.observation, result.reward) for result in results])
"""


def main() -> None:
    """Runs the whole path in a temporary folder."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = folder / "venv" / "bin" / "python"
        with part("build the wheel"):
            pip = [sys.executable, "-m", "pip", "-qq", "wheel", "--no-deps", "--no-build-isolation"]
            run(*pip, "--wheel-dir", name, ROOT)
            (wheel,) = folder.glob("openenv-*.whl")
        with part("install it"):
            run(sys.executable, "-m", "venv", folder / "venv")
            pins = ROOT / "requirements-trainers.txt"
            run(python, "-m", "pip", "-qq", "install", "--constraint", pins, f"{wheel}[gymnasium]")
        with part("README.md"):
            read_me = folder / "readme"
            read_me.mkdir()
            play_page(tour(wheel), read_me, python=python)
        with part("a class of one's own"):
            run(python, "-m", "openenv", "init", "my_env", cwd=folder, quiet=True)
            with serving(python, "serve", "my_env", "--port", "0", cwd=folder) as url:
                run(python, "-c", EPISODE, url, cwd=folder)
        with part("PPO to a return of 450"):
            packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", quiet=True).strip()
            Path(packages, "trainers.pth").write_text(sysconfig.get_path("purelib"))
            cart_pole = ["serve", "gymnasium:CartPole-v1", "--workers", "2", "--port", "0"]
            with serving(python, *cart_pole, cwd=folder) as url:
                run(python, ROOT / "examples" / "ppo_cartpole.py", "--base-url", url, "--seeds", "1", cwd=folder)
    print(f"{time.monotonic() - began:.0f} s in total; it may take {LIMIT_S:.0f} s where nothing else runs")


@contextmanager
def part(name: str) -> Iterator[None]:
    """Prints the duration of the block."""
    began = time.monotonic()
    yield
    print(f"{time.monotonic() - began:.1f} s: {name}", flush=True)


def tour(wheel: Path) -> Page:
    """README.md, with this wheel in place of the released package, and with servers in the background."""
    page = Page("README.md")
    page.blocks = [
        replace(
            block,
            source=re.sub(r"pip install '?openenv(\[[\w,]+\])?'?", rf"pip install '{wheel}\1'", block.source),
            needs=block.needs - {"network"},
            background=block.background or (block.language == "sh" and "openenv serve" in block.source),
        )
        for block in page.blocks
    ]
    return page


def run(*command: object, cwd: Path = ROOT, quiet: bool = False) -> str:
    """Runs a command, and returns its output. Exits if the command fails."""
    done = subprocess.run(  # noqa: S603 - our own
        list(map(str, command)), cwd=cwd, env=variables(), stdout=subprocess.PIPE, text=True, check=False
    )
    if not quiet:
        print(done.stdout, end="", flush=True)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


@contextmanager
def serving(python: Path | str, *arguments: object, cwd: Path = ROOT) -> Iterator[str]:
    """Runs a command of openenv that serves, until the block ends, and yields its address."""
    command = list(map(str, [python, "-m", "openenv", *arguments]))
    with subprocess.Popen(  # noqa: S603 - our own
        command, cwd=cwd, env=variables(), stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        guard = threading.Timer(START_S, server.kill)
        guard.start()
        announcement = server.stderr.readline()
        guard.cancel()
        try:
            address = re.search(r"https?://\S+", announcement)
            if address is None:
                raise SystemExit(f"the server announced no address: {announcement}{server.stderr.read()}")
            yield address[0]
        finally:
            server.send_signal(signal.SIGTERM)


def variables() -> dict[str, str]:
    """The environment variables of this process, without the settings of another project."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OPENENV_", "PYTHONPATH"))}


if __name__ == "__main__":
    main()
