"""Tests of this environment. Run them with `pytest` in the folder of openenv.yaml."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from openenv import SyncEnvClient
from openenv.errors import InvalidArgument, ResetRequired
from openenv.testing import EnvironmentConformance
from repo_repair import RepoRepairAction, RepoRepairEnv, RepoRepairObservation, RepoRepairState
from repo_repair.server import tasks
from repo_repair.server.repo_repair_environment import MOST_STEPS, RepoRepairEnvironment

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

Env = SyncEnvClient[RepoRepairAction, RepoRepairObservation, RepoRepairState]


class TestConformance(EnvironmentConformance):
    """The checks for all environments: seeds, isolated sessions, invalid actions, and more."""

    sessions = 4
    episodes = 10

    def app(self) -> Any:
        return RepoRepairEnvironment

    def actions(self) -> list[dict[str, Any]]:
        return [{"kind": "list"}, {"kind": "write", "path": "a.txt", "content": "x"}, {"kind": "submit"}]


@pytest.fixture
def env() -> Iterator[Env]:
    with RepoRepairEnv(env=RepoRepairEnvironment).sync() as client:
        client.reset(split="train", index=0)
        yield client


def act(env: Env, kind: Any, **fields: str) -> RepoRepairObservation:
    return env.step(RepoRepairAction(kind=kind, **fields)).observation


def repair(env: Env) -> None:
    edit = tasks.task("train", 0).repair
    assert act(env, "replace", path=edit.path, old=edit.old, new=edit.new).status == "ok"


def test_the_right_repair_passes_all_tests(env: Env) -> None:
    before = act(env, "test")
    assert (before.status, "FAILED" in before.output) == ("error", True)
    repair(env)
    assert act(env, "test").exit_code == 0
    last = act(env, "submit")
    assert (last.reward, last.passed, last.terminated) == (1.0, 1.0, True)
    with pytest.raises(ResetRequired):
        act(env, "list")


def test_a_repair_of_the_visible_tests_alone_gets_nothing(env: Env) -> None:
    for path in tasks.task("train", 0).files:
        if path.startswith("tests/test_"):
            act(env, "write", path=path, content="")
    last = act(env, "submit")
    assert last.reward == 0.0
    assert 0 < (last.passed or 0) < 1


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(0)\n",
        "import sys\nprint('[0, 1]', file=sys.__stdout__)\nsys.exit(0)\n",
        "class Any:\n    __eq__ = lambda *_: True\ndef __getattr__(name):\n    return lambda _: Any()\n",
        "import time\ntime.sleep(60)\n",
    ],
    ids=["ends", "prints", "equals everything", "sleeps"],
)
def test_code_that_cheats_the_grader_gets_nothing(env: Env, code: str) -> None:
    act(env, "write", path=tasks.task("train", 0).repair.path, content=code)
    assert act(env, "submit").reward == 0.0


def test_a_command_sees_a_copy_of_the_files(env: Env) -> None:
    seen = act(env, "run", command="echo new > README.md; cat README.md; ls /root /home")
    assert seen.output.startswith("new\n")
    assert "new" not in act(env, "read", path="README.md").output


@pytest.mark.parametrize("path", ["/etc/passwd", "../out", "a/../../out", "tests", "README.md/a", "a\nb"])
def test_a_path_that_is_no_file_of_the_repository_changes_nothing(env: Env, path: str) -> None:
    assert act(env, "write", path=path, content="x").status == "error"
    assert env.state().changed == []


def test_a_text_that_the_file_has_not_once_is_not_replaced(env: Env) -> None:
    assert "0 times" in act(env, "replace", path="README.md", old="no such text").output
    assert act(env, "read", path="nowhere.py").status == "error"


def test_an_episode_ends_after_the_last_action(env: Env) -> None:
    for _ in range(MOST_STEPS):
        last = act(env, "list")
    assert (last.truncated, last.done, last.reward) == (True, True, 0.0)


def test_an_unknown_task_is_refused_with_the_known_ones(env: Env) -> None:
    with pytest.raises(InvalidArgument, match="train, test"):
        env.reset(split="nowhere")
    with pytest.raises(InvalidArgument, match="0 to 99"):
        env.reset(split="test", index=100)


def test_each_task_has_one_place_to_repair_and_tests_that_fail_before() -> None:
    for index in range(48):
        task = tasks.task("test", index)
        assert task.files[task.repair.path].count(task.repair.old) == 1
        assert len(task.calls) == len(task.expected) == tasks.FUNCTIONS * tasks.HIDDEN
