"""`openenv capture validate`: what it says of engines that can be trained on, and of others, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from openenv.cli.main import app
from tests.model_server import ModelServer, model_server
from tests.ports import held_port


@pytest.fixture
def engine() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def validate(url: str, *arguments: str, model: str = "tool") -> Result:
    return CliRunner().invoke(app, ["capture", "validate", f"{url}/v1", "--model", model, *arguments])


def report_of(url: str, **named: str) -> tuple[int, dict[str, Any]]:
    result = validate(url, "--json", **named)
    return result.exit_code, json.loads(result.stdout)


def answer(
    ids: Any = (5, 6), logprobs: Any = (-0.5, -0.25), prompt: Any = (1, 2), token: str = "t"
) -> dict[str, Any]:
    """A chat completion of an engine; None leaves a field out."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "one"}, "finish_reason": "stop"}
    if ids is not None:
        choice["token_ids"] = ids
    if logprobs is not None:
        choice["logprobs"] = {"content": [{"token": token, "logprob": each} for each in logprobs]}
    return {"id": "a", "choices": [choice], **({} if prompt is None else {"prompt_token_ids": prompt})}


def test_an_engine_with_ids_and_log_probabilities_can_be_trained_on(engine: ModelServer) -> None:
    code, report = report_of(engine.url)
    assert code == 0
    assert (report["capture_level"], report["tool_support"]) == ("tokens", "ok")
    assert report["logprobs_mode"] == "processed"
    assert (report["n_prompt_ids"] > 0, report["n_completion_ids"] > 0) == (True, True)
    assert report["findings"] == []
    shown = validate(engine.url)
    assert shown.exit_code == 0
    assert f"tool at {engine.url}/v1: can be trained on; it returns tokens" in shown.stdout


def test_an_engine_that_calls_no_tool_is_noted_and_can_be_trained_on(engine: ModelServer) -> None:
    code, report = report_of(engine.url, model="echo")
    assert (code, report["tool_support"]) == (0, "no-tool-call")
    assert [each[:5] for each in report["findings"]] == ["INFO:"]


@pytest.mark.parametrize(
    ("given", "level", "finding"),
    [
        (answer(logprobs=None), "text", "FATAL: it returns no log probabilities"),
        (answer(logprobs=()), "text", "FATAL: it returns no log probabilities"),
        (answer(ids=None), "logprobs", "FATAL: it returns no token ids: vLLM has them from 0.10.2"),
        (answer(prompt=None), "logprobs", "FATAL: it returns no token ids"),
        (answer(ids=(5, 6, 7)), "logprobs", "FATAL: it returns 2 log probabilities for 3 tokens"),
        (answer(ids=("5", "6")), "logprobs", "FATAL: a token id is no whole number"),
        (answer(ids=(5, -1)), "logprobs", "FATAL: a token id is no whole number, or below 0"),
        (answer(prompt=(1.5,)), "logprobs", "FATAL: a token id is no whole number"),
        (answer(logprobs=(-0.5, 0.5)), "logprobs", "FATAL: a log probability is above 0"),
        (answer(logprobs=(-0.5, None)), "logprobs", "FATAL: a log probability is above 0, or no number"),
        (
            answer(ids=(5,), logprobs=(-0.5,), token="token_id:9"),
            "logprobs",
            "FATAL: its log probabilities name other tokens than its token ids",
        ),
        ({"choices": []}, "text", "FATAL: its answer has another form than a chat completion"),
        ({"choices": "none"}, "text", "FATAL: its answer has another form"),
        ({"output": "responses"}, "text", "FATAL: its answer has another form"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_is_named(
    engine: ModelServer, given: dict[str, Any], level: str, finding: str
) -> None:
    engine.canned.append(given)
    code, report = report_of(engine.url)
    assert (code, report["capture_level"]) == (1, level)
    assert [each for each in report["findings"] if each.startswith(finding)]
    engine.canned.append(given)
    assert "cannot be trained on" in validate(engine.url).stdout


def test_an_engine_that_refuses_to_return_ids_cannot_be_trained_on(engine: ModelServer) -> None:
    engine.refused_fields = ("return_token_ids",)
    code, report = report_of(engine.url)
    assert (code, report["capture_level"]) == (1, "logprobs")


def test_log_probabilities_before_the_temperature_are_noted(engine: ModelServer) -> None:
    same = answer(ids=(5,), logprobs=(-0.5,))
    pair = [{"token": "t", "logprob": -0.5}, {"token": "u", "logprob": -1.5}]
    same["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = pair
    engine.canned += [same, same, same]
    code, report = report_of(engine.url)
    assert (code, report["logprobs_mode"]) == (0, "raw")
    assert "--logprobs-mode processed_logprobs" in report["findings"][0]


def test_an_engine_that_fails_is_named_with_what_it_said(engine: ModelServer) -> None:
    code, report = report_of(engine.url, model="none-such")
    assert (code, report["ok"], report["reachable"]) == (1, False, True)
    assert "the list of models has no 'none-such'" in report["findings"][0]
    assert "none-such` does not exist" in report["findings"][1]
    with held_port() as port:
        code, report = report_of(f"http://127.0.0.1:{port}")
    assert (code, report["ok"], report["reachable"]) == (1, False, False)
    assert "is its server running" in report["findings"][-1]
