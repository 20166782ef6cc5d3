"""Installing takes half a minute: it is done once for all tests of this folder, in whichever process they run."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from ..warm import WarmPython
from .installation import DRIVERS, PEER_PYTHON, Installation, Wheels, build, install_ours, install_peer

T = TypeVar("T")


def _once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """What the first process that needs it makes, in a folder of this run, and the others read."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = root / f"{name}.pickle"
        if not made.exists():
            folder = root / name
            folder.mkdir()
            made.write_bytes(pickle.dumps(make(folder)))
        found: T = pickle.loads(made.read_bytes())
        return found


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Our project and the packages, built."""
    return _once(tmp_path_factory, "wheels", build)


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory, wheels: Wheels) -> Installation:
    """Our wheel and the packages in a fresh virtual environment."""
    return _once(tmp_path_factory, "ours", lambda folder: install_ours(folder, wheels))


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory, wheels: Wheels) -> Iterator[Installation]:
    """The released peer and the packages. Its processes are forks of one that has imported it."""
    if not PEER_PYTHON.exists():
        pytest.skip("the released peer is not installed: make .venv-peer/.installed")
    installed = _once(tmp_path_factory, "peer", lambda folder: install_peer(folder, wheels))
    environ = installed.full_environ
    environ["PYTHONPATH"] += os.pathsep + str(DRIVERS)  # as if each script there were started
    imported = ("openenv.core", "openenv.core.env_server", "uvicorn", "checks")
    with WarmPython(*imported, python=installed.python, environment=environ) as warm:
        yield dataclasses.replace(installed, warm=warm)
