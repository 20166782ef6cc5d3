"""Records the sessions of a client (`record=`): its calls and the replies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from .._asyncio import on_thread
from ..errors import Cancelled, OpenEnvError
from ..mcp.types import DIRECT_CALL, McpMethod, action_of, observation_of
from ..protocol.contract import hash_of
from ..recording import Recorder, Subject, Tap
from .connection import CallKind, ClientConnectionV2, ClientSession, OneSessionConnection, Payload
from .session import ResumableSession
from .vector_sessions import EnvSlot

_recorders: dict[Path, Recorder] = {}
# By session, so that a restore finds its source.
_taps: WeakValueDictionary[str, Tap] = WeakValueDictionary()


def recorder_at(folder: Path) -> Recorder:
    """The recorder of a folder, which all clients of this process share."""
    recorder = _recorders.get(folder)
    if recorder is None or recorder.stopped is not None:
        recorder = _recorders[folder] = Recorder(folder)
    return recorder


def subject_of(end: object) -> Subject:
    """The environment that the server of a connection names in its hello; v1 servers name none."""
    hello: Mapping[str, Any] = (end.hello if isinstance(end, ClientConnectionV2) else None) or {}
    hashes, name = hello.get("schema"), hello.get("environment")
    schema = hash_of(hashes) if isinstance(hashes, dict) else None
    return Subject(name if isinstance(name, str) else "", None, schema)


class RecordedClientSession:
    """The session of a single client, with its record.

    Args:
        session: The session that makes the calls.
        end: Its first connection.
        folder: Folder of the record.

    Attributes:
        tap: Records its calls; another session may continue where it is.
    """

    def __init__(self, session: ClientSession, end: ClientConnectionV2 | OneSessionConnection, folder: Path):
        self._session = session
        self._end = end
        self._recorder = recorder_at(folder)
        resumable = session.resumable
        name = secrets.token_urlsafe(12) if resumable is None else resumable.ref.session
        self.tap = Tap(self._recorder, b"", name)
        _taps[name] = self.tap

    @property
    def resumable(self) -> ResumableSession | None:
        return self._session.resumable

    @property
    def error(self) -> OpenEnvError | None:
        return self._session.error

    @error.setter
    def error(self, error: OpenEnvError | None) -> None:
        self._session.error = error

    @property
    def leaving(self) -> bool:
        return self._session.leaving

    async def call(self, kind: CallKind, data: Any, timeout_s: float | None) -> dict[str, Any]:
        tap = self.tap
        tool = data["params"] if kind == "mcp" and data["method"] == McpMethod.TOOLS_CALL else None
        if kind not in {"reset", "step"} and tool is None:
            source = _taps.get(data["source"]) if kind == "restore" else None
            place = None if source is None else source.place
            payload = await self._session.call(kind, data, timeout_s)
            if place is not None:
                tap.continue_from(place)
            return payload
        if tool is None:
            _ask(tap, kind, data)
        else:
            tap.do(action_of(tool["name"], tool["arguments"]), DIRECT_CALL)
        asked, tap.asked = tap.asked, None  # other calls may follow meanwhile
        assert asked is not None
        try:
            payload = await self._session.call(kind, data, timeout_s)
        except (OpenEnvError, asyncio.CancelledError) as error:
            self._describe()
            cancelled = isinstance(error, asyncio.CancelledError)
            tap.failed(asked, Cancelled("the call was cancelled by its client") if cancelled else error)
            raise
        self._describe()
        tap.answered(asked, payload if tool is None else {"observation": observation_of(tool["name"], payload)})
        return payload

    async def aclose(self) -> None:
        await self._session.aclose()
        await on_thread(self._recorder.flush)

    def _describe(self) -> None:
        """Describes the environment in the record, from the hello that came before the first reply."""
        if not self.tap.tail:
            self.tap.tail = subject_of(self._end).tail


class VectorRecord:
    """Records the environments of a vector; its `VectorState` reports each call and each reply.

    Args:
        folder: Folder of the record.
        num_envs: How many environments.
    """

    def __init__(self, folder: Path, num_envs: int):
        self._recorder = recorder_at(folder)
        self._taps = [Tap(self._recorder, b"", secrets.token_urlsafe(12)) for _ in range(num_envs)]
        self._tail = b""

    def asked(self, slots: Sequence[EnvSlot]) -> None:
        """Records the next calls of environments."""
        for slot in slots:
            _ask(self._taps[slot.index], slot.kind, slot.contents)

    def settled(self, slot: EnvSlot, reply: Payload | OpenEnvError) -> None:
        """Records the reply to an environment's call, or its error."""
        tap = self._taps[slot.index]
        asked = tap.asked
        if asked is None:
            return
        if not tap.tail:
            if not self._tail and slot.group is not None:
                self._tail = subject_of(slot.group.link).tail
            tap.tail = self._tail or subject_of(None).tail
        if isinstance(reply, OpenEnvError):
            tap.failed(asked, reply)
        else:
            tap.answered(asked, reply)

    async def flush(self) -> None:
        """Waits until everything is on disk."""
        await on_thread(self._recorder.flush)


def _ask(tap: Tap, kind: CallKind, data: Any) -> None:
    if kind == "reset":
        tap.reset(data or {})
    else:
        tap.do(data)
