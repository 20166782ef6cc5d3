"""What a model reads of an observation, and what an episode is worth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openenv.adapters.trl.episode import answer_of, reward_of
from openenv.errors import ConnectionLost, StepFailed, UsageError
from openenv.rollouts.content import refusal_of, text_of
from openenv.types import Observation, StepResult


class Board(Observation):
    cells: Any
    truncated: bool = False


class Story(Observation):
    chapter: int = 1
    text: str = ""


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        (Story(text="Once", reward=3, metadata={"a": 1}), "Once"),
        (Story(), '{"chapter":1,"text":""}'),
        (Board(cells=np.array([[1, 2], [3, 4]])), '{"cells":[[1,2],[3,4]]}'),
        (Board(cells=np.float32(0.5)), '{"cells":0.5}'),
        (Board(cells=b"\xff\x00"), '{"cells":"_wA="}'),
        (Board(cells=float("nan")), '{"cells":NaN}'),
        (Board(cells="row"), "row"),
        (Observation(reward=1), ""),
        ({"message": "hello", "rest": 1, "reward": 2}, "hello"),
        ({"board": "x.o", "done": False}, "x.o"),
        ("as it is", "as it is"),
        ([1, "two"], '[1,"two"]'),
    ],
)
def test_an_observation_as_text(observation: Any, text: str) -> None:
    assert text_of(observation) == text


def test_an_observation_that_cannot_be_text_says_what_helps() -> None:
    with pytest.raises(StepFailed, match="`chat` of the environment.*render="):
        answer_of(Board(cells=object()))


def called(**fields: Any) -> dict[str, Any]:
    return {"tool_name": "add", "result": None, "error": None, **fields}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, ""),
        (3, "3"),
        ("three", "three"),
        ({"sum": 3}, '{"sum":3}'),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "data": None}, "a\nb"),
        ({"content": [{"type": "text", "text": "3"}], "data": 3}, "3"),
        ({"data": "three", "content": []}, "three"),
    ],
)
def test_the_result_of_a_tool_as_text(result: Any, text: str) -> None:
    observation = called(result=result)
    assert refusal_of(observation) is None
    assert answer_of(observation) == text


def test_a_tool_that_failed_tells_the_model_and_one_out_of_reach_does_not_count() -> None:
    assert refusal_of(called(error={"error_type": "invalid_args", "message": "a is no number"})) == (
        "invalid_args: a is no number"
    )
    with pytest.raises(ConnectionLost, match="out of memory"):
        refusal_of(called(error={"error_type": "transport_error", "message": "out of memory"}))


def steps(*rewards: Any) -> list[StepResult[Any]]:
    return [StepResult(None, reward) for reward in rewards]


@pytest.mark.parametrize(
    ("name", "rewards", "reward"),
    [
        ("sum", (), 0.0),
        ("sum", (1, None, 0.5, True), 2.5),
        ("sum", (None, None), None),
        ("last", (), 0.0),
        ("last", (1, 2, None), 2.0),
        ("last", (None,), None),
    ],
)
def test_an_episode_is_worth_what_its_steps_gave(name: str, rewards: tuple[Any, ...], reward: float | None) -> None:
    assert reward_of(name)(steps(*rewards)) == reward


def test_a_reward_that_is_none_says_what_there_is() -> None:
    with pytest.raises(UsageError, match="'sum', 'last', None or a function"):
        reward_of("mean")
