"""Commands that run inside the tests' own process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openenv.bench.served import ServedTarget
from openenv.cli import main
from openenv.settings import ModelSettings, ServerSettings

from ..model_server import ModelServer, model_server
from .models import Command, guesser

EVALS = Path(__file__).parent.parent / "evals"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No setting is set, and what the command exports is forgotten."""
    for setting in ServerSettings.table():
        # Set first: only what the test changed is put back, and `export` changes it unseen.
        monkeypatch.setenv(setting.variable, "")
        monkeypatch.delenv(setting.variable)


@pytest.fixture(autouse=True)
def own_logging():
    """What the command does to the process's logging is undone: it writes to a stream that ends with the test."""
    loggers = [logging.getLogger(name) for name in (None, "openenv", "uvicorn", "uvicorn.access", "uvicorn.error")]
    before = [(logger, logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


@pytest.fixture(scope="module")
def guess() -> Iterator[str]:
    """The address of a server of `Guess`, whose split `test` has four tasks: to guess 1, 2, 3 and 4."""
    with ServedTarget("games:Guess", max_sessions=16, cwd=EVALS) as server:
        yield server.url


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """An endpoint with the model `guesser`; no key is set."""
    for setting in ModelSettings.table():
        monkeypatch.delenv(setting.variable, raising=False)
    with model_server(policies={"guesser": guesser}) as server:
        yield server


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `openenv ...` in this process; returns its exit code, output and complaints."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["openenv", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code or 0
        assert isinstance(code, int)
        return (code, *capsys.readouterr())

    return run
