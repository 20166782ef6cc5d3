"""`openenv eval --model`: the engine of rollouts under the statistics of evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ..model_server import ModelReply, ModelServer
from .models import Command


def lucky(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    """Guesses any number from 1 to 4."""
    return ModelReply(calls=[(tools[0]["function"]["name"], json.dumps({"guess": Random().randint(1, 4)}))])


def test_a_model_is_scored_by_task(command: Command, guess: str, endpoint: ModelServer) -> None:
    asked = (guess, "--model", "guesser", "--base-url", endpoint.url, "--split", "test", "--repeats", 2)
    code, output, complaints = command("eval", *asked, "--success-at", 0.8, "--price", "1,2", "--json")
    assert code == 0, complaints
    report = json.loads(output)
    summary = report["summary"]
    assert report["about"]["policy"] == "guesser"
    assert report["about"]["environment"] == "Guess"
    assert [(each["index"], each["repeat"], each["length"]) for each in report["episodes"]] == [
        (index, repeat, index + 1) for index in range(4) for repeat in (0, 1)
    ]
    assert summary["ends"] == {"terminated": 8}
    assert summary["intervals_over"] == "tasks"
    assert [task["success"]["share"] for task in summary["tasks"]] == [1.0, 1.0, 0.0, 0.0]
    assert [(chance["k"], chance["share"]) for chance in summary["pass_at"]] == [(2, 0.5)]
    assert summary["tokens"]["count"] == 8
    assert summary["cost"] == pytest.approx(sum(each["cost"] for each in report["episodes"]))


def test_the_text_has_returns_tokens_cost_and_what_was_cut_short(
    command: Command, guess: str, endpoint: ModelServer
) -> None:
    asked = (guess, "--model", "guesser", "--base-url", endpoint.url, "--split", "test", "--repeats", 2)
    code, output, _ = command("eval", *asked, "--budget", "turns=3", "--price", "1,2")
    assert code == 0
    lines = [line.split() for line in output.splitlines()]
    assert {"return", "length", "tokens", "cost"} <= {line[0] for line in lines}
    assert "  2 were cut short, out of turns (--budget turns=N)" in output.splitlines()
    assert ["task", "mean", "return", "least", "most", "success", "episodes"] in lines


def test_seeds_are_repeated_by_a_model(command: Command, guess: str, endpoint: ModelServer) -> None:
    endpoint.policies = {"lucky": lucky}
    asked = (guess, "--model", "lucky", "--base-url", endpoint.url, "--seeds", "0-4", "--repeats", 3)
    code, output, complaints = command("eval", *asked, "--budget", "turns=2", "--json", "--success-at", 0.5)
    assert code == 0, complaints
    report = json.loads(output)
    assert len(report["episodes"]) == 15
    assert report["summary"]["intervals_over"] == "seeds"
    assert [task["index"] for task in report["summary"]["tasks"]] == list(range(5))
    assert [chance["k"] for chance in report["summary"]["pass_at"]] == [2, 3]


def test_two_models_are_compared_in_pairs(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    def knows(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
        return ModelReply(calls=[(tools[0]["function"]["name"], '{"guess": 1}')])

    endpoint.policies = {**endpoint.policies, "stubborn": knows}
    asked = (guess, "--base-url", endpoint.url, "--split", "test", "--budget", "turns=4")
    assert command("eval", *asked, "--model", "guesser", "-o", tmp_path / "a.json")[0] == 0
    code, output, _ = command("eval", *asked, "--model", "stubborn", "--against", tmp_path / "a.json")
    assert code == 0
    assert "4 pairs" in output
    assert "tokens" in [line.split()[0] for line in output.splitlines() if line.strip()]


def test_a_recorded_evaluation_is_not_played_again(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    asked = (guess, "--model", "guesser", "--base-url", endpoint.url, "--split", "test", "--record", tmp_path / "run")
    first = json.loads(command("eval", *asked, "--json")[1])
    sampled = len(endpoint.samples)
    code, output, complaints = command("eval", *asked, "--json")
    assert code == 0, complaints
    again = json.loads(output)
    assert again["episodes"] == first["episodes"]
    assert len(endpoint.samples) == sampled
    code, _, complaints = command("eval", *asked, "--repeats", 2)
    assert (code, "group size 1, not 2" in complaints) == (1, True)


def test_failures_have_no_score_and_their_cause(command: Command, guess: str, endpoint: ModelServer) -> None:
    def breaks(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
        turns = sum(message["role"] == "assistant" for message in messages)
        guess = {"guess": 99} if turns else {"guess": 5}
        return ModelReply(calls=[(tools[0]["function"]["name"], json.dumps(guess))])

    def babbles(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
        return ModelReply("I do not know.")

    endpoint.policies = {"breaks": breaks, "babbles": babbles}
    asked = (guess, "--base-url", endpoint.url, "--split", "test", "--json")
    code, output, _ = command("eval", *asked, "--model", "breaks")
    assert code == 1
    assert json.loads(output)["summary"]["failures"] == {"environment": {"StepFailed": 4}}
    assert json.loads(output)["summary"]["returns"] is None
    code, output, _ = command("eval", *asked, "--model", "babbles")
    assert code == 1
    assert json.loads(output)["summary"]["failures"] == {"policy": {"ModelFailed": 4}}


def test_what_plays_is_one_thing(command: Command, endpoint: ModelServer) -> None:
    for arguments, words in {
        ("echo",): "--policy MODULE:FUNCTION, or --model",
        ("echo", "--policy", "random", "--model", "m"): "--policy MODULE:FUNCTION, or --model",
        ("echo", "--model", "random", "--max-steps", "3"): "--budget turns",
        ("echo", "--model", "m"): "OPENAI_API_KEY",
    }.items():
        code, output, complaints = command("eval", *arguments)
        assert code in {1, 2}
        assert words in complaints
        assert not output
