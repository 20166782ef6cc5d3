"""The specification says what the types say, and the types say what is sent."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import msgspec
import numpy as np
import pytest

from openenv import errors
from openenv.protocol.codecs import SUBPROTOCOLS, codec_of
from openenv.protocol.messages import (
    EVENTS,
    OPS,
    REPLIES,
    BatchReply,
    FailureReply,
    HelloEvent,
    OutcomeReply,
    RefusedOp,
    StateReply,
)
from openenv.protocol.server import ServerProtocolV2
from openenv.types import Observation, State

ROOT = Path(__file__).parent.parent.parent
SPECIFICATION = ROOT / "docs" / "protocol.md"
SCHEMA = ROOT / "docs" / "protocol.schema.json"

tables = runpy.run_path(str(ROOT / "scripts" / "protocol_tables.py"))
servers = pytest.mark.parametrize(
    "server", [ServerProtocolV2(dict, codec_of(name), 8) for name in SUBPROTOCOLS], ids=["msgpack", "json"]
)


def test_the_specification_is_up_to_date():
    """If not: python scripts/protocol_tables.py."""
    text = SPECIFICATION.read_text()
    assert tables["page"](text) == text


def test_the_schema_is_up_to_date():
    """If not: python scripts/protocol_tables.py."""
    assert SCHEMA.read_text() == tables["schema"]()


def test_every_reference_of_the_schema_leads_somewhere():
    schema = json.loads(SCHEMA.read_text())
    references = set(re.findall(r'"\$ref": "#/\$defs/(\w+)"', SCHEMA.read_text()))
    assert references <= set(schema["$defs"])
    assert len(schema["$defs"]["ClientMessage"]["oneOf"]) == len(OPS)


def test_only_calls_of_a_batch_have_no_id():
    found = json.loads(SCHEMA.read_text())["$defs"]
    for cls in OPS.values():
        assert "id" in found[cls.__name__]["required"]
    for call in found["BatchOp"]["properties"]["calls"]["items"]["oneOf"]:
        assert "id" not in found[call["$ref"].rpartition("/")[2]]["properties"]


def test_every_op_event_and_error_is_in_the_specification():
    text = SPECIFICATION.read_text()
    assert OPS.keys() == REPLIES.keys()
    for name in (*OPS, *EVENTS, *SUBPROTOCOLS):
        assert f"`{name}`" in text
    assert "`SequenceError`" in text


def conversation():
    """The frames of the examples in the specification."""
    lines = re.findall(r"^([<>]) (\{.*\})$", SPECIFICATION.read_text(), re.MULTILINE)
    assert len(lines) > 10
    return lines


def test_the_examples_are_valid():
    server = ServerProtocolV2(dict, codec_of("openenv.v2.json"), 8)
    ops = {}
    for side, frame in conversation():
        message = json.loads(frame)
        if side == ">":
            assert not isinstance(server.receive(frame), RefusedOp)
            ops[message["id"]] = message["op"]
        elif "event" in message:
            msgspec.convert(message, EVENTS[message["event"]])
        elif "error" in message:
            msgspec.convert(message, FailureReply)
        else:
            reply = msgspec.convert(message, REPLIES[ops[message["id"]]])
            assert {"ok", *message} == {"ok", *msgspec.to_builtins(reply)}


def test_the_example_of_an_array():
    text = SPECIFICATION.read_text()
    written = "".join(re.findall(r"`((?:[0-9a-f]{2} ?)+)`", text[text.index("Example: the array") :]))
    array = codec_of("openenv.v2.msgpack").decode(bytes.fromhex(written))
    assert (array.dtype, array.tolist()) == (np.dtype("<u2"), [[1, 2]])
    as_json = re.search(r'\{"\$array": \{[^{}]*\}\}', text)[0]
    assert codec_of("openenv.v2.json").decode(as_json).tolist() == [[1, 2]]


class Timed(Observation):
    truncated: bool = True
    x: list[int] = [1]


@servers
class TestWhatIsSentIsWhatIsSaid:
    def read(self, server, frame, cls):
        """A frame as its type, with no field that the type does not know."""
        message = server.codec.decode(frame)
        read = msgspec.convert(message, cls)
        assert set(message) - {"event"} <= set(cls.__struct_fields__)
        return read

    @pytest.mark.parametrize(
        "observation",
        [Observation(), Timed(done=True, reward=1.5, metadata={"a": 1}), Observation(reward=True), {"x": 1}],
    )
    def test_an_outcome(self, server, observation):
        self.read(server, server.reply(1, server.observation(observation)), OutcomeReply)

    def test_a_state(self, server):
        assert self.read(server, server.reply(1, server.state(State())), StateReply).state["step_count"] == 0

    def test_results(self, server):
        frame = server.results(1, [(0, "a", server.ok({})), (1, None, server.error(errors.StepFailed("no")))], True)
        assert len(self.read(server, frame, BatchReply).results) == 2

    @pytest.mark.parametrize(
        "error", [errors.StepFailed("it broke"), errors.ServerFull(1, 1, retry_after_s=2.0)], ids=["plain", "full"]
    )
    def test_a_failure(self, server, error):
        for number in (1, None):
            fault = self.read(server, server.reply(number, server.error(error)), FailureReply).error
            assert fault.error == type(error).__name__

    def test_an_event(self, server):
        limits = {"max_message_bytes": 1, "max_sessions": 1, "max_in_flight": 1, "max_batch": 1}
        limits["max_connection_in_flight"] = 1
        fields = {"protocol": 2, "server": "1", "environment": "e", "limits": limits, "heartbeat_s": None}
        fields |= {"resume_window_s": 0, "capabilities": [], "worker": None}
        fields["schema"] = {"action": "a1", "observation": None, "state": None}
        assert self.read(server, server.event("hello", fields), HelloEvent).protocol == 2
