"""`openenv collect`: episodes of a model as the result format of the released package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openenv.rollouts import read_rollouts
from openenv.rollouts.collected import read_results

from ..model_server import ModelReply, ModelServer
from ..project.hub.server import TOKEN, running_hub
from .models import Command


def collected(endpoint: ModelServer, guess: str, folder: Path) -> tuple[object, ...]:
    """The arguments of a collection of guesses."""
    address, _, port = endpoint.url.rpartition(":")
    model = ("--provider", "openai", "--model", "guesser", "--llm-endpoint", address, "--llm-port", port)
    return ("collect", "guessing", "--base-url", guess, "-o", folder, *model)


def test_episodes_are_lines_with_conversation_and_reward(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    code, output, complaints = command(*collected(endpoint, guess, tmp_path), "-n", 4, "--max-turns", 10)
    assert code == 0, complaints
    assert output.startswith("collected 4 episodes in ")
    records = {record.episode_id: record for record in read_results(tmp_path)}
    assert sorted(records) == [f"ep-{number:06d}" for number in range(4)]
    first = records["ep-000000"]
    assert first.done
    assert [message["role"] for message in first.messages][:3] == ["system", "user", "assistant"]
    assert first.messages[-1]["role"] == "tool"
    assert first.reward == pytest.approx(1 - 0.125 * (first.metrics["turns"] - 1))
    assert first.tool_trace[-1]["result"]["done"] is True
    assert endpoint.seen[0].body["temperature"] == 0.2
    assert endpoint.seen[0].body["max_tokens"] == 200
    facts = json.loads((tmp_path / "metadata.json").read_text())
    assert (facts["env"], facts["model"], facts["num_episodes_requested"]) == ("guessing", "guesser", 4)
    assert "path: results.jsonl" in (tmp_path / "README.md").read_text()


def test_nothing_is_paid_twice(command: Command, guess: str, endpoint: ModelServer, tmp_path: Path) -> None:
    def hopeless(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
        return ModelReply(calls=[(tools[0]["function"]["name"], '{"guess": 0}')])

    endpoint.policies = {"guesser": hopeless}
    asked = collected(endpoint, guess, tmp_path)
    code, output, _ = command(*asked, "-n", 3)
    assert code == 0
    assert "collected 0 episodes" in output
    assert "3 dropped" in output
    sampled = len(endpoint.samples)
    code, output, _ = command(*asked, "-n", 3)
    assert (code, "3 dropped" in output, len(endpoint.samples)) == (0, True, sampled)
    code, output, _ = command(*asked, "-n", 3, "--keep-losses")
    assert (code, "collected 3 episodes" in output, len(endpoint.samples)) == (0, True, sampled)
    code, output, _ = command(*asked, "-n", 3)
    assert (code, "3 skipped" in output) == (0, True)


def test_episodes_of_the_released_package_are_kept(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    line = {"episode_id": "ep-000001", "messages": [], "reward": 1.0, "done": True}
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n" + '{"episode_id": "ep-0000')
    code, output, _ = command(*collected(endpoint, guess, tmp_path), "-n", 3)
    assert (code, "1 skipped" in output) == (0, True)
    assert sorted(record.episode_id for record in read_results(tmp_path)) == ["ep-000000", "ep-000001", "ep-000002"]
    assert len(list(read_rollouts(tmp_path / "rollouts"))) == 2


def test_a_folder_of_other_episodes_is_refused_and_keeps_its_facts(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    asked = collected(endpoint, guess, tmp_path)
    assert command(*asked, "-n", 1)[0] == 0
    facts = (tmp_path / "metadata.json").read_bytes()
    for other, words in {
        ("collect", "other", *asked[2:]): "has episodes with env 'guessing', not 'other'",
        (*asked, "--model", "tool"): "has episodes with model 'guesser', not 'tool'",
    }.items():
        code, output, complaints = command(*other, "-n", 1)
        assert (code, output) == (1, "")
        assert words in complaints
        assert "--no-resume" in complaints
    assert (tmp_path / "metadata.json").read_bytes() == facts


def test_no_resume_sets_the_earlier_episodes_aside(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    asked = collected(endpoint, guess, tmp_path)
    assert command(*asked, "-n", 2)[0] == 0
    code, output, complaints = command(*asked, "-n", 1, "--no-resume")
    assert (code, "collected 1 episode " in output) == (0, True)
    assert "kept the earlier episodes as" in complaints
    (backup,) = tmp_path.glob("results.*.bak.jsonl")
    assert len(backup.read_text().splitlines()) == 2


def test_it_fails_if_every_episode_failed(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    def breaks(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
        return ModelReply(calls=[(tools[0]["function"]["name"], '{"guess": 99}')])

    endpoint.policies = {"guesser": breaks}
    asked = collected(endpoint, guess, tmp_path)
    code, output, _ = command(*asked, "-n", 3)
    assert (code, "3 failed" in output) == (1, True)
    sampled = len(endpoint.samples)
    code, output, _ = command(*asked, "-n", 3)
    assert (code, "3 failed" in output, len(endpoint.samples)) == (1, True, sampled)
    assert not list(read_results(tmp_path))


def test_a_system_prompt_replaces_that_of_the_environment(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    code, _, complaints = command(*collected(endpoint, guess, tmp_path), "-n", 1, "--system-prompt", "Be quick.")
    assert code == 0, complaints
    (record,) = read_results(tmp_path)
    assert record.messages[0] == {"role": "system", "content": "Be quick."}


def test_an_upload_has_the_episodes_and_nothing_of_the_machines(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    asked = collected(endpoint, guess, tmp_path)
    assert command(*asked, "-n", 2)[0] == 0
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        code, output, complaints = command(*asked, "-n", 2, "--no-resume", "-H", "team/guesses", "--private")
    assert code == 0, complaints
    assert output.splitlines()[-1] == f"uploaded to {hub.url}/datasets/team/guesses"
    files = {name: text for name, text in hub.repos["team/guesses"].files.items() if name != ".gitattributes"}
    assert sorted(files) == ["README.md", "metadata.json", "results.jsonl"]
    assert hub.repos["team/guesses"].private
    assert files["results.jsonl"] == (tmp_path / "results.jsonl").read_bytes()
    public = files["README.md"] + files["metadata.json"]
    assert b"127.0.0.1" not in public
    assert b"guesser" in public


def test_what_cannot_be_collected_is_said(command: Command, endpoint: ModelServer, tmp_path: Path) -> None:
    folder = tmp_path / "episodes"
    wrong: dict[tuple[object, ...], str] = {
        ("openspiel:catch",): "--base-url URL",
        ("reasoning_gym:chain_sum",): "--base-url URL",
        ("echo", "--provider", "openai"): "--model NAME",
        ("echo", "--provider", "openai", "--model", "m"): "OPENAI_API_KEY",
        ("echo", "--provider", "openai", "--model", "m", "--llm-port", 8000): "--llm-endpoint",
        ("echo", "--dataset-config", "{}"): "reasoning_gym",
        ("reasoning_gym:x", "--base-url", "http://h", "--dataset-config", "[1]"): "JSON object",
    }
    for arguments, words in wrong.items():
        code, output, complaints = command("collect", *arguments, "-o", folder)
        assert code in {1, 2}, arguments
        assert words in complaints, arguments
        assert not output
    assert not folder.exists()
