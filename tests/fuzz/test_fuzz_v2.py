"""The fuzz target, driven by Hypothesis: noise, frames that are nearly right, and frames with a wound."""

from __future__ import annotations

import sys
import types

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import to_json

from . import fuzz_v2

numbers = st.floats() | st.integers(-(2**63), 2**64 - 1)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text() | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=6) | st.sampled_from(["$bytes", "$array", "$object"]), inner, max_size=3)
    ),
    max_leaves=8,
)
ops = st.sampled_from(["open", "attach", "reset", "step", "state", "batch", "cancel", "close", "heartbeat", "fly"])
fields = st.sampled_from(["column", "note", "path", "options", "metadata", "message", "code", "error", "data", "x"])
actions = st.dictionaries(fields, values, max_size=4) | st.just({"column": 1})
parts = {
    "session": st.just("a") | st.text() | values,
    "seq": st.integers() | values,
    "action": actions | values,
    "kwargs": st.dictionaries(st.text(max_size=4), values, max_size=3) | values,
    "deadline_s": numbers,
    "wait_s": numbers | values,
    "token": st.text(),
    "target": st.integers(),
    "options": values,
    "x": values,
}
calls = st.fixed_dictionaries({"op": ops}, optional=parts) | st.just(
    {"op": "step", "session": "a", "seq": 1, "action": {"column": 1}}
)
requests = st.fixed_dictionaries(
    {"id": st.integers(-1, 3) | values, "op": ops | values},
    optional=parts | {"calls": st.lists(calls | values, max_size=10), "min_ready": st.integers()},
)
errors = st.dictionaries(fields, values | st.sampled_from(["StepTimeout", "EXECUTION_ERROR"]), max_size=5)
replies = st.fixed_dictionaries(
    {"id": st.sampled_from([1, 2, None]) | values},
    optional={"ok": st.just(True) | values, "error": errors | values, "more": values, "event": values, "x": values},
)
messages = requests | replies


def json_frame(message):
    return to_json(message, inf_nan_mode="constants", fallback=repr, bytes_mode="base64")


def msgpack_frame(message):
    try:
        return msgspec.msgpack.encode(message)
    except (UnicodeEncodeError, OverflowError):
        return b""


frames = messages.map(json_frame) | messages.map(msgpack_frame)


@given(st.binary())
@example(b"")
@example(b"\xef\xbb\xbf{}")
@example(b'{"id":1,"op":"reset","session":"a","seq":1,"kwargs":{"x":' + b"[" * 3000 + b"]" * 3000 + b"}}")
@example(b'{"id":1,"op":"step","session":"a","seq":1,"action":{"column":NaN}}')
@example(b'{"id":1,"op":"step","session":"a","seq":1,"action":{"column":1' + b"0" * 4299 + b"}}")
@example(b'{"id":1,"op":"batch","calls":[{"op":"step","session":"a","seq":1,"action":{"\\u0024bytes":"AA=="}}]}')
@example(b'{"id":1,"error":{"error":"StepTimeout","retry_after_s":[]}}')
@example(b"\x82\xa2id\x01\xa2op" + b"\x91" * 3000)
@example(b"\x82\xa2id\x01\xa2op\xc7\x05\x01\x03<i4\x00")
@example(b"\x81" * 5000)
def test_noise(data):
    fuzz_v2.one_input(data)


@given(frames)
def test_frames_that_are_nearly_right(frame):
    fuzz_v2.one_input(frame)


@given(frames, st.integers(min_value=0), st.binary(max_size=3), st.integers(0, 3))
def test_frames_with_a_wound(frame, place, inserted, removed):
    place %= len(frame) + 1
    fuzz_v2.one_input(frame[:place] + inserted + frame[place + removed :])


def test_main_hands_the_target_to_atheris(monkeypatch):
    calls = []
    atheris = types.SimpleNamespace(
        Setup=lambda arguments, target: calls.append((arguments, target)), Fuzz=lambda: calls.append("fuzz")
    )
    monkeypatch.setitem(sys.modules, "atheris", atheris)
    monkeypatch.setattr(sys, "argv", ["fuzz_v2", "-runs=1"])
    fuzz_v2.main()
    assert calls == [(["fuzz_v2", "-runs=1"], fuzz_v2.one_input), "fuzz"]


def test_main_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "atheris", None)
    with pytest.raises(SystemExit, match="atheris is not installed"):
        fuzz_v2.main()
