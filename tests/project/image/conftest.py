"""A stand-in for a Docker engine, and projects to build on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openenv.project import Project

from ...providers.engine import Engine, standing_in


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The engine that DOCKER_HOST names."""
    pytest.importorskip("docker")
    engine = Engine(0)
    with standing_in(engine) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        yield engine


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with what is needed to build it."""
    folder = tmp_path / "my_env"
    (folder / "server").mkdir(parents=True)
    (folder / "openenv.yaml").write_text("name: My_Env\nversion: 1.2\n")
    (folder / "models.py").write_text("x = 1\n")
    (folder / "server" / "Dockerfile").write_text(
        "ARG BASE_IMAGE=python:3.12-slim\nFROM ${BASE_IMAGE}\n# it has a comment\nCOPY . /app\n"
        "RUN pip install \\\n    openenv\n"
    )
    return Project.find(folder)
