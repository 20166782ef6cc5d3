"""Tests with real trainers run in a virtual environment of their own: `make test-trainers`.

They are skipped where torch and trl are not installed, as in the one that `make test` uses.
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
import warnings
from contextlib import chdir
from pathlib import Path

import pytest

_NEEDED = ("torch", "trl")
_ABSENT = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
_VECTORS = ("envpool", "pufferlib.ocean", "pufferlib.vector", "torchrl.collectors")

if not _ABSENT:
    with warnings.catch_warnings():  # theirs, about one another
        warnings.simplefilter("ignore")
        import torch  # noqa: F401
        import trl  # noqa: F401
        from trl import GRPOConfig, GRPOTrainer  # noqa: F401

        with tempfile.TemporaryDirectory() as folder, chdir(folder):  # PufferLib leaves a link where it is imported
            for name in _VECTORS:
                if importlib.util.find_spec(name.partition(".")[0]) is not None:
                    importlib.import_module(name)


class _Absent(pytest.File):
    """Stands for a test module that cannot be imported here."""

    def collect(self) -> list[pytest.Item]:
        return [_Skipped.from_parent(self, name="all")]


class _Skipped(pytest.Item):
    def runtest(self) -> None:
        pytest.skip(f"{' and '.join(_ABSENT)} not installed: these tests are run by `make test-trainers`")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return _Absent.from_parent(parent, path=module_path) if _ABSENT else None
