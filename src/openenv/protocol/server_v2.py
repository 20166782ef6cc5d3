"""The server's side of protocol v2: frames become requests, results become frames.

Stateless: which sessions a connection has, and that ids increase, is the connection's matter. So one
`ServerProtocolV2` serves every connection to one environment class with one codec.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import InvalidMessage, OpenEnvError, StepFailed
from ..interrupts import from_signal
from .action import ActionReader
from .codec import Body, Codec, Result
from .inspection import Inspector
from .messages import Batch, Message, Refused
from .outcome import encode_outcome, encode_state_fields
from .report import error_facts, unsendable

__all__ = ["ServerProtocolV2"]

_UNREAD = (ValueError, TypeError, RecursionError, OverflowError)


class ServerProtocolV2:
    """Reads client frames and writes server frames for one action type in one codec.

    Args:
        action_type: The action class (or a union of such) of the environment.
        codec: How frames are written.
        max_batch: Most calls in one batch.
    """

    def __init__(self, action_type: Any, codec: Codec, max_batch: int):
        self.codec = codec
        self.action = ActionReader(action_type, codec)
        self._max_batch = max_batch
        self._decode = codec.decoder(Message)
        self._inspector = Inspector(codec, max_batch)

    def receive(self, frame: bytes | str) -> Message | Refused:
        """Reads one frame of the codec's kind. What is wrong with a bad one is returned, never raised.

        Returns:
            A request. In a batch, a bad call is a `Refused` in its place.
            For a frame that is no request, or a batch over the limit, a `Refused`.
        """
        try:
            message: Message = self._decode(frame)
        except _UNREAD:
            return self._inspector.inspect(frame)
        if not message.id:
            return self._inspector.inspect(frame)
        if type(message) is Batch and (
            len(message.calls) > self._max_batch or any(call.id for call in message.calls)
        ):
            return self._inspector.inspect(frame)
        return message

    def receive_other(self, frame: bytes | str) -> Refused:
        """Refuses a frame of the other kind: a text frame where binary frames are spoken, or the reverse."""
        codec = self.codec
        got, spoken = ("text", "binary") if codec.binary else ("binary", "text")
        return Refused(
            None,
            InvalidMessage(
                f"a {got} frame of {len(frame)} bytes: {codec.subprotocol} speaks {codec.language} in {spoken} frames"
            ),
        )

    def ok(self, fields: Mapping[str, Any]) -> Body:
        """A reply of these fields. Raises `ValueError` for what cannot be written."""
        return self.codec.body({"ok": True, **fields})

    def observation(self, observation: Any, notes: Mapping[str, Any] | None = None) -> Body:
        """The reply to reset and step. Raises `StepFailed` for what cannot be sent.

        Args:
            observation: What the environment returned.
            notes: Joins the metadata beside the observation.
        """
        try:
            return encode_outcome(observation, self.codec, notes)
        except StepFailed:
            raise
        except BaseException as error:  # the edge to foreign code: its values may raise anything when they are read
            if from_signal(error):
                raise
            raise unsendable(observation, error) from error

    def state(self, state: Any) -> Body:
        """The reply to state. Raises `StepFailed` for what cannot be sent."""
        try:
            return encode_state_fields(state, self.codec)
        except StepFailed:
            raise
        except BaseException as error:  # as above
            if from_signal(error):
                raise
            raise unsendable(state, error) from error

    def mcp(self, reply: Mapping[str, Any]) -> Body:
        """The reply to mcp: a result or an error of JSON-RPC. Raises `StepFailed` for what cannot be sent."""
        try:
            return self.ok({"reply": reply})
        except (StepFailed, KeyboardInterrupt):
            raise
        except BaseException as error:  # as above
            raise unsendable(reply, error) from error

    def error(self, error: OpenEnvError) -> Body:
        """The reply that reports an error, whatever its message and data hold."""
        return self.codec.body({"error": error_facts(error)})

    def reply(self, id: int | None, body: Body) -> bytes:  # noqa: A002 - what the wire calls it
        """A whole frame; without an id, one that answers no request in particular."""
        return self.codec.reply(id, body)

    def results(self, id: int, items: Iterable[Result], more: bool) -> bytes:  # noqa: A002
        """A frame of results of a batch.

        Args:
            id: Of the batch.
            items: For each call that is ready: its place in `calls`, its session if it has one, its reply.
            more: Whether calls are left for a later frame.
        """
        return self.codec.results(id, items, more)

    def event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        """A frame that nobody asked for."""
        return self.codec.encode({"event": name, **fields})
