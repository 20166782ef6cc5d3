"""Episodes of a harness, collected into a folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.core.harness import MCPHarnessAdapter, Message, ModelStepResult, ToolResult
from openenv.core.harness.collect import (
    CollectResult,
    CollectRunner,
    EpisodeRecord,
    RolloutSerializer,
    build_dataset_readme,
    build_model_step,
    push_to_hf_hub,
)
from openenv.core.llm_client import LLMClient, LLMResponse, ToolCall
from openenv.errors import UnreadableRecord
from openenv.mcp.types import Tool

from .test_white_box import Factory, Scripted


def model_step(messages: list[Message], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
    calls = [ToolCall("c", "move", {})] if len(messages) == 1 else []
    return ModelStepResult(LLMResponse("", calls), [1, 2][: len(messages)], [3], [-0.5])


def collect(folder: Path, number: int, session: Scripted | None = None, **options: Any) -> CollectResult:
    tasks = options.pop("tasks", None)
    factory = Factory(lambda: session or Scripted(ToolResult(data={"reward": 1.0})))
    runner = CollectRunner(
        session_factory=factory,
        harness_adapter=MCPHarnessAdapter(),
        serializer=RolloutSerializer(folder),
        tasks=tasks,
    )
    return runner.run(model_step=model_step, num_episodes=number, **options)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_episodes_are_lines_of_the_results(tmp_path: Path) -> None:
    result = collect(tmp_path, 2, tasks=["first", "second"], episode_id_prefix="run")
    assert result == CollectResult(2, 0, 0, 0, ["run-000000", "run-000001"], 1.0, 1.0)
    first, second = lines(tmp_path)
    assert (first["episode_id"], first["task"], second["task"]) == ("run-000000", "first", "second")
    assert first["tool_trace"][0]["result"]["data"] == {"reward": 1.0}
    assert set(first) == set(EpisodeRecord.__dataclass_fields__)
    assert first["extra"]["segments"][0]["mask"] == [1]


def test_a_later_run_goes_on_and_keeps_the_pairing(tmp_path: Path) -> None:
    collect(tmp_path, 1, tasks=["a", "b", "c"])
    result = collect(tmp_path, 3, tasks=["a", "b", "c"])
    assert (result.num_skipped, result.num_collected) == (1, 2)
    assert [line["task"] for line in lines(tmp_path)] == ["a", "b", "c"]


def test_an_incomplete_last_line_is_played_again(tmp_path: Path) -> None:
    collect(tmp_path, 2)
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert RolloutSerializer(tmp_path).collected_episode_ids() == {"ep-000000"}
    assert collect(tmp_path, 2).num_collected == 1
    assert [line["episode_id"] for line in lines(tmp_path)] == ["ep-000000", "ep-000001"]


@pytest.mark.parametrize("line", [b'{"episode_id":1}\n', b"[]\n", b'{"episode_id":"\xff"}\n', b"nope\n"])
def test_a_line_that_is_no_episode_is_an_error_with_its_place(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "results.jsonl").write_bytes(b'{"episode_id":"x"}\n' + line)
    with pytest.raises(UnreadableRecord, match=r"results\.jsonl:2") as raised:
        RolloutSerializer(tmp_path).collected_episode_ids()
    assert isinstance(raised.value, ValueError)


def test_results_that_are_not_resumed_are_kept_under_another_name(tmp_path: Path) -> None:
    collect(tmp_path, 1)
    with pytest.warns(RuntimeWarning, match="bak"):
        assert collect(tmp_path, 1, resume=False).num_collected == 1
    assert len(list(tmp_path.glob("results.*.bak.jsonl"))) == 1


def test_failures_and_drops_are_counted_and_not_written(tmp_path: Path) -> None:
    def keep(record: EpisodeRecord) -> bool:
        if record.episode_id.endswith("1"):
            raise RuntimeError("cannot say")
        return record.episode_id.endswith("2")

    result = collect(tmp_path, 3, should_keep=keep)
    assert (result.num_collected, result.num_dropped, result.num_failed) == (1, 1, 1)
    failed = collect(tmp_path / "other", 1, Scripted(RuntimeError("broken")))
    assert (failed.num_failed, failed.avg_reward, failed.success_rate) == (1, 0.0, 0.0)
    assert lines(tmp_path / "other") == []
    unscored = collect(tmp_path / "third", 1, Scripted(ToolResult(), reward=None))
    assert unscored.num_failed == 1


def test_too_few_tasks_are_a_warning_and_the_others_have_none(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="1 tasks for 2 episodes"):
        collect(tmp_path, 2, tasks=["only"])
    assert [line["task"] for line in lines(tmp_path)] == ["only", None]


def test_an_episode_and_facts_are_written_by_hand(tmp_path: Path) -> None:
    serializer = RolloutSerializer(str(tmp_path / "new"))
    record = EpisodeRecord("e", [], 1.0, True, task={"path": Path("x")})
    serializer.write_episode(record)
    serializer.write_metadata({"env": "maze", "llm_endpoint": "http://secret", "model": "m"})
    assert lines(tmp_path / "new")[0] == record.to_dict()
    assert record.to_dict()["task"] == {"path": "x"}
    readme = build_dataset_readme(serializer.output_dir)
    assert "path: results.jsonl" in readme
    assert "1 episodes" in readme
    assert "| env | maze |" in readme
    assert "secret" not in readme


def test_an_upload_needs_results(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="collect episodes first"):
        push_to_hf_hub(tmp_path, "owner/name")


class Recorder(LLMClient):
    """A client that answers, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__("http://unused")
        self.asked: list[dict[str, Any]] = []

    async def complete(self, prompt: str, **kwargs: Any) -> str:
        return ""

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        self.asked.append({"messages": messages, "tools": tools, **kwargs})
        return LLMResponse("hello")


@pytest.fixture
def strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_client_is_a_model_step(strict: None) -> None:
    client = Recorder()
    step = build_model_step(client, system_prompt="be brief")
    tool = Tool(name="t", description="d", input_schema={"type": "object"})
    answer = step([{"role": "user", "content": "hi"}], [tool], {"temperature": 0.5})
    assert (answer.response.content, answer.prompt_ids) == ("hello", [])
    (asked,) = client.asked
    assert asked["messages"][0] == {"role": "system", "content": "be brief"}
    assert asked["tools"] == [{"name": "t", "description": "d", "inputSchema": {"type": "object"}}]
    assert asked["temperature"] == 0.5


def test_settings_that_no_client_takes_are_dropped_with_a_warning() -> None:
    client = Recorder()
    with pytest.warns(RuntimeWarning, match="top_k"):
        build_model_step(client, system_prompt="x")([{"role": "system", "content": "own"}], [], {"top_k": 5})
    assert client.asked == [{"messages": [{"role": "system", "content": "own"}], "tools": []}]
