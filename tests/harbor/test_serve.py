"""Tasks behind a server: clients have them played, by number."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from openenv.bench.served import ServedProcess
from openenv.errors import ToolFailed, UsageError
from openenv.harbor.client import HarborEnv

from ..model_server import model_server
from .test_rollout import AGENT
from .written import write_task

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of `openenv harbor serve` with two tasks and an agent that calls a model."""
    folder = tmp_path_factory.mktemp("harbor")
    write_task(folder / "tasks" / "first")
    write_task(folder / "tasks" / "second", instruction="Write result.txt below /app.\n", test=None)
    command = [sys.executable, "-m", "openenv", "harbor", "serve", "--dataset", "tasks", "--port", "0"]
    with model_server() as engine:
        agents = ["--agent", "oracle", "--agent", "nop", "--agent", AGENT, "--llm-url", engine.url]
        with ServedProcess([*command, *agents], cwd=folder) as server:
            yield server.url


async def test_the_server_says_what_it_offers(url: str) -> None:
    async with HarborEnv(url) as env:
        offered = await env.capabilities()
        assert offered["harnesses"] == ["oracle", "nop", AGENT]
        assert offered["sandboxes"] == ["process", "docker"]
        assert offered["llm"]["ok"]
        assert await env.splits() == offered["datasets"] == [{"name": "tasks", "num_tasks": 2}]
        assert await env.num_tasks("tasks") == 2
        assert [task.task_id for task in await env.get_task_range("tasks")] == ["first", "second"]
        assert (await env.get_task("tasks", 1)).instruction == "Write result.txt below /app.\n"
        with pytest.raises(IndexError, match="has no task 2"):
            await env.get_task("tasks", 2)
        with pytest.raises(UsageError, match="no split 'others': there are tasks"):
            await env.num_tasks("others")


async def test_a_rollout_has_reward_and_tokens(url: str) -> None:
    async with HarborEnv(url) as env:
        result = await env.run_rollout(task_index=0, harness=AGENT, sampling={"temperature": 1.0})
        assert (result.reward, result.n_turns, result.trainable) == (1.0, 2, True)
        state = await env.state()
        assert (state.model_extra or {})["last_reward"] == 1.0
        assert (await env.run_rollout(harness="nop")).reward == 0.0


async def test_a_task_that_cannot_be_scored_has_no_reward(url: str) -> None:
    async with HarborEnv(url) as env:
        result = await env.run_rollout(task_index=1)
    assert not result.ok
    assert result.reward is None
    assert "has no tests/test.sh" in (result.error or "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"harness": "rm -rf /"}, "harness: 'rm -rf /' is not offered: choose one of oracle, nop"),
        ({"sandbox": "e2b"}, "sandbox: 'e2b' is not offered: choose one of process, docker"),
        ({"task_index": 2}, "tasks has the tasks 0 to 1, not 2"),
        ({"split": "others"}, "no dataset 'others': choose one of tasks"),
        ({"api_key": "secret"}, "api_key: the server decides it"),
        ({"keep_sandbox": True}, "keep_sandbox: this server has no such option"),
        ({"purpose": "fun"}, "purpose"),
    ],
)
async def test_a_wrong_argument_is_named(url: str, arguments: dict[str, Any], said: str) -> None:
    async with HarborEnv(url) as env:
        with pytest.raises(ToolFailed, match=said):
            await env.run_rollout(**arguments)
