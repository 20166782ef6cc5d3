"""Commands that run inside the tests' own process."""

from __future__ import annotations

import logging

import pytest

from openenv.settings import ServerSettings


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
