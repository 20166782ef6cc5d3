from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.protocol.jsonrpc import (
    JsonRpcErrorCode,
    RpcError,
    RpcRequest,
    encode,
    error_reply,
    read,
    read_one,
    result_reply,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def test_a_request():
    request = read_one(read(b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":1}}'))
    assert request == RpcRequest(1, "tools/list", {"a": 1}, True)
    assert read_one({"jsonrpc": "2.0", "method": "x", "params": None}) == RpcRequest(None, "x", {}, False)
    assert read_one({"jsonrpc": "2.0", "method": "x", "id": None}).expects


@pytest.mark.parametrize("text", [b"", b"{", b"nope", b"3", b'"a"', b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_is_a_parse_error(text):
    with pytest.raises(RpcError, match="Parse error") as caught:
        read(text)
    assert caught.value.code == JsonRpcErrorCode.PARSE_ERROR


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (3, "an object, not int"),
        ({}, '"jsonrpc": "2.0"'),
        ({"jsonrpc": "1.0", "method": "x"}, '"jsonrpc": "2.0"'),
        ({"jsonrpc": "2.0", "id": 1}, "needs a method"),
        ({"jsonrpc": "2.0", "method": 3}, "needs a method"),
        ({"jsonrpc": "2.0", "method": "x", "params": [1]}, "params must be an object"),
        ({"jsonrpc": "2.0", "method": "x", "id": True}, "id must be"),
        ({"jsonrpc": "2.0", "method": "x", "id": {}}, "id must be"),
        ({"jsonrpc": "2.0", "method": "x", "extra": 1}, "unknown keys: 'extra'"),
    ],
)
def test_what_is_no_request_says_why(value, why):
    with pytest.raises(RpcError, match=why) as caught:
        read_one(value)
    assert caught.value.code == JsonRpcErrorCode.INVALID_REQUEST


@given(json_values)
def test_any_json_is_a_request_or_a_fault(value):
    with contextlib.suppress(RpcError):
        assert isinstance(read_one(value), RpcRequest)


@given(json_values)
def test_results_arrive_as_they_are(value):
    assert json.loads(encode(result_reply(1, value))) == {"jsonrpc": "2.0", "id": 1, "result": value}


def test_errors():
    reply = error_reply("a", RpcError(JsonRpcErrorCode.INTERNAL_ERROR, "no", {"why": 1}))
    told = {"code": -32603, "message": "no", "data": {"why": 1}}
    assert json.loads(encode(reply)) == {"jsonrpc": "2.0", "id": "a", "error": told}


def test_a_result_that_cannot_be_written_is_an_error():
    reply = json.loads(encode(result_reply(7, object())))
    assert reply["id"] == 7
    assert reply["error"]["code"] == -32603
    assert "cannot be written" in reply["error"]["message"]
    assert json.loads(encode(result_reply(7, float("nan")))) == {"jsonrpc": "2.0", "id": 7, "result": None}
