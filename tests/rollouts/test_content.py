"""What a model reads of an observation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openenv import Chat
from openenv.errors import ConnectionLost
from openenv.rollouts.content import content_of, refusal_of, text_of
from openenv.types import Observation


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
    assert content_of(observation) == (text, [])


def test_a_tool_that_failed_tells_the_model_and_one_out_of_reach_does_not_count() -> None:
    assert refusal_of(called(error={"error_type": "invalid_args", "message": "a is no number"})) == (
        "invalid_args: a is no number"
    )
    with pytest.raises(ConnectionLost, match="out of memory"):
        refusal_of(called(error={"error_type": "transport_error", "message": "out of memory"}))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{a}|{b}|{c}", "one|2.5|"),
        ("{{{a}}}", "{one}"),
        ("{d.e}, {d.f.1}", '{"x":[1,true]}, second'),
        ("{lines}", "up\ndown"),
        ("{d.f}{none}", "first\nsecond"),
        ("{a}\n\n{c}", "one"),
        ("", ""),
    ],
)
def test_a_template_inserts_fields(template: str, text: str) -> None:
    nested = {"e": {"x": [1, True]}, "f": ["first", "second"]}
    seen = {"a": "one", "b": 2.5, "c": None, "d": nested, "lines": ("up", "down"), "none": [], "reward": 1.0}
    assert content_of(seen, Chat(observation=template)) == (text, [])
