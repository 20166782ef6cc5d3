"""Tasks as an environment of ours: the client runs commands in the sandbox, and the tests score what it left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openenv import GenericEnvClient
from openenv.errors import EnvironmentFailed, InvalidArgument, ResetRequired, UsageError
from openenv.project.importing import adapted_source, import_project
from openenv.project.target import load

from .written import write_task

TASKS = sorted((Path(__file__).parent / "tasks").iterdir())
DONE = {"type": "reply", "text": "Done."}
pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def bash(command: Any, **action: Any) -> dict[str, Any]:
    return {"type": "call_tool", "tool_name": "bash", "arguments": {"command": command}, **action}


def text_of(result: Any) -> str:
    return result.observation["result"]["content"][0]["text"]


@pytest.mark.parametrize("index", range(len(TASKS)), ids=lambda index: TASKS[index].name)
async def test_a_solution_scores_1_and_doing_nothing_0(index: int) -> None:
    folder = TASKS[index]
    async with GenericEnvClient(app=load(f"harbor:{folder.parent}")) as env:
        begun = await env.reset(index=index)
        assert begun.observation["text"] == (folder / "instruction.md").read_text()
        result = await env.step(DONE)
        assert (result.reward, result.done) == (0.0, True)
        await env.reset(index=index)
        await env.step(bash((folder / "solution/solve.sh").read_text()))
        result = await env.step(DONE)
        assert (result.reward, result.done, result.metadata["rubric"]) == (1.0, True, {"reward": 1.0})


async def test_the_tool_runs_commands_and_says_how_they_end(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "one", toml="[agent]\ntimeout_sec = 600\n")
    async with GenericEnvClient(app=load(f"harbor:{folder}"), message_timeout_s=600) as env:
        listed = await env.step({"type": "list_tools"})
        assert [tool["name"] for tool in listed.observation["tools"]] == ["bash"]
        with pytest.raises(ResetRequired):
            await env.step(DONE)
        await env.reset()
        assert text_of(await env.step(bash("pwd; ls /tests; exit 3"))).endswith("\n[exit code 3]")
        printed = text_of(await env.step(bash("head -c 100000000 /dev/zero | tr '\\0' x; echo end")))
        assert "characters left out]" in printed
        assert printed.endswith("xend\n")
        assert len(printed) < 21_000
        for wrong in (bash(7), bash(""), bash("true", tool_name="python")):
            assert text_of(await env.step(wrong)) == "There is one tool: bash, with one argument, the text `command`."
        result = await env.step(DONE)
        assert (result.reward, result.done) == (0.0, True)


async def test_sessions_have_their_own_files(tmp_path: Path) -> None:
    app = load(f"harbor:{write_task(tmp_path / 'one')}")
    async with GenericEnvClient(app=app) as first, GenericEnvClient(app=app) as second:
        await first.reset()
        await second.reset()
        await first.step(bash("echo done > result.txt"))
        assert [(await env.step(DONE)).reward for env in (first, second)] == [1.0, 0.0]


async def test_when_the_time_is_over_the_work_is_scored(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "late", toml="[agent]\ntimeout_sec = 2\n")
    async with GenericEnvClient(app=load(f"harbor:{folder}")) as env:
        await env.reset()
        result = await env.step(bash("echo done > result.txt; sleep 60"))
        assert (result.reward, result.done, result.metadata["truncated"]) == (1.0, True, True)


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("#!/bin/sh\n", "the verifier wrote no reward"),
        ("#!/bin/sh\necho nan > /logs/verifier/reward.txt\n", "no finite number"),
        ("#!/bin/sh\nkill -9 $$\n", "killed by signal 9"),
    ],
)
async def test_without_a_score_the_episode_fails_without_a_reward(tmp_path: Path, test: str, reason: str) -> None:
    async with GenericEnvClient(app=load(f"harbor:{write_task(tmp_path / 'one', test=test)}")) as env:
        await env.reset()
        with pytest.raises(EnvironmentFailed, match=reason):
            await env.step(DONE)
        with pytest.raises(InvalidArgument, match="there are 1 tasks in test"):
            await env.reset(index=1)


@pytest.mark.parametrize(
    ("files", "arguments", "reason"),
    [
        ({"test": None}, "", "has no tests/test.sh: nothing can score it"),
        ({"dockerfile": "FROM debian:12\nRUN true\n"}, "", "choose the sandbox docker"),
        ({}, "?sandbox=cloud", "sandbox=cloud: choose process or docker"),
        ({"toml": None}, "", "has no tasks"),
    ],
)
def test_what_cannot_be_served_is_one_clear_error(
    tmp_path: Path, files: dict[str, str | None], arguments: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        load(f"harbor:{write_task(tmp_path / 'one', **files)}{arguments}")


@pytest.mark.slow
def test_the_imported_project_has_the_tasks_and_passes_validate(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_task(tmp_path / "their_tasks" / name)
    (tmp_path / "their_tasks/second/environment/.env").write_text("KEY=secret")
    source = adapted_source(f"harbor:{tmp_path / 'their_tasks'}")
    folder, files = import_project(source, output_dir=tmp_path / "envs")
    assert folder.name == "their_tasks"
    assert "vendor/their_tasks/second/tests/test.sh" in files
    assert [each.partition(":")[0] for each in source.left_out] == ["environment/.env"]
    shutil.rmtree(tmp_path / "their_tasks")
    command = [sys.executable, "-m", "openenv", "validate", str(folder), "--level", "runtime"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
