"""What the local proxy says on the way, to either side."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import pytest

from openenv.errors import ConnectionFailed, ConnectTimeout, NotReady, OpenEnvError, Unauthorized, UsageError
from openenv.providers.sandbox.relay import ProxyTimeouts, SandboxRoute, answer_of
from openenv.providers.sandbox.service import RemoteSandbox

from .upstream import Place


async def route(shows_key: bool = True) -> SandboxRoute:
    return SandboxRoute(
        "name", ["first-key", "second-key"], cast(RemoteSandbox, Place("https://there")), ProxyTimeouts(), shows_key
    )


async def test_any_key_of_the_deployment_lets_in_and_nothing_else() -> None:
    way = await route()
    assert way.admit([(b"Authorization", b"Bearer second-key")]) == b"second-key"
    assert way.admit([(b"authorization", b"bearer  first-key ")]) == b"first-key"
    for wrong in (b"Bearer", b"Bearer first-key2", b"Basic first-key", b"first-key", b"Bearer \xff"):
        with pytest.raises(Unauthorized):
            way.admit([(b"authorization", wrong)])
    with pytest.raises(Unauthorized):
        way.admit([])


async def test_what_is_for_one_connection_alone_goes_no_further() -> None:
    told = (await route()).outward(
        [
            (b"Host", b"127.0.0.1:1"),
            (b"Connection", b"keep-alive, X-Hop"),
            (b"X-Hop", b"1"),
            (b"Keep-Alive", b"5"),
            (b"Transfer-Encoding", b"chunked"),
            (b"Authorization", b"Bearer first-key"),
            (b"X-Mine", b"yes"),
        ],
        b"first-key",
    )
    assert told == [
        (b"x-mine", b"yes"),
        (b"Authorization", b"Bearer token-of-the-hub"),
        (b"x-openenv-key", b"first-key"),
    ]


async def test_a_server_without_keys_is_shown_none() -> None:
    told = (await route(shows_key=False)).outward([], b"first-key")
    assert told == [(b"Authorization", b"Bearer token-of-the-hub")]


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (b"/web/", b"/name/web/"),
        (b"https://there/web?a=1#b", b"/name/web?a=1#b"),
        (b"https://elsewhere/web", b"https://elsewhere/web"),
        (b"beside", b"beside"),
    ],
)
async def test_places_are_moved_behind_the_path(there: bytes, here: bytes) -> None:
    assert (await route()).inward([(b"Location", there)], "https://there") == [(b"location", here)]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unauthorized("no"), 401),
        (UsageError("no such"), 404),
        (NotReady("soon"), 503),
        (ConnectTimeout("late"), 504),
        (ConnectionFailed("cut"), 502),
        (ConnectionFailed("half of a pair: \ud800"), 502),
        (NotReady("soon", data={"left_s": float("inf")}), 503),
    ],
)
def test_every_error_has_its_status(error: OpenEnvError, status: int) -> None:
    answer = answer_of(error)
    assert answer.status_code == status
    assert json.loads(answer.body)["blame"] == error.blame
    assert (b"content-length", str(len(answer.body)).encode()) in answer.raw_headers


@pytest.mark.parametrize("name", ["connect_s", "read_s", "ping_s"])
def test_a_patience_of_no_time_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        ProxyTimeouts(**{name: 0.0})


def test_a_route_does_not_show_its_keys() -> None:
    assert "first-key" not in repr(asyncio.run(route()))
