"""ATIF: trajectories of rollouts, and the agent's own ones beside the recorded calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.capture import CaptureServer, rollout_of
from openenv.capture.export import paths_of
from openenv.errors import UsageError
from openenv.harbor.atif import agent_steps, load_trace, merge_into_atif, reconcile
from openenv.harbor.contract import export_training_contract, to_trace_entries, to_training_trace
from openenv.harbor.models import HarborRolloutResult, conversations_from_document, turns_from_document
from openenv.rollouts.export import export_rollouts
from openenv.rollouts.records import Rollout
from openenv.rollouts.trajectory import trajectory_of

from ..capture.requests import Agent
from ..model_server import model_server
from ..rollouts import written

Json = dict[str, Any]


@pytest.fixture
def proxy() -> Iterator[CaptureServer]:
    with model_server() as engine, CaptureServer(llm_url=engine.url) as server:
        yield server


def session_of(proxy: CaptureServer, turns: int = 2) -> str:
    session = proxy.open()
    agent = Agent(proxy.url, session, system="Be brief.")
    for number in range(turns):
        agent.say(f"turn {number}")
    return session


def rollout_in(proxy: CaptureServer, session: str) -> Rollout:
    return proxy.read(session, lambda found: rollout_of(found, paths_of(found.graph)[-1], 1.0))


def check(trajectory: Json) -> None:
    """With Harbor's own classes, where they are installed."""
    try:
        from harbor.models.trajectories import Trajectory
    except ImportError:
        return
    assert Trajectory.model_validate(trajectory).to_json_dict() == json.loads(json.dumps(trajectory))


def test_a_captured_session_is_a_trajectory(proxy: CaptureServer) -> None:
    rollout = rollout_in(proxy, session_of(proxy))
    trajectory = trajectory_of(rollout, "my-agent", "2.0")
    check(trajectory)
    assert [step["source"] for step in trajectory["steps"]] == ["system", "user", "agent", "user", "agent"]
    assert [step["step_id"] for step in trajectory["steps"]] == [1, 2, 3, 4, 5]
    for step, turn in zip(agent_steps(trajectory), rollout.turns, strict=True):
        assert step["message"] == turn.completion["content"]
        assert step["metrics"]["completion_token_ids"] == turn.completion_ids
        assert step["metrics"]["logprobs"] == turn.logprobs
        assert step["metrics"]["completion_tokens"] == len(turn.completion_ids or ())
    assert (trajectory["agent"]["name"], trajectory["agent"]["version"]) == ("my-agent", "2.0")
    assert trajectory["extra"]["reward"] == 1.0


def test_results_of_tools_are_observations_of_the_step_that_called() -> None:
    trajectory = trajectory_of(written.rollout_of())
    check(trajectory)
    first, second = agent_steps(trajectory)
    assert first["tool_calls"] == [{"tool_call_id": "call-0", "function_name": "look", "arguments": {"at": 0}}]
    assert first["observation"] == {"results": [{"source_call_id": "call-0", "content": "a door"}]}
    assert first["reasoning_content"] == "hm"
    assert second["observation"] == {"results": [{"source_call_id": "call-1", "content": '{"seen":9}'}]}


def test_a_repeated_history_is_copied_context() -> None:
    trajectory = trajectory_of(written.rollout_of(broken=True))
    check(trajectory)
    copied = [step.get("is_copied_context", False) for step in trajectory["steps"]]
    assert copied == [False, False, False, True, True, True, False]
    assert len(agent_steps(trajectory)) == 2


def test_odd_messages_stay_valid() -> None:
    rollout = written.rollout_of()
    rollout.turns[0].prompt[1]["content"] = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA=="}},
    ]
    rollout.turns[0].completion["tool_calls"][0]["function"]["arguments"] = "[1"
    rollout.turns[1].prompt[0]["tool_call_id"] = "unknown"
    trajectory = trajectory_of(rollout)
    check(trajectory)
    parts = trajectory["steps"][1]["message"]
    assert [part["type"] for part in parts] == ["text", "image", "text"]
    assert parts[1]["source"] == {"media_type": "image/png", "path": "data:image/png;base64,AA=="}
    assert agent_steps(trajectory)[0]["tool_calls"][0]["arguments"] == {"text": "[1"}
    assert trajectory["steps"][3]["observation"] == {"results": [{"content": "a door"}]}


def test_a_folder_of_rollouts_is_exported(tmp_path: Path) -> None:
    folder = written.write_rollouts(tmp_path, written.rollout_of(), written.rollout_of(member=1, reward=0.0))
    counts = export_rollouts(folder, tmp_path / "out.jsonl", "atif", min_reward=0.5)
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    check(json.loads(line))
    assert json.loads(line)["trajectory_id"] == "g0-0"
    assert counts["rows"] == 1


# The agent's own trajectory.


def own_trajectory(rollout: Rollout) -> Json:
    """What an agent writes that does not know the tokens."""
    trajectory = trajectory_of(rollout)
    for step in agent_steps(trajectory):
        step["metrics"] = {"completion_tokens": step["metrics"]["completion_tokens"]}
    return trajectory


def test_equal_calls_match_and_get_their_tokens(proxy: CaptureServer) -> None:
    session = session_of(proxy)
    document, rollout = proxy.export(session), rollout_in(proxy, session)
    own = own_trajectory(rollout)
    assert reconcile(document, own).status == "match"
    merged = merge_into_atif(own, document)
    check(merged)
    for step, turn in zip(agent_steps(merged), rollout.turns, strict=True):
        assert step["metrics"]["completion_token_ids"] == turn.completion_ids
        assert step["metrics"]["logprobs"] == turn.logprobs
    assert "completion_token_ids" not in agent_steps(own)[0]["metrics"]


def test_calls_that_the_agent_does_not_count_are_auxiliary(proxy: CaptureServer) -> None:
    session = session_of(proxy, 3)
    document, own = proxy.export(session), own_trajectory(rollout_in(proxy, session))
    own["steps"] = [step for step in own["steps"] if step["step_id"] != 3]
    compared = reconcile(document, own)
    assert (compared.status, compared.ok) == ("match", True)
    assert len(compared.auxiliary) == 1
    assert str(compared.findings[0]).startswith("[INFO] auxiliary_calls: the trajectory leaves out")


def test_other_calls_are_fatal_and_nothing_is_merged(proxy: CaptureServer) -> None:
    session = session_of(proxy)
    document, own = proxy.export(session), own_trajectory(rollout_in(proxy, session))
    agent_steps(own)[0]["metrics"]["completion_tokens"] += 1
    compared = reconcile(document, own)
    assert (compared.status, compared.ok) == ("MISMATCH", False)
    assert "[FATAL] other_calls" in str(compared.findings[0])
    assert merge_into_atif(own, document) == own


def test_without_ids_the_number_of_calls_is_compared(proxy: CaptureServer) -> None:
    session = session_of(proxy)
    document, own = proxy.export(session), own_trajectory(rollout_in(proxy, session))
    for step in agent_steps(own):
        del step["metrics"]
    assert reconcile(document, own).status == "match"
    own["steps"].pop()
    compared = reconcile(document, own)
    assert (compared.status, compared.ok) == ("MISMATCH", True)
    assert reconcile(document, None).status == "none"


def test_a_trajectory_is_read_from_the_folder_of_a_trial(tmp_path: Path) -> None:
    assert load_trace(tmp_path) == (None, "")
    place = tmp_path / "agent" / "trajectory.json"
    place.parent.mkdir()
    for text in ("{", "[]", '{"steps": 3}', '{"steps": [1]}'):
        place.write_text(text)
        assert load_trace(tmp_path) == (None, "")
    place.write_text('{"steps": []}')
    assert load_trace(tmp_path) == ({"steps": []}, "atif")


# Results, and what a trainer takes.


def result_of(proxy: CaptureServer, session: str) -> HarborRolloutResult:
    document = proxy.export(session, include_messages=True)
    return HarborRolloutResult(
        session_id=session,
        reward=1.0,
        turns=turns_from_document(document),
        conversations=conversations_from_document(document),
        n_trainable_tokens=document["stats"]["n_trainable_tokens"],
    )


def test_the_turns_of_a_result_are_those_of_the_session(proxy: CaptureServer) -> None:
    session = session_of(proxy)
    result = result_of(proxy, session)
    assert result.trainable
    assert result.solved
    entries = proxy.trace_entries(session)
    names = ("prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask")
    ours = to_trace_entries(result)
    assert [[entry[name] for name in names] for entry in ours] == [
        [entry[name] for name in names] for entry in entries
    ]
    assert [entry["reward"] for entry in ours] == [1.0, 1.0]
    assert [turn.node_id for turn in to_training_trace(result).turns] == [turn.node_id for turn in result.turns]
    (talk,) = result.conversations
    assert [message["role"] for message in talk.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert export_training_contract(result)["reward"] == 1.0


def test_what_failed_or_was_for_evaluation_has_no_training_data(proxy: CaptureServer) -> None:
    result = result_of(proxy, session_of(proxy))
    result.rollout_type = "eval"
    assert not result.trainable
    with pytest.raises(UsageError, match="is for evaluation"):
        to_trace_entries(result)
    result.ok, result.error = False, "the verifier wrote no reward"
    with pytest.raises(UsageError, match="no training data: the verifier wrote no reward"):
        to_training_trace(result)
