"""Without a sandbox, no code runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from openenv.errors import FactoryFailed, UsageError
from python_sandbox import PythonSandboxEnv
from python_sandbox.server import walls
from python_sandbox.server.python_sandbox_environment import PythonSandboxEnvironment

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def test_without_bubblewrap_it_refuses_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    walls.check.cache_clear()
    with pytest.raises(UsageError, match="install bubblewrap"):
        walls.check()
    with pytest.raises(UsageError, match="install bubblewrap"):
        PythonSandboxEnvironment()
    with pytest.raises(FactoryFailed, match="install bubblewrap"):
        PythonSandboxEnv(env=PythonSandboxEnvironment).sync().reset()


def test_where_bubblewrap_is_not_permitted_it_refuses_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: no permissions to create new namespace' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    walls.check.cache_clear()
    with pytest.raises(UsageError, match=r"no permissions.*unprivileged user namespaces"):
        walls.check()


@needs_bubblewrap
def test_where_no_interpreter_starts_in_the_sandbox_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walls, "RESOURCES", {**walls.RESOURCES, "RLIMIT_NONE": 1})
    walls.check.cache_clear()
    with pytest.raises(UsageError, match=r"no code runs.*RLIMIT_NONE"):
        walls.check()


@needs_bubblewrap
def test_in_another_sandbox_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_SANDBOX", "bwrap")
    with pytest.raises(FactoryFailed, match="without --sandbox bwrap"):
        PythonSandboxEnv(env=PythonSandboxEnvironment).sync().reset()
