"""What is recorded of one session."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from pydantic import Field, field_serializer

from openenv.errors import SessionLost, StepFailed, StepTimeout
from openenv.recording import Source, Subject, Tap
from openenv.types import Action, Observation

from .lines import Page

SUBJECT = Subject("counter", "1.2.0", "abc")


class Push(Action):
    by: float = 1.0


class Seen(Observation):
    value: Any = None


class Tight(Observation):
    number: float = 0.0
    word: str | None = None


def tap_on(page: Page) -> Tap:
    return Tap(page, SUBJECT.tail, "session")


def line_of(result: Any, error: Exception | None = None, action: Any = None) -> dict[str, Any]:
    page = Page()
    tap = tap_on(page)
    tap.do(Push() if action is None else action)
    tap.ended(result, error)
    (line,) = page.lines
    return line


def test_a_line_has_everything_that_the_page_reads_and_nothing_else() -> None:
    page = Page()
    tap = tap_on(page)
    tap.reset({"seed": 7, "level": "hard"})
    tap.ended(Seen(value=0), None)
    tap.do(Push(by=2.5))
    tap.ended(Seen(value=1, reward=0.5, done=True), None)
    first, second = page.lines
    common = {"episode_id", "session_id", "step", "observation", "reward", "terminated", "truncated", "done", "time"}
    common |= {"duration_s", "error", "environment", "versions", "schema"}
    assert first.keys() == common | {"seed", "arguments"}
    assert second.keys() == common | {"action"}
    assert (first["step"], first["seed"], first["arguments"]) == (0, 7, {"level": "hard"})
    assert second["action"] == {"metadata": {}, "by": 2.5}
    assert second["observation"] == {"metadata": {}, "value": 1}
    found = {name: second[name] for name in ("step", "reward", "terminated", "truncated", "done", "error")}
    assert found == {
        "step": 1, "reward": 0.5, "terminated": True, "truncated": False, "done": True, "error": None,
    }  # fmt: skip
    assert (second["environment"], second["schema"]) == ("counter", "abc")
    assert second["versions"]["environment"] == "1.2.0"


def test_times_are_when_it_was_asked_and_what_it_took() -> None:
    page = Page()
    page.epoch = 1e9
    tap = tap_on(page)
    tap.do(Push())
    tap.ended(Seen(), None)
    (line,) = page.lines
    assert line["time"] > 1e9
    assert 0 <= line["duration_s"] < 10


def test_episodes_are_called_as_the_client_says_or_after_the_session() -> None:
    page = Page()
    tap = tap_on(page)
    for arguments in ({}, {"episode_id": "mine"}, {"episode_id": None}):
        tap.reset(arguments)
        tap.ended(Seen(), None)
        tap.do(Push())
        tap.ended(Seen(), None)
    assert [(line["episode_id"], line["step"]) for line in page.lines] == [
        ("session-1", 0), ("session-1", 1), ("mine", 0), ("mine", 1), ("session-3", 0), ("session-3", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", [2**63, "a word", 1.5, True])
def test_a_seed_that_is_no_column_stays_an_argument(seed: Any) -> None:
    page = Page()
    tap = tap_on(page)
    tap.reset({"seed": seed})
    tap.ended(Seen(), None)
    assert (page.lines[0]["seed"], page.lines[0]["arguments"]) == (None, {"seed": seed})


def test_an_error_has_its_name_and_no_numbers() -> None:
    line = line_of(None, StepFailed("it broke"))
    assert line["error"] == "StepFailed: it broke"
    assert (line["observation"], line["reward"], line["terminated"], line["done"]) == (None, None, None, False)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_refused_is_an_error_and_never_a_number(reward: float) -> None:
    line = line_of({"value": 1, "reward": reward, "done": False})
    assert line["error"].startswith("StepFailed: the reward is ")
    assert (line["observation"], line["reward"]) == (None, None)


def test_a_field_that_cannot_be_written_is_the_error_that_the_client_gets() -> None:
    line = line_of(Seen(value=object()))
    assert line["error"].startswith("StepFailed: field 'value'")


def test_a_value_whose_code_raises_is_an_error() -> None:
    class Rude(Observation):
        value: int = 0

        @field_serializer("value")
        def _write(self, value: int) -> int:
            raise LookupError("not today")

    assert "not today" in line_of(Rude())["error"]


@pytest.mark.parametrize("reward", [1, True, np.float32(1.0), 10**30])
def test_rewards_are_of_one_type(reward: Any) -> None:
    found = line_of({"reward": reward, "done": False})["reward"]
    assert type(found) is float
    assert found == float(reward)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, "NaN"),
        ([1.0, -math.inf, None], [1.0, "-Infinity", None]),
        (b"abc", {"$bytes": "YWJj"}),
        ({"$array": 1}, {"$object": {"$array": 1}}),
        (np.float64(2.5), 2.5),
        ({"deep": [{"x": math.inf}]}, {"deep": [{"x": "Infinity"}]}),
    ],
)
def test_values_are_json_that_every_reader_takes(value: Any, written: Any) -> None:
    assert line_of(Seen(value=value))["observation"]["value"] == written


def test_nan_of_a_declared_number_is_a_text_too() -> None:
    line = line_of(Tight(number=math.nan), action=Push(by=-math.inf))
    assert line["observation"] == {"metadata": {}, "number": "NaN", "word": None}
    assert line["action"] == {"metadata": {}, "by": "-Infinity"}


def test_small_arrays_are_in_their_line() -> None:
    line = line_of(Seen(value=np.arange(3, dtype="<i2")))
    assert line["observation"]["value"] == {"$array": {"dtype": "<i2", "shape": [3], "data": "AAABAAIA"}}


def test_large_arrays_are_beside_it_as_files_of_numpy() -> None:
    page = Page()
    tap = tap_on(page)
    picture = np.arange(64 * 64, dtype="<f4").reshape(64, 64)
    tap.do(Push())
    tap.ended(Seen(value=picture), None)
    (blob,) = page.blobs
    content = b"".join(blob.parts)
    assert len(blob.token) == len(hashlib.sha256(content).hexdigest())
    assert page.texts[0].count(blob.token) == 1
    assert (np.load(io.BytesIO(content)) == picture).all()
    mark = page.lines[0]["observation"]["value"]["$array"]
    assert (mark["dtype"], mark["shape"]) == ("<f4", [64, 64])


@pytest.mark.parametrize("shape", [(5000,), (0,), (2, 0, 3), (71, 71)])
def test_arrays_of_every_shape_are_files_of_numpy(shape: tuple[int, ...]) -> None:
    from openenv.recording.storage import npy_of

    array = np.ones(shape, dtype="|u1")
    found = np.load(io.BytesIO(b"".join(npy_of("|u1", shape, array.tobytes()))))
    assert found.shape == shape
    assert (found == array).all()


def test_what_an_environment_changes_later_is_recorded_as_it_was() -> None:
    page = Page()
    tap = tap_on(page)
    board = [0, 0]
    action = Push(by=1.0)
    tap.do(action)
    action.by = 2.0
    tap.ended(Seen(value=board), None)
    board[0] = 9
    assert page.lines[0]["action"]["by"] == 1.0
    assert page.lines[0]["observation"]["value"] == [0, 0]


def test_a_call_that_was_given_up_is_recorded_as_such_whatever_becomes_of_it() -> None:
    page = Page()
    tap = tap_on(page)
    tap.do(Push())
    tap.ended(None, StepTimeout("too slow"))
    tap.ended(None, SessionLost("closed"))
    tap.ended(Seen(reward=1.0), None)
    (line,) = page.lines
    assert (line["error"], line["reward"]) == ("StepTimeout: too slow", None)


def test_a_session_that_went_on_from_another_one_says_so_once() -> None:
    page = Page()
    tap = tap_on(page)
    tap.continue_from(Source("other", "its episode", 4))
    for _ in range(2):
        tap.do(Push())
        tap.ended(Seen(), None)
    first, second = page.lines
    assert (first["step"], first["episode_id"], first["session_id"]) == (5, "its episode", "session")
    assert first["source"] == {"session_id": "other", "episode_id": "its episode", "step": 4}
    assert "source" not in second
    assert tap.place == Source("session", "its episode", 6)


def test_further_arguments_of_a_step_are_kept() -> None:
    page = Page()
    tap = tap_on(page)
    tap.do(Push(), {"timeout_s": 3})
    tap.ended(Seen(), None)
    assert page.lines[0]["step_arguments"] == {"timeout_s": 3}


def test_what_cannot_be_written_of_a_call_is_told_in_words() -> None:
    page = Page()
    tap = tap_on(page)
    tap.reset({"thing": object()})
    tap.ended(Seen(), None)
    assert "<object object" in page.lines[0]["arguments"]


class Rude(Mapping[str, Any]):
    """Raises whatever is done with it."""

    def __getitem__(self, key: str) -> Any:
        raise LookupError

    def __iter__(self) -> Any:
        raise LookupError

    def __len__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise LookupError


def test_what_cannot_even_be_told_in_words_harms_no_call() -> None:
    page = Page()
    tap = tap_on(page)
    tap.reset({"thing": Rude()})
    tap.ended(Seen(), None)
    tap.do({"thing": Rude()})
    tap.ended(Seen(reward=1.0), None)
    first, second = page.lines
    assert (first["arguments"], second["action"], second["reward"]) == ("<dict>", "<dict>", 1.0)


def test_what_could_not_be_sent_is_the_error_that_came_in_its_place() -> None:
    page = Page()
    tap = tap_on(page)
    tap.do(Push())
    tap.returned(Seen(reward=1.0))
    tap.settle(StepFailed("it is too large"))
    tap.settle(StepFailed("nobody asked"))
    tap.settle()
    (line,) = page.lines
    assert (line["error"], line["reward"], line["observation"]) == ("StepFailed: it is too large", None, None)


def test_text_that_is_no_unicode_harms_no_line() -> None:
    page = Page()
    tap = tap_on(page)
    tap.reset({"episode_id": "bad \ud800"})
    tap.ended(None, StepFailed("worse \udfff"))
    assert page.lines[0]["error"] == "StepFailed: worse ?"


def test_the_reply_of_a_server_of_v1_is_recorded_as_that_of_v2() -> None:
    page = Page()
    tap = tap_on(page)
    tap.do({"by": 1})
    asked = tap.asked
    assert asked is not None
    tap.answered(asked, {"observation": {"x": 1, "truncated": True}, "reward": 1, "done": True})
    (line,) = page.lines
    found = [line[name] for name in ("reward", "done", "terminated", "truncated", "observation")]
    assert found == [1.0, True, False, True, {"x": 1, "truncated": True}]


@pytest.mark.parametrize("payload", [{"reward": "much"}, {"observation": None}, {}])
def test_nonsense_from_a_server_is_a_line_too(payload: dict[str, Any]) -> None:
    page = Page()
    tap = tap_on(page)
    tap.do({})
    assert tap.asked is not None
    tap.answered(tap.asked, payload)
    assert page.lines[0]["observation"] is None


class Sealed(Observation):
    secret: str = Field(default="s", exclude=True)
    shown: int = 1


def test_models_are_written_as_they_write_themselves() -> None:
    assert json.loads(json.dumps(line_of(Sealed())["observation"])) == {"metadata": {}, "shown": 1}
