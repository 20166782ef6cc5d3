"""Whatever clients ask for, in whatever order: each request is answered exactly once, and nothing is left."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ..asynchronous import until
from .probe import AsyncProbe, InlineProbe, ProbeEnvironment
from .test_v2_connection import Client, server_of

names = st.sampled_from(["a", "b", "c"])
kinds = st.sampled_from(["ok", "ok", "hang", "raise", "invalid", "object"])
counted = st.fixed_dictionaries({"op": st.just("step"), "session": names, "kind": kinds, "ahead": st.integers(-1, 2)})
calls = st.one_of(
    st.fixed_dictionaries({"op": st.just("open"), "session": names}),
    counted,
    counted,
    st.fixed_dictionaries({"op": st.just("state"), "session": names}),
    st.fixed_dictionaries({"op": st.just("close"), "session": names}),
)
requests = st.one_of(
    calls,
    calls,
    st.fixed_dictionaries({"op": st.just("cancel"), "back": st.integers(1, 6)}),
    st.fixed_dictionaries({"op": st.just("attach"), "session": names}),
    st.fixed_dictionaries({"op": st.just("dance")}),
    st.fixed_dictionaries(
        {
            "op": st.just("batch"),
            "calls": st.lists(calls, min_size=1, max_size=5),
            "min_ready": st.none() | st.integers(1, 3),
            "wait_s": st.none() | st.just(0),
        }
    ),
    st.fixed_dictionaries({"op": st.just("pause")}),
)


class Story:
    """Two clients of one server, and what they have asked for."""

    def __init__(self, environment: Any):
        self.server = server_of(environment, max_sessions=2, max_in_flight=3)
        self.clients = [Client(self.server), Client(self.server, "openenv.v2.msgpack")]
        self.asked: list[Counter[int]] = [Counter(), Counter()]

    async def tell(self, who: int, request: dict[str, Any]) -> None:
        op, fields = request["op"], {key: value for key, value in request.items() if key != "op"}
        if op == "pause":
            await asyncio.sleep(0.001)
            return
        if op == "cancel":
            fields = {"target": max(1, self.clients[who]._last_id - fields["back"])}
        elif op == "attach":
            session = self.server.manager.find(fields["session"])
            fields["token"] = getattr(session and session.user, "token", "")
        elif op == "batch":
            fields["calls"] = [{"op": call["op"], **self._call(call)} for call in fields["calls"]]
        else:
            fields = self._call(request)
        number = self.clients[who].tell(op, **fields)
        self.asked[who][number] = len(fields["calls"]) if op == "batch" else 1

    def answered(self, who: int) -> Counter[int]:
        """How many answers each request has had; those of a batch count for each of its calls."""
        counts: Counter[int] = Counter()
        inbox = self.clients[who]._inbox
        for _ in range(inbox.qsize()):
            message = inbox.get_nowait()
            inbox.put_nowait(message)
            if "event" not in message:
                counts[message["id"]] += len(message["results"]) if "results" in message else 1
        return counts

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        fields = {key: value for key, value in call.items() if key == "session"}
        if call["op"] == "step":
            session = self.server.manager.find(call["session"])
            v2_session = session and session.user
            fields["seq"] = max(1, (v2_session.sequence.accepted if v2_session else 0) + call["ahead"])
            fields["action"] = {"kind": call["kind"]}
        return fields


@pytest.mark.parametrize("environment", [InlineProbe, AsyncProbe, ProbeEnvironment])
@settings(max_examples=60)
@given(script=st.lists(st.tuples(st.integers(0, 1), requests), max_size=25))
def test_every_request_is_answered_once(environment, script):
    async def play() -> None:
        story = Story(environment)
        for who, request in script:
            await story.tell(who, request)
        for who in (0, 1):
            for name in "abc":
                await story.tell(who, {"op": "close", "session": name})
        await until(
            lambda: all(sum(story.answered(who).values()) >= sum(story.asked[who].values()) for who in (0, 1))
        )
        assert [story.answered(who) for who in (0, 1)] == story.asked
        await until(lambda: story.server.active_sessions == 0)
        for client in story.clients:
            await client.connection.aclose()
        await story.server.aclose()

    asyncio.run(play())
