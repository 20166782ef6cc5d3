"""An MCP environment under the trainer, with the newest major version of fastmcp."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastmcp
import pytest
from transformers.utils import get_json_schema

from openenv.adapters.trl import environment_factory
from openenv.client.mcp_client import MCPToolClient
from openenv.types import StepResult
from tests.adapters.test_trl_mcp import TOOLS, desk_app

from .environments import served
from .test_trl import trainer_of
from .tiny import call_token

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(desk_app()) as at:
        yield at


def per_success(results: list[StepResult[Any]]) -> float:
    return float(sum(result.observation.error is None for result in results))


def test_tools_of_an_mcp_environment_are_called_and_rewarded(address: str, tmp_path: Path) -> None:
    assert int(fastmcp.__version__.split(".")[0]) >= 4
    calls = [call_token("add", {"a": 1, "b": 3}), call_token("fail", {"why": "no paper"})]
    factory = environment_factory(MCPToolClient, TOOLS, per_success, name="Desk", base_url=address)
    trainer = trainer_of(factory, tmp_path, calls)

    trainer.train()

    steps = [entry for entry in trainer.state.log_history if "rewards/Desk/mean" in entry]
    assert len(steps) == 2
    assert all(entry["tools/call_frequency"] > 0 for entry in steps)
    assert sum(entry["rewards/Desk/mean"] for entry in steps) > 0


def test_each_tool_has_a_schema_that_transformers_can_read(address: str) -> None:
    episode: Any = environment_factory(MCPToolClient, TOOLS, base_url=address)()

    read = {name: get_json_schema(getattr(episode, name))["function"]["parameters"] for name in TOOLS}

    assert read["file"]["properties"]["drawer"] == {
        "type": "string",
        "enum": ["top", "bottom"],
        "description": "The drawer.",
    }
    assert read["file"]["properties"]["papers"]["items"] == {
        "type": "object",
        "additionalProperties": {"type": "string"},
    }
    assert read["file"]["properties"]["note"]["nullable"] is True
    assert read["add"]["required"] == ["a"]
