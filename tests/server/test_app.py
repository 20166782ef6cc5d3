"""What an app says of itself when it starts, and what the parts around it load."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from starlette.testclient import TestClient

from .probe import app_of


def said_at_start(caplog, **settings) -> list[str]:
    caplog.set_level(logging.WARNING, "openenv.server")
    with TestClient(app_of(**settings)):
        pass
    return [record.getMessage() for record in caplog.records if record.name == "openenv.server"]


def test_an_app_without_keys_says_once_that_it_is_open(caplog):
    (warning,) = said_at_start(caplog)
    assert "without a key" in warning
    assert "OPENENV_API_KEYS" in warning


@pytest.mark.parametrize("keys", ["none", "control:a-key-that-is-long-enough"])
def test_what_was_decided_is_not_commented(caplog, keys):
    assert said_at_start(caplog, api_keys=keys) == []


def test_a_key_that_can_be_guessed_is_warned_of_without_showing_it(caplog):
    (warning,) = said_at_start(caplog, api_keys="control:a-key-that-is-long-enough,agent:hunter2")
    assert warning.startswith("key 2 ")
    assert "hunter2" not in warning


@pytest.mark.parametrize("module", ["openenv.server.workers", "openenv.server.server", "openenv.server.page.episode"])
def test_processes_that_serve_no_http_load_no_web_framework(module: str) -> None:
    """The parent of workers, servers in memory, and session processes that read operations of the page."""
    frameworks = ("fastapi", "starlette", "uvicorn")
    script = f"import sys, {module}; print(*(name for name in {frameworks} if name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "\n"
