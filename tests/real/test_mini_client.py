"""The client that was written from docs/protocol.md alone, against servers as users start them."""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from .. import mini_client
from ..cli.process import Serving, serving
from ..cli.projects import write_module
from ..mini_client import CODECS, Array, Failed, Json, Lasting, MiniClient, MiniClientV1, Msgpack

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), pytest.mark.slow]

# Answers what it is given; a step may wait at a gate.
ANSWERING = """
    from typing import Any

    from openenv import Action, Environment, Observation, State


    class Say(Action):
        value: Any = None
        gate: str | None = None
        fail: bool = False


    class Heard(Observation):
        value: Any = None


    class Answering(Environment[Say, Heard, State]):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            self._steps = 0

        def reset(self, seed=None, episode_id=None, value=None, **kwargs):
            self._steps = 0
            return Heard(value=value)

        def step(self, action, timeout_s=None, **kwargs):
            self._steps += 1
            if action.gate is not None:
                with open(action.gate + ".reached", "wb", buffering=0) as reached:
                    reached.write(b"1")
                with open(action.gate, "rb", buffering=0) as gate:
                    gate.read(1)
            if action.fail:
                raise ValueError("as it was asked to")
            return Heard(value=action.value, reward=float(self._steps))

        @property
        def state(self):
            return State(step_count=self._steps)
"""

VALUES = [
    None,
    "text",
    2**64 - 1,
    -(2**63),
    [1.5, float("inf"), -float("inf")],
    b"",
    b"\x00\xff",
    Array("<u2", (1, 2), b"\x01\x00\x02\x00"),
    Array("<f8", (), bytes(8)),
    Array("<f4", (0, 3), b""),
    {"nested": [Array("|b1", (1,), b"\x01"), b"x"]},
    {"$bytes": b"x"},
    {"$array": {"dtype": "<u2"}},
    {"$object": {"$object": 3}},
    {"$bytes": 1, "beside": 2},
    {"$other": 1},
]

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def benchmark() -> Iterator[str]:
    """Address of the bundled environment."""
    with serving("benchmark") as server:
        yield ws(server)


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an environment that answers what it is given."""
    with serving_answering(tmp_path_factory.mktemp("answering")) as server:
        yield ws(server)


@pytest.fixture(params=CODECS.values(), ids=CODECS.keys())
def codec(request: pytest.FixtureRequest) -> Json | Msgpack:
    return request.param()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.close()


class Gate:
    """Where a step in another process waits to be let pass: FIFOs, to which either side may come first."""

    def __init__(self, path: Path):
        reached = path.with_name(f"{path.name}.reached")
        self.action = {"gate": str(path)}
        self._files = []
        for fifo in (path, reached):
            os.mkfifo(fifo)
            self._files.append(os.open(fifo, os.O_RDWR))

    async def reached(self) -> None:
        """The step stands at the gate: it runs."""
        loop, seen = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._files[1], seen.set)
        try:
            await seen.wait()
        finally:
            loop.remove_reader(self._files[1])

    def open(self) -> None:
        os.write(self._files[0], b"1")

    def close(self) -> None:
        for file in self._files:
            os.close(file)


def serving_answering(folder: Path, *arguments: str):
    write_module(folder / "answering.py", ANSWERING)
    return serving("answering:Answering", *arguments, cwd=folder)


def ws(server: Serving) -> str:
    return server.url.replace("http", "ws", 1) + "/ws"


def name() -> str:
    """An id that no session had before."""
    return f"session-{next(_numbers)}"


@contextmanager
def fails(error: str, blame: str = "client") -> Iterator[None]:
    with pytest.raises(Failed) as caught:
        yield
    assert (caught.value.name, caught.value.fault["blame"]) == (error, blame), caught.value.fault


async def opened(client: MiniClient) -> str:
    session = name()
    await client.call("open", session=session)
    return session


async def steps_taken(client: MiniClient, session: str) -> int:
    return (await client.call("state", session=session))["state"]["step_count"]


def step(session: str, seq: int, **action: object) -> dict:
    """A call of a batch."""
    return {"op": "step", "session": session, "seq": seq, "action": action}


# The client itself


def test_the_client_knows_nothing_of_the_package():
    tree = ast.parse(Path(mini_client.__file__).read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import leads to tests that use the package"
            imported.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call):
            assert getattr(node.func, "id", "") not in {"__import__", "exec", "eval"}
    assert imported <= sys.stdlib_module_names | {"msgspec", "websockets"}
    assert "importlib" not in imported


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_its_codecs_round_trip(codec, value):
    assert codec.decode(codec.encode({"value": value})) == {"value": value}


def test_its_codecs_write_what_the_page_shows():
    array = Array("<u2", (1, 2), b"\x01\x00\x02\x00")
    tagged = {"$array": {"dtype": "<u2", "shape": [1, 2], "data": "AQACAA=="}}
    assert json.loads(Json().encode(array)) == tagged
    shown = "c7 19 01 03 3c 75 32 02 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 01 00 02 00"
    assert Msgpack().encode(array) == bytes.fromhex(shown)
    assert Json().decode('[{"$object": {"$bytes": {"$bytes": "eA=="}}}, NaN]')[0] == {"$bytes": b"x"}


@pytest.mark.parametrize(
    ("dtype", "shape", "data"), [(">u2", (1,), b"\0\0"), ("<u2", (2,), b"\0\0"), ("|u1", (1,) * 33, b"\0")]
)
def test_its_arrays_are_whole(dtype, shape, data):
    with pytest.raises(ValueError, match="element type|dimensions|bytes"):
        Array(dtype, shape, data)


# One session


async def test_hello(benchmark, codec):
    async with MiniClient(benchmark, codec) as client:
        hello = client.hello
    assert (hello["protocol"], hello["environment"]) == (2, "benchmark")
    assert hello["limits"].keys() >= {"max_message_bytes", "max_sessions", "max_in_flight", "max_batch"}
    assert set(hello["capabilities"]) >= {"attach", "batch", "cancel"}
    assert hello.keys() >= {"server", "heartbeat_s", "resume_window_s", "worker"}


async def test_an_episode(benchmark, codec):
    async with MiniClient(benchmark, codec) as client:
        granted = await client.call("open")
        session = granted["session"]
        assert granted["seq"] == 0
        assert granted["slot"]["active_sessions"] >= 1

        start = await client.call("reset", session=session, seq=1, kwargs={"seed": 3})
        assert start["reward"] is None
        assert (start["done"], start["terminated"], start["truncated"]) == (False, False, False)
        outcome = await client.call("step", session=session, seq=2, action={"wait_seconds": 0})
        assert outcome["observation"]["step_count"] == 1
        assert "metadata" in outcome["observation"]
        assert "metadata" not in outcome
        assert isinstance(outcome["reward"], float)
        assert await steps_taken(client, session) == 1


async def test_opening_twice_opens_once(benchmark, codec):
    async with MiniClient(benchmark, codec) as client:
        session = name()
        first = await client.call("open", session=session)
        assert first["session"] == session
        await client.call("reset", session=session, seq=1)
        again = await client.call("open", session=session)
        assert {**again, "id": first["id"], "seq": 0} == first
        assert again["seq"] == 1


async def test_a_repeated_call_is_executed_once(answering, codec):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        first = await client.call("step", session=session, seq=1, action={"value": 1})
        again = await client.call("step", session=session, seq=1, action={"value": 1})
        assert again == {**first, "id": again["id"]}
        assert again["id"] > first["id"]
        assert await steps_taken(client, session) == 1


async def test_a_call_repeated_while_it_runs_is_executed_once(answering, codec, gate):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        numbers = [await client.send("step", session=session, seq=1, action=gate.action) for _ in range(2)]
        gate.open()
        first, second = [await client.next_reply(number) for number in numbers]
        assert first == {**second, "id": first["id"]}
        assert await steps_taken(client, session) == 1


@pytest.mark.parametrize("seq", [1, 4, 9])
async def test_a_wrong_number_is_refused(answering, codec, seq):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        await client.call("reset", session=session, seq=1)
        await client.call("step", session=session, seq=2, action={})
        with fails("SequenceError"):
            await client.call("step", session=session, seq=seq, action={})
        await client.call("step", session=session, seq=3, action={})
        assert await steps_taken(client, session) == 2


async def test_which_failures_use_a_number(answering, codec):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        with fails("InvalidAction"):
            await client.call("step", session=session, seq=1)
        with fails("InvalidAction"):
            await client.call("step", session=session, seq="1", action={})
        with fails("InvalidAction"):
            await client.call("step", session=session, seq=1, action={}, unknown=1)
        with fails("InvalidAction"):
            await client.call("step", session=session, seq=1, action={}, deadline_s=0)
        with fails("InvalidAction"):
            await client.call("step", session=session, seq=1, action={"fail": "no bool"})
        with fails("InvalidAction"):
            await client.call("step", session=session, seq=2, action=5)
        with fails("StepFailed", "environment"):
            await client.call("step", session=session, seq=3, action={"fail": True})
        with fails("StepFailed", "environment"):
            await client.call("step", session=session, seq=3, action={"fail": True})
        await client.call("step", session=session, seq=4, action={}, deadline_s=None)
        assert await steps_taken(client, session) == 2


async def test_faults_of_an_action_are_told_from_those_of_the_request(answering, codec):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        faults = []
        for fields in ({"seq": "1", "action": {}}, {"seq": 1, "action": 5}, {"seq": 2, "action": {"fail": "x"}}):
            with pytest.raises(Failed) as caught:
                await client.call("step", session=session, **fields)
            assert caught.value.fault["code"] == "VALIDATION_ERROR"
            faults += caught.value.fault["data"]["errors"]
        assert [fault["type"] == "message" for fault in faults] == [True, False, False]
        assert [fault["loc"] for fault in faults] == [["seq"], ["action"], ["fail"]]
        assert all(fault["msg"] for fault in faults)


async def test_close_may_be_repeated(benchmark, codec):
    async with MiniClient(benchmark, codec) as client:
        session = await opened(client)
        for _ in range(2):
            reply = await client.call("close", session=session)
            assert reply.keys() == {"id", "ok"}
        await client.call("close", session=name())
        with fails("UnknownSession"):
            await client.call("state", session=session)


async def test_close_does_not_wait_for_its_turn(answering, codec, gate):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        running = await client.send("step", session=session, seq=1, action=gate.action)
        waiting = await client.send("step", session=session, seq=2, action={})
        await gate.reached()
        await client.call("close", session=session)
        for number in (running, waiting):
            assert (await client.next_reply(number))["error"]["error"] == "SessionLost"
        gate.open()
        assert client.events == []


async def test_values_travel(answering, codec):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        for seq, value in enumerate(VALUES, 1):
            outcome = await client.call("step", session=session, seq=seq, action={"value": value})
            assert outcome["observation"]["value"] == value
        start = await client.call("reset", session=session, seq=len(VALUES) + 1, kwargs={"value": b"\xff"})
        assert start["observation"]["value"] == b"\xff"


# One connection


async def test_heartbeat(benchmark, codec):
    async with MiniClient(benchmark, codec) as client:
        assert await client.call("heartbeat") == {"id": 1, "ok": True}


async def test_schemas_are_told(benchmark, codec):
    """`hello` has a hash of each; equal ones mean that nothing has changed."""
    async with MiniClient(benchmark, codec) as client:
        schemas = (await client.call("schema"))["schemas"]
        assert set(schemas) == set(client.hello["schema"]) == {"action", "observation", "state"}
        assert schemas["observation"]["type"] == "object"
        again = (await client.call("schema"))["schemas"]
    async with MiniClient(benchmark, codec) as another:
        assert (another.hello["schema"], again) == (client.hello["schema"], schemas)


async def test_requests_need_not_wait_for_replies(answering, codec):
    async with MiniClient(answering, codec) as client:
        session = name()
        await client.send("open", session=session)
        await client.send("reset", session=session, seq=1)
        await client.send("step", session=session, seq=2, action={"value": "a"})
        await client.send("state", session=session)
        replies = await client.replies(4)
        assert [reply.get("ok") for reply in replies] == [True] * 4, replies
        assert replies[3]["state"]["step_count"] == 1


async def test_what_finishes_first_is_answered_first(answering, codec, gate):
    async with MiniClient(answering, codec) as client:
        slow, quick = await opened(client), await opened(client)
        held = await client.send("step", session=slow, seq=1, action=gate.action)
        behind = await client.send("step", session=slow, seq=2, action={})
        free = await client.send("step", session=quick, seq=1, action={})
        (first,) = await client.replies(1)
        gate.open()
        assert [first["id"]] + [reply["id"] for reply in await client.replies(2)] == [free, held, behind]


async def test_an_unknown_op(benchmark, codec):
    async with MiniClient(benchmark, codec) as client:
        with fails("UnknownMessage"):
            await client.call("reboot")
        await client.call("heartbeat")


@pytest.mark.parametrize(
    "request_map",
    [
        {"op": "heartbeat"},
        {"id": 0, "op": "heartbeat"},
        {"id": 5, "op": "heartbeat"},
        {"id": 4, "op": "heartbeat"},
        {"id": True, "op": "heartbeat"},
        {"id": 6.0, "op": "heartbeat"},
        {"id": 2**63, "op": "heartbeat"},
        [],
        "text",
    ],
    ids=repr,
)
async def test_what_is_no_request(benchmark, codec, request_map):
    async with MiniClient(benchmark, codec) as client:
        await client.socket.send(codec.encode({"id": 5, "op": "heartbeat"}))
        assert await client.next_reply(5) == {"id": 5, "ok": True}
        await client.socket.send(codec.encode(request_map))
        assert (await client.next_reply(None))["error"]["error"] == "InvalidMessage"
        await client.socket.send(codec.encode({"id": 6, "op": "heartbeat"}))
        assert await client.next_reply(6) == {"id": 6, "ok": True}


@pytest.mark.parametrize(
    ("writer", "frame"),
    [
        ("json", "{"),
        ("json", b"{}"),
        ("json", '{"id":1,"op":"step","session":"s","seq":1,"action":{"$bytes":"!"}}'),
        ("msgpack", b""),
        ("msgpack", b"\xc1"),
        ("msgpack", b"\x80\x80"),
        ("msgpack", "{}"),
    ],
    ids=repr,
)
async def test_a_broken_frame(benchmark, writer, frame):
    async with MiniClient(benchmark, CODECS[writer]()) as client:
        await client.socket.send(frame)
        assert (await client.next_reply(None))["error"]["error"] == "InvalidMessage"
        await client.call("heartbeat")


async def test_a_broken_array_in_an_action_fails_its_step_alone(answering):
    broken = msgspec.msgpack.Ext(1, b"\x03<u2\x01\x02" + bytes(7) + b"a")
    async with MiniClient(answering, Msgpack()) as client:
        session = await opened(client)
        with fails("InvalidAction"):
            await client.call("step", session=session, seq=1, action={"value": broken})
        await client.call("step", session=session, seq=2, action={})


async def test_a_message_over_the_limit_ends_the_connection(tmp_path, codec):
    with serving_answering(tmp_path, "--max-message-mb", "0.125") as server:
        async with MiniClient(ws(server), codec) as client:
            size = client.hello["limits"]["max_message_bytes"]
            await client.send("step", session="s", seq=1, action={"value": "x" * size})
            assert (await client.next_reply(None))["error"]["error"] == "MessageTooLarge"
            with pytest.raises(ConnectionClosed) as caught:
                await client.frame()
            assert caught.value.rcvd.code == 1009


async def test_a_server_that_stops_says_so(tmp_path, codec):
    with serving_answering(tmp_path, "--grace", "8") as server:
        async with MiniClient(ws(server), codec) as client:
            session = await opened(client)
            ending = asyncio.create_task(asyncio.to_thread(server.end, signal.SIGTERM))
            assert (await client.event("draining"))["grace_s"] == 8
            with fails("Draining", "infrastructure"):
                await client.call("open")
            await client.call("step", session=session, seq=1, action={})
            await client.call("close", session=session)
            with pytest.raises(ConnectionClosed) as caught:
                await client.frame()
            assert caught.value.rcvd.code == 1012
            await ending


# Batches


async def test_a_bad_call_of_a_batch_fails_alone(answering, codec):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        calls = [
            {"op": "open", "session": (fresh := name())},
            {"op": "reset", "session": session, "seq": 1},
            step(session, 2, fail="no bool"),
            step(session, 3, value=7),
            {"op": "state", "session": session},
            {"op": "state", "session": "nobody"},
            {"op": "heartbeat"},
            {"op": "step", "session": session, "seq": 4},
            {**step(session, 4), "id": 9},
            5,
            {"op": "close", "session": "nobody"},
        ]
        (results,) = await client.batch(calls)
        by_call = {result["call"]: result for result in results}
        assert sorted(by_call) == list(range(len(calls)))
        good = {call for call, result in by_call.items() if result.get("ok")}
        assert good == {0, 1, 3, 4, 10}
        names = {call: result["error"]["error"] for call, result in by_call.items() if call not in good}
        expected = dict.fromkeys((2, 7, 8, 9), "InvalidAction")
        assert names == {**expected, 5: "UnknownSession", 6: "UnknownMessage"}
        assert {call: result.get("session") for call, result in by_call.items()} == {
            **dict.fromkeys((1, 2, 3, 4, 7, 8), session),
            **dict.fromkeys((5, 10), "nobody"),
            **dict.fromkeys((6, 9)),
            0: fresh,
        }
        assert by_call[3]["observation"]["value"] == 7
        assert by_call[4]["state"]["step_count"] == 1
        assert "id" not in by_call[1]


async def test_a_batch_in_parts(answering, codec, gate):
    async with MiniClient(answering, codec) as client:
        slow, *quick = [await opened(client) for _ in range(4)]
        calls = [step(slow, 1, **gate.action), *(step(session, 1) for session in quick)]
        number = await client.send("batch", calls=calls, min_ready=3)
        part = await client.next_reply(number)
        assert {result["call"] for result in part["results"]} == {1, 2, 3}
        assert part["more"] is True
        gate.open()
        rest = await client.next_reply(number)
        assert [result["call"] for result in rest["results"]] == [0]
        assert rest["more"] is False


async def test_a_batch_that_sends_what_is_ready_after_a_while(answering, codec, gate):
    async with MiniClient(answering, codec) as client:
        slow, quick = await opened(client), await opened(client)
        number = await client.send("batch", calls=[step(slow, 1, **gate.action), step(quick, 1)], wait_s=0)
        part = await client.next_reply(number)
        assert ([result["call"] for result in part["results"]], part["more"]) == ([1], True)
        gate.open()
        rest = await client.next_reply(number)
        assert ([result["call"] for result in rest["results"]], rest["more"]) == ([0], False)


async def test_too_many_calls_of_a_session_are_refused(answering, codec, gate):
    async with MiniClient(answering, codec) as client:
        session, other = await opened(client), await opened(client)
        waiting = client.hello["limits"]["max_in_flight"]
        running = await client.send("step", session=session, seq=1, action=gate.action)
        await gate.reached()
        numbers = [await client.send("step", session=session, seq=seq, action={}) for seq in range(2, waiting + 2)]
        with fails("TooManyCalls", "infrastructure"):
            await client.call("step", session=session, seq=waiting + 2, action={})
        await client.call("step", session=other, seq=1, action={})
        gate.open()
        assert [reply["id"] for reply in await client.replies(waiting + 1)] == [running, *numbers]
        await client.call("step", session=session, seq=waiting + 2, action={})
        assert await steps_taken(client, session) == waiting + 2


async def test_min_ready_beyond_the_batch_is_all_of_it(answering, codec):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        (results,) = await client.batch([step(session, 1), step(session, 2)], min_ready=9)
        assert [result["call"] for result in results] == [0, 1]


async def test_a_batch_that_is_refused_executes_nothing(answering, codec):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        too_many = client.hello["limits"]["max_batch"] + 1
        with fails("UsageError"):
            await client.batch([step(session, 1)] * too_many)
        for fields in ({"calls": []}, {"calls": [step(session, 1)], "min_ready": 0}):
            with fails("InvalidAction"):
                await client.batch(**fields)
        assert await steps_taken(client, session) == 0
        await client.call("step", session=session, seq=1, action={})


# Cancel


async def test_what_has_not_begun_is_not_executed(answering, codec, gate):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        running = await client.send("step", session=session, seq=1, action=gate.action)
        waiting = await client.send("step", session=session, seq=2, action={})
        assert (await client.call("cancel", target=waiting))["cancelled"] is True
        assert (await client.next_reply(waiting))["error"]["error"] == "Cancelled"
        gate.open()
        assert (await client.next_reply(running))["ok"] is True
        await client.call("step", session=session, seq=3, action={})
        assert await steps_taken(client, session) == 2


async def test_a_running_call_is_answered_at_once_and_the_next_waits_for_its_end(answering, codec, gate):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        running = await client.send("step", session=session, seq=1, action=gate.action)
        await gate.reached()
        assert (await client.call("cancel", target=running))["cancelled"] is True
        assert (await client.next_reply(running))["error"]["error"] == "Cancelled"
        with fails("Cancelled"):
            await client.call("step", session=session, seq=1, action=gate.action)
        gate.open()
        await client.call("step", session=session, seq=2, action={})
        assert await steps_taken(client, session) == 2


async def test_the_calls_of_a_batch_are_cancelled_with_it(answering, codec, gate):
    async with MiniClient(answering, codec) as client:
        slow, quick = await opened(client), await opened(client)
        calls = [step(slow, 1, **gate.action), step(slow, 2), step(quick, 1)]
        number = await client.send("batch", calls=calls, min_ready=1)
        (first,) = (await client.next_reply(number))["results"]
        assert first["call"] == 2
        await gate.reached()
        assert (await client.call("cancel", target=number))["cancelled"] is True
        errors, more = {}, True
        while more:
            part = await client.next_reply(number)
            errors |= {result["call"]: result.get("error", {}).get("error") for result in part["results"]}
            more = part["more"]
        assert errors == {0: "Cancelled", 1: "Cancelled"}
        gate.open()
        assert await steps_taken(client, slow) == 1


async def test_there_may_be_nothing_to_cancel(benchmark, codec):
    async with MiniClient(benchmark, codec) as client:
        await client.call("heartbeat")
        for target in (1, 999):
            assert (await client.call("cancel", target=target))["cancelled"] is False


# Deadlines


async def test_a_call_in_time_is_answered_as_any_other(answering, codec):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        reply = await client.call("step", session=session, seq=1, action={"value": 3}, deadline_s=30)
        assert (reply["observation"]["value"], reply["reward"]) == (3, 1.0)


async def test_a_call_that_waits_for_all_of_its_time_is_not_executed(answering, codec, gate):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        running = await client.send("step", session=session, seq=1, action=gate.action)
        for seq in (2, 2):  # told again as often as it is asked
            with fails("StepTimeout", "environment"):
                await client.call("step", session=session, seq=seq, action={}, deadline_s=0.05)
        calls = [step(session, 3), {**step(session, 4), "deadline_s": 30}]
        number = await client.send("batch", calls=calls, deadline_s=0.05, min_ready=1)
        ((late,),) = [(await client.next_reply(number))["results"]]
        assert (late["call"], late["error"]["error"]) == (0, "StepTimeout")
        gate.open()
        assert (await client.next_reply(running))["ok"] is True
        ((done,),) = [(await client.next_reply(number))["results"]]
        assert (done["call"], done["reward"]) == (1, 2.0)


async def test_a_thread_that_does_not_end_in_time_takes_its_session_along(answering, codec, gate):
    async with MiniClient(answering, codec) as client:
        session = await opened(client)
        with fails("StepTimeout", "environment"):
            await client.call("step", session=session, seq=1, action=gate.action, deadline_s=0.1)
        assert (await client.event("session_lost"))["session"] == session
        with fails("UnknownSession"):
            await client.call("step", session=session, seq=2, action={})
        gate.open()


# A connection that is lost


async def test_a_step_whose_connection_is_cut_is_executed_once(answering, codec, gate):
    async with Lasting(answering, codec, name(), "a-token-of-our-own") as session:
        assert session.client.hello["resume_window_s"] > 0
        assert "resume" in session.client.hello["capabilities"]
        await session.call("reset")
        waiting = asyncio.ensure_future(session.call("step", action={"value": b"x", **gate.action}))
        await gate.reached()
        session.cut()
        gate.open()
        assert (await waiting)["reward"] == 1.0
        assert session.attached["state"] in {"executing", "live"}
        assert await steps_taken(session.client, session.id) == 1
        assert (await session.call("step", action={}))["reward"] == 2.0


async def test_a_reply_that_was_lost_is_kept(answering, codec):
    async with Lasting(answering, codec, name(), "a-token-of-our-own") as session:
        reply = await session.client.next_reply(await session.tell("step", action={"value": 1.5}))
        session.cut()
        await session.come_back()
        assert (session.attached["state"], session.attached["seq"]) == ("live", 1)
        assert {**session.attached["last"], "id": reply["id"]} == reply
        again = await session.client.call("step", session=session.id, seq=1, action={"value": 1.5})
        assert {**again, "id": reply["id"]} == reply
        assert await steps_taken(session.client, session.id) == 1


async def test_a_call_that_was_given_up_has_used_its_number_on_the_next_connection_too(answering, codec, gate):
    async with Lasting(answering, codec, name(), "a-token-of-our-own") as session:
        running = await session.tell("step", action=gate.action)
        await gate.reached()
        waiting = await session.tell("step", action={})
        for number in (running, waiting):
            assert (await session.client.call("cancel", target=number))["cancelled"] is True
        session.cut()
        await session.come_back()
        assert (session.attached["state"], session.attached["seq"]) == ("executing", 0)
        for seq in (1, 2):
            with fails("Cancelled"):
                await session.client.call("step", session=session.id, seq=seq, action={})
        gate.open()
        assert (await session.call("step", action={}))["reward"] == 2.0


async def test_a_session_that_is_gone_says_so(answering, codec):
    async with Lasting(answering, codec, name(), "a-token-of-our-own") as session:
        await session.call("reset")
        await session.client.call("close", session=session.id)
        session.cut()
        with fails("UnknownSession"):
            await session.come_back()


# Two connections


async def test_attach_takes_a_session_over(answering, codec):
    async with MiniClient(answering, codec) as one, MiniClient(answering, Json()) as other:
        session = name()
        token = (await one.call("open", session=session))["token"]
        outcome = await one.call("step", session=session, seq=1, action={"value": b"x"})

        attached = await other.call("attach", session=session, token=token)
        assert (attached["session"], attached["state"], attached["seq"]) == (session, "live", 1)
        assert {**attached["last"], "id": outcome["id"]} == outcome
        lost = await one.event("session_lost")
        assert lost["session"] == session
        assert lost["error"]["error"] == "SessionLost"
        with fails("Unauthorized"):
            await one.call("state", session=session)
        await other.call("step", session=session, seq=2, action={})
        assert await steps_taken(other, session) == 2


async def test_attach_while_a_call_runs(answering, codec, gate):
    async with MiniClient(answering, codec) as one, MiniClient(answering, codec) as other:
        session = name()
        token = (await one.call("open", session=session))["token"]
        running = await one.send("step", session=session, seq=1, action=gate.action)
        await gate.reached()
        attached = await other.call("attach", session=session, token=token)
        assert (attached["state"], attached["seq"]) == ("executing", 0)
        assert "last" not in attached
        assert (await one.next_reply(running))["error"]["error"] == "SessionLost"
        gate.open()
        outcome = await other.call("step", session=session, seq=1, action=gate.action)
        assert outcome["reward"] == 1.0
        assert await steps_taken(other, session) == 1


async def test_what_another_connection_has_is_out_of_reach(benchmark, codec):
    async with MiniClient(benchmark, codec) as one, MiniClient(benchmark, codec) as other:
        session = await opened(one)
        with fails("Unauthorized"):
            await other.call("attach", session=session, token="wrong")
        with fails("UnknownSession"):
            await other.call("attach", session=name(), token="wrong")
        for op, fields in [("open", {}), ("reset", {"seq": 1}), ("state", {}), ("close", {})]:
            with fails("Unauthorized"):
                await other.call(op, session=session, **fields)
        await one.call("state", session=session)
        assert one.events == []


# Version 1


async def test_version_1(benchmark):
    async with MiniClientV1(benchmark) as client:
        assert (await client.call("state"))["step_count"] == 0
        start = await client.call("reset", {"seed": 3})
        assert (start["reward"], start["done"]) == (None, False)
        outcome = await client.call("step", {"wait_seconds": 0})
        assert outcome["observation"]["step_count"] == 1
        assert "metadata" in outcome["observation"]
        assert (await client.call("state"))["step_count"] == 1
        answer = await client.call("mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert answer["id"] == 1

        for kind, data, code in [
            ("reboot", None, "UNKNOWN_TYPE"),
            ("step", {"wait_seconds": "long"}, "VALIDATION_ERROR"),
            ("step", None, "VALIDATION_ERROR"),
        ]:
            with pytest.raises(Failed) as caught:
                await client.call(kind, data)
            assert caught.value.fault["code"] == code
            assert ("errors" in caught.value.fault) == (code == "VALIDATION_ERROR")
        for broken in ("{", "[]", b"{}"):
            await client.socket.send(broken)
            assert (await client.frame())["data"]["code"] == "INVALID_JSON"

        await client.socket.send('{"type":"close"}')
        with pytest.raises(ConnectionClosed) as caught:
            await client.frame()
        assert caught.value.rcvd.code == 1000


async def test_version_1_goes_on_after_a_failure(answering):
    async with MiniClientV1(answering) as client:
        with pytest.raises(Failed) as caught:
            await client.call("step", {"fail": True})
        assert caught.value.fault["code"] == "EXECUTION_ERROR"
        assert (await client.call("step", {"value": 5}))["observation"]["value"] == 5


async def test_version_1_without_a_slot(tmp_path):
    with serving_answering(tmp_path, "--max-sessions", "1") as server:
        async with MiniClientV1(ws(server)) as one:
            await one.call("reset")
            async with MiniClientV1(ws(server)) as other:
                refusal = await other.frame()
                assert (refusal["type"], refusal["data"]["code"]) == ("error", "CAPACITY_REACHED")
                assert refusal["data"].keys() >= {"active_sessions", "max_sessions"}
                with pytest.raises(ConnectionClosed) as caught:
                    await other.frame()
                assert caught.value.rcvd.code == 1000
            async with MiniClient(ws(server), Json()) as other:
                with fails("ServerFull", "infrastructure"):
                    await other.call("open", wait_s=0)


# Several workers


async def test_a_worker_is_reached_again(tmp_path, codec):
    with serving_answering(tmp_path, "--workers", "2") as server:
        async with MiniClient(ws(server), codec) as one:
            session = name()
            token = (await one.call("open", session=session))["token"]
            worker = one.hello["worker"]
            async with MiniClient(f"{ws(server)}?worker={worker}", codec) as other:
                assert other.hello["worker"] == worker
                attached = await other.call("attach", session=session, token=token)
                assert attached["state"] == "live"
                assert (await one.event("session_lost"))["session"] == session
