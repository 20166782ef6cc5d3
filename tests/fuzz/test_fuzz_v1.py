"""The fuzz target, driven by Hypothesis: noise, frames that are nearly right, and frames with a wound."""

from __future__ import annotations

import json
import sys
import types

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from . import fuzz_v1

numbers = st.floats() | st.integers()
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(["column", "note", "path", "options", "metadata", "message", "code", "error", "data", "x"])
kinds = st.sampled_from([*fuzz_v1.KINDS, "close", "observation", "error", "StepTimeout", "EXECUTION_ERROR"])
messages = st.fixed_dictionaries(
    {},
    optional={
        "type": kinds | values,
        "data": st.dictionaries(fields, values | kinds, max_size=5) | values,
        "x": values,
    },
)
frames = messages.map(lambda message: json.dumps(message).encode())


@given(st.binary())
@example(b"")
@example(b"\xef\xbb\xbf{}")
@example(b'{"type":"step","type":"reset"}')
@example(b'{"type":"reset","data":' + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"}")
@example(b'{"type":"step","data":{"column":"x","note":1' + b"0" * 4299 + b"}}")
@example(b'{"type":"step","data":{"column":NaN}}')
@example(b'{"type":"error","data":{"error":"StepTimeout"}}')
def test_noise(data):
    fuzz_v1.one_input(data)


@given(frames)
def test_frames_that_are_nearly_right(frame):
    fuzz_v1.one_input(frame)


@given(frames, st.integers(min_value=0), st.binary(max_size=3), st.integers(0, 3))
def test_frames_with_a_wound(frame, place, inserted, removed):
    place %= len(frame)
    fuzz_v1.one_input(frame[:place] + inserted + frame[place + removed :])


def test_main_hands_the_target_to_atheris(monkeypatch):
    calls = []
    atheris = types.SimpleNamespace(
        Setup=lambda arguments, target: calls.append((arguments, target)), Fuzz=lambda: calls.append("fuzz")
    )
    monkeypatch.setitem(sys.modules, "atheris", atheris)
    monkeypatch.setattr(sys, "argv", ["fuzz_v1", "-runs=1"])
    fuzz_v1.main()
    assert calls == [(["fuzz_v1", "-runs=1"], fuzz_v1.one_input), "fuzz"]


def test_main_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "atheris", None)
    with pytest.raises(SystemExit, match="atheris is not installed"):
        fuzz_v1.main()
