"""Served environments as tasks of Inspect AI, with Inspect's own mock model and with one of ours; no network."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

inspect_ai = pytest.importorskip("inspect_ai")

from inspect_ai.model import GenerateConfig, Model, ModelAPI, ModelOutput, ModelUsage, get_model, modelapi  # noqa: E402

from openenv.bench.served import ServedTarget  # noqa: E402
from openenv.errors import ConnectionFailed, ProviderFailed, UsageError  # noqa: E402
from openenv.evals import InspectAIHarness  # noqa: E402
from openenv.evals.evaluation import evaluate  # noqa: E402
from openenv.evals.inspect_bridge import environment_task  # noqa: E402
from openenv.evals.policy import RandomPolicy  # noqa: E402
from openenv.evals.server import EvalServer  # noqa: E402

# Inspect's own use of other libraries.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]
HERE = Path(__file__).parent


class Halving(ModelAPI):
    """A model that guesses in the middle of what is left, as a language model would say it."""

    async def generate(self, input: Any, tools: Any, tool_choice: Any, config: GenerateConfig) -> ModelOutput:  # noqa: A002
        low, high, guess = 1, 10, 0
        for message in input:
            if message.role == "assistant":
                guess = int("".join(filter(str.isdigit, message.text)))
            low = guess + 1 if "Too low" in message.text else low
            high = guess - 1 if "Too high" in message.text else high
        return ModelOutput.from_content("halving", f'I say\n```json\n{{"guess": {(low + high) // 2}}}\n```')


@modelapi(name="halving")
def halving() -> type[ModelAPI]:
    return Halving


@pytest.fixture(autouse=True)
def _what_inspect_leaves_is_gone_with_its_test() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module")
def guess() -> Iterator[str]:
    with ServedTarget("games:Guess", max_sessions=16, cwd=HERE) as server:
        yield server.url


@pytest.fixture(scope="module")
def counter() -> Iterator[str]:
    with ServedTarget("games:Counter", max_sessions=16, cwd=HERE) as server:
        yield server.url


def log_of(task: Any, model: Model, tmp_path: Path, **options: Any) -> Any:
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none", **options)
    return log


def saying(*outputs: Any) -> Model:
    """Inspect's own mock model, with so many answers."""
    answers = [ModelOutput.from_content("mock", each) if isinstance(each, str) else each for each in outputs]
    for answer in answers:
        answer.usage = ModelUsage()  # it would fetch a tokenizer, to count
    return get_model("mockllm/model", custom_outputs=answers)


def calling(**arguments: Any) -> ModelOutput:
    return ModelOutput.for_tool_call("mock", "add", arguments)


@pytest.mark.slow
def test_a_model_plays_the_tasks_of_a_split_by_its_answers(guess: str, tmp_path: Path) -> None:
    model = get_model("halving/one")
    log = log_of(environment_task(guess, split="test"), model, tmp_path)
    assert log.status == "success", log.error
    assert sorted(sample.id for sample in log.samples) == ["test-0", "test-1", "test-2", "test-3"]
    # 5 is tried first, then 2, then 1 or 3, then 4.
    scores = {sample.id: sample.scores["episode_return"].value for sample in log.samples}
    assert scores == {"test-0": 0.75, "test-1": 0.875, "test-2": 0.75, "test-3": 0.625}
    assert log.results.scores[0].metrics["mean"].value == 0.75
    first = log.samples[0]
    assert first.messages[0].role == "system"
    assert first.messages[1].text == "Guess a number from 1 to 10."
    assert first.scores["episode_return"].metadata["end"] == "terminated"


def test_the_harness_runs_it_by_its_task(guess: str, tmp_path: Path) -> None:
    task = environment_task(guess, seeds="0-1", max_turns=3)
    model = saying("5", '{"guess": 5}', '{"guess": "five"}', "none", "none", "none", "none")
    harness = InspectAIHarness(log_dir=str(tmp_path))
    options = {"task": task, "model": model, "display": "none", "max_samples": 1}
    scores = harness.run("", {}, "guess", options)
    assert set(scores) == {"mean", "stderr"}
    assert scores["mean"] == -0.125  # of the one that has a reward; the other did nothing


def test_an_answer_that_is_no_action_is_told_to_the_model(guess: str, tmp_path: Path) -> None:
    model = saying("what?", '{"guess": "five"}', '{"guess": 3}')
    log = log_of(environment_task(guess, seeds=[4], max_turns=3), model, tmp_path)
    (sample,) = log.samples
    said = [message.text for message in sample.messages if message.role == "user"]
    assert "one complete JSON object" in said[1]
    assert "guess" in said[2]
    assert said[3] in {"Too low.", "Too high.", "Right."}
    score = sample.scores["episode_return"]
    assert score.metadata["steps"] == 1


def test_an_episode_without_a_reward_has_no_score(guess: str, tmp_path: Path) -> None:
    log = log_of(environment_task(guess, seeds=[4], max_turns=1), saying("no"), tmp_path)
    assert log.status == "success"
    assert math.isnan(log.samples[0].scores["episode_return"].value)


def test_a_failure_of_the_environment_is_an_error_and_no_score(guess: str, tmp_path: Path) -> None:
    task = environment_task(guess, seeds=[4])
    log = log_of(task, saying('{"guess": 99}'), tmp_path)
    assert log.status == "error"
    assert "out of order" in log.error.message
    with pytest.raises(ProviderFailed, match="out of order"):
        InspectAIHarness(log_dir=str(tmp_path)).run(
            "", {}, "guess", {"task": task, "model": saying('{"guess": 99}'), "display": "none"}
        )


@pytest.mark.slow
def test_a_model_calls_the_tools_of_an_environment(counter: str, tmp_path: Path) -> None:
    model = saying(calling(by=1), calling(by=-1), calling(by=2), "never said")
    log = log_of(environment_task(counter, seeds=[1]), model, tmp_path)
    assert log.status == "success", log.error
    (sample,) = log.samples
    assert sample.scores["episode_return"].value == 3.0
    said = [message for message in sample.messages if message.role == "tool"]
    assert [message.text for message in said[::2]] == ["1", "3\n(the episode is over)"]
    assert said[1].error is not None
    assert "never less" in said[1].error.message


def test_an_answer_without_a_call_ends_an_episode_of_tools(counter: str, tmp_path: Path) -> None:
    log = log_of(environment_task(counter, seeds=[1]), saying(calling(by=2), "that will do"), tmp_path)
    score = log.samples[0].scores["episode_return"]
    assert (score.value, score.metadata["end"]) == (2.0, "not over")


def test_what_is_not_there_is_said_at_once(guess: str) -> None:
    with pytest.raises(UsageError, match="train"):
        environment_task(guess, split="train")
    with pytest.raises(UsageError, match="seeds"):
        environment_task(guess, split="test", seeds="1")
    with pytest.raises(UsageError, match="3 episodes.*2 seeds"):
        environment_task(guess, seeds=[1, 2], episodes=3)
    with pytest.raises(ConnectionFailed):
        environment_task("127.0.0.1:9")


async def test_the_random_policy_calls_tools_too(counter: str) -> None:
    served = EvalServer(counter)
    policy = RandomPolicy(served.action_schema(), served.tools())
    report = await evaluate(policy, range(4), counter, max_steps=20)
    assert report.summary.scored == 4, report.summary.examples
    with pytest.raises(UsageError, match="no tools"):
        RandomPolicy(served.action_schema(), [])
