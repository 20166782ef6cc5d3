"""Tasks of a dataset of the Hub, which is a real HTTP server."""

from __future__ import annotations

from pathlib import Path

import pytest

from openenv.errors import UsageError
from openenv.harbor.tasks import HarborTask, resolve_task_dirs

from ..project.hub.conftest import hub
from ..project.hub.server import Hub
from .written import write_task

__all__ = ["hub"]


def test_tasks_of_the_hub_are_downloaded_once(hub: Hub, tmp_path: Path) -> None:
    task = write_task(tmp_path / "greet")
    files = {
        f"greet/{path.relative_to(task)}": path.read_bytes() for path in sorted(task.rglob("*")) if path.is_file()
    }
    hub.add("tester/tasks", files)
    (folder,) = resolve_task_dirs("tester/tasks")
    read = HarborTask.read(folder)
    assert (read.name, read.instruction) == ("greet", "Write /app/result.txt.\n")
    assert read.tests["test.sh"].read_bytes() == files["greet/tests/test.sh"]
    asked = len(hub.requests)
    assert resolve_task_dirs("tester/tasks") == [folder]
    assert len(hub.requests) == asked
    hub.repos["tester/tasks"].put({**files, "greet/instruction.md": b"Write it again.\n"})
    (folder,) = resolve_task_dirs("tester/tasks", refresh=True)
    assert HarborTask.read(folder).instruction == "Write it again.\n"
    with pytest.raises(UsageError, match="the Hub does not give that dataset"):
        resolve_task_dirs("tester/others")
