"""Frames and requests that nobody thought of, while others use the server."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from ...fuzz import test_fuzz_v1, test_fuzz_v2
from ...mini_client import Failed, MiniClient, Msgpack
from ..served import Served
from ..trial import Trial, fault

EXAMPLES = 120
HTTP_EXAMPLES = 10
HTTP_LIMIT_S = 60.0
PATIENCE_S = 5.0
V2 = ("openenv.v2.json", "openenv.v2.msgpack")


@fault(
    "fuzzing: v1 and v2 frames (Hypothesis), HTTP (schemathesis), others' sessions by their ids",
    "no crash, no 500, no session of another client touched",
    peer="frames of v2 and sessions with ids are not spoken there",
)
def fuzzing(trial: Trial) -> None:
    # Ids of others are told only to keys of scope control; what an intruder may know is known here.
    server = trial.serve("async", workers=2, sessions=1000)
    # Seeds of requests that nobody thought of are small numbers: no episode has one of those.
    crowd = trial.crowd(server.url, first=5000)
    before = set(server.children())
    noise = st.binary(max_size=300)
    played = 0
    for subprotocol, frames in (
        (None, test_fuzz_v1.frames | noise),
        (V2[0], test_fuzz_v2.messages.map(test_fuzz_v2.json_frame) | noise),
        (V2[1], test_fuzz_v2.messages.map(test_fuzz_v2.msgpack_frame) | noise),
    ):
        played += _play(trial, server, subprotocol, frames)
    trial.note(f"{played} frames")
    _requests(trial, server)
    tried, touched = asyncio.run(_intrude(server))
    trial.check(
        tried > 0 and not touched, f"{tried} calls to sessions of others refused", f"not refused: {touched[:3]}"
    )
    trial.check(set(server.children()) == before, "no process has ended", "a worker process has ended")
    report = crowd.report()
    trial.no_errors(report)
    trial.counts(server, report)
    log = server.tail(1_000_000)
    trial.check("Traceback" not in log, "no traceback", f"a traceback: {log[log.find('Traceback') :][:600]}")


def _play(trial: Trial, server: Served, subprotocol: str | None, frames: st.SearchStrategy[bytes]) -> int:
    """Sends what Hypothesis thinks of; after each frame the connection must live, or have been closed in order."""
    wire = _Wire(server, subprotocol)
    count = 0

    @seed(trial.seed)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(frames)
    def send(frame: bytes) -> None:
        nonlocal count
        count += 1
        wire.send(frame)

    try:
        send()
    finally:
        wire.close()
    return count


class _Wire:
    """A connection that is made anew when the server has closed it."""

    def __init__(self, server: Served, subprotocol: str | None):
        self._url = f"ws://127.0.0.1:{server.port}/ws"
        self._subprotocols: Any = subprotocol and [subprotocol]
        self._as_text = subprotocol != V2[1]
        self._socket: ClientConnection | None = None

    def send(self, frame: bytes) -> None:
        if self._socket is None:
            self._socket = connect(self._url, subprotocols=self._subprotocols, max_size=None, open_timeout=PATIENCE_S)
        try:
            text = frame.decode() if self._as_text else frame
        except UnicodeDecodeError:
            text = frame  # the wrong kind of frame, then
        try:
            self._socket.send(text)
            assert self._socket.ping().wait(PATIENCE_S), "the connection neither lives nor ends"
            while True:
                self._socket.recv(0)
        except TimeoutError:
            pass
        except ConnectionClosed as closed:
            self._socket = None
            code = closed.rcvd.code if closed.rcvd else 1006
            if code in {1006, 1011}:
                raise AssertionError(f"closed with {code} after {frame!r}") from closed

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _requests(trial: Trial, server: Served) -> None:
    """Lets schemathesis read the OpenAPI document and do what it says, and what it does not say."""
    # Busy, and out of time as the request has asked for, are answers too.
    config = trial.folder / "schemathesis.toml"
    config.write_text('[checks.not_a_server_error]\nexpected-statuses = ["2xx", "3xx", "4xx", 503, 504]\n')
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(config),
        "run",
        f"{server.url}/openapi.json",
        "--no-color",
    ]
    command += ["--checks", "not_a_server_error,content_type_conformance,response_schema_conformance"]
    command += ["--max-examples", str(HTTP_EXAMPLES), "--seed", str(trial.seed), "--workers", "2"]
    done = subprocess.run(
        command, cwd=trial.folder, capture_output=True, text=True, timeout=HTTP_LIMIT_S, check=False
    )
    failures = " ".join(done.stdout.partition("FAILURES")[2][:600].split())
    found = re.search(r"(\d+) generated", done.stdout)
    trial.check(
        done.returncode == 0 and found is not None,
        f"{found[1] if found else 0} requests",
        f"schemathesis: {failures} {done.stderr[-300:]}",
    )


async def _intrude(server: Served) -> tuple[int, list[str]]:
    """Uses the ids of other clients' sessions, in every way that the protocol has."""
    status, body = server.get("/sessions")
    assert status == 200, body
    listed = json.loads(body)
    ids = [entry["id"] for entry in (listed["sessions"] if isinstance(listed, dict) else listed)]
    tried, touched = 0, []
    async with MiniClient(f"ws://127.0.0.1:{server.port}/ws", Msgpack()) as client:
        calls: list[Callable[[str], dict[str, Any]]] = [
            lambda session: {"op": "attach", "session": session, "token": "0" * 32},
            lambda session: {"op": "reset", "session": session, "seq": 1},
            lambda session: {"op": "step", "session": session, "seq": 2, "action": {}},
            lambda session: {"op": "state", "session": session},
            lambda session: {"op": "open", "session": session},
        ]
        for session in ids:
            for call in calls:
                tried += 1
                try:
                    fields = call(session)
                    reply = await client.call(fields.pop("op"), **fields)
                except Failed:
                    continue
                # The same id on another worker process is another session, which is at its beginning.
                if reply.get("seq") != 0:
                    touched.append(f"{call(session)} was answered {reply}")
            with suppress(Failed):  # that what is not there is closed is no error
                await client.call("close", session=session)
    return tried, touched
