"""The stand-in of the Hub, and a project to push."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openenv.project import Project
from openenv.project.hub import Patience

from ...cli.projects import write_project
from .server import TOKEN, Hub, running_hub

DOCKERFILE = "FROM python:3.12-slim\nCOPY . /app\nCMD openenv serve /app --host 0.0.0.0\n"
# For tests: nobody waits between attempts.
AT_ONCE = Patience(pause_s=0.0, silence_s=5.0)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A Hub, which knows the user of this process."""
    constants = pytest.importorskip("huggingface_hub.constants")
    # Read when the library is imported; Xet's protocol is none of the stand-in's.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    with running_hub() as there:
        monkeypatch.setenv("HF_ENDPOINT", there.url)
        yield there


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with what a Space needs."""
    folder = write_project(tmp_path / "guess", package=True, manifest="name: guess\napp: server.app:app\n")
    (folder / "server" / "Dockerfile").write_text(DOCKERFILE)
    (folder / "README.md").write_text("# Guess\n")
    (folder / "pyproject.toml").write_text('[project]\nname = "openenv-guess"\nversion = "1"\n')
    return Project.find(folder)
