"""Answers to a handshake that tell what is wrong with the connection."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from openenv.client.handshake_errors import handshake_error
from openenv.errors import ConnectionFailed, ConnectTimeout, NotReady, OpenEnvError, ProviderFailed

GONE = {"message": "the job is ERROR", "error": "ProviderFailed", "blame": "infrastructure", "retryable": False}


def told(status: int, body: Any) -> OpenEnvError | None:
    raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    error: Any = SimpleNamespace(response=SimpleNamespace(status=status, headers={}), raw_body=raw)
    return handshake_error("ws://there/ws", error)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_what_stands_in_between_may_say_that_the_place_is_gone(status: int) -> None:
    error = told(status, {**GONE, "job": "7"})
    assert type(error) is ProviderFailed
    assert str(error) == "ws://there/ws: the job is ERROR"
    assert (error.blame, error.retryable, error.data["job"]) == ("infrastructure", False, "7")


def test_or_that_it_is_only_the_road() -> None:
    assert type(told(502, {**GONE, "error": "ConnectionFailed"})) is ConnectionFailed
    assert type(told(503, {**GONE, "error": "NotReady"})) is NotReady
    assert type(told(504, {**GONE, "error": "ConnectTimeout"})) is ConnectTimeout


@pytest.mark.parametrize("name", ["SessionLost", "ProtocolViolation", "MissingExtra", "ServerFull", "StepFailed"])
def test_but_nothing_that_only_a_server_knows(name: str) -> None:
    error = told(502, {**GONE, "error": name})
    assert type(error) is ConnectionFailed
    assert error.retryable


@pytest.mark.parametrize(("wait", "read"), [(1.5, 1.5), (2, 2.0), ("soon", None), ([], None), (True, None)])
def test_a_wait_is_a_number_or_none(wait: Any, read: float | None) -> None:
    error = told(503, {**GONE, "error": "NotReady", "retry_after_s": wait})
    assert error is not None
    assert error.retry_after_s == read


@pytest.mark.parametrize(
    "body",
    [None, b"", b"<html>", b"\xff", [], "no", {}, {**GONE, "blame": "client"}, {**GONE, "error": "UnknownSession"}],
)
def test_what_says_nothing_of_the_kind_is_that_of_any_gateway(body: Any) -> None:
    error = told(502, body)
    assert type(error) is ConnectionFailed
    assert error.retryable
    assert "502" in str(error)


@pytest.mark.parametrize("status", [200, 404, 500])
def test_only_statuses_of_the_road_are_read_so(status: int) -> None:
    assert told(status, GONE) is None
