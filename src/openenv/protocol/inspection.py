"""A second look at a frame that did not decode at once: what exactly is wrong, and which of its calls are good."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from ..errors import InvalidAction, InvalidMessage, UnknownMessage, UsageError
from .codec import Codec
from .messages import CALLS, MAX_ID, OPS, Batch, Call, Message, Refused, Request

__all__ = ["Inspector"]

_PLACE = re.compile(r" - at `\$(.*)`$", re.DOTALL)
_PART = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


class Inspector:
    """Reads a frame as plain values first, then each of its requests by itself."""

    def __init__(self, codec: Codec, max_batch: int):
        self._codec = codec
        self._max_batch = max_batch

    def inspect(self, frame: bytes | str) -> Message | Refused:
        """The request that a frame holds, if it holds one after all, else what is wrong with it."""
        try:
            fields = self._codec.decode(frame)
        except InvalidMessage as error:
            return Refused(None, error)
        if not isinstance(fields, dict):
            return Refused(None, InvalidMessage(f"a message is a map, not {type(fields).__name__}"))
        number = fields.get("id")
        if type(number) is not int or not 1 <= number <= MAX_ID:
            said = "none" if "id" not in fields else f"{number!r:.50}"
            return Refused(None, InvalidMessage(f"a message needs an id, an integer from 1 to 2**63 - 1, not {said}"))
        if fields.get("op") == "batch" and isinstance(fields.get("calls"), list):
            return self._batch(number, fields)
        message = self._request(number, fields, OPS)
        return message if isinstance(message, Refused) else cast(Message, message)

    def _batch(self, number: int, fields: dict[str, Any]) -> Batch | Refused:
        calls = fields["calls"]
        if len(calls) > self._max_batch:
            return Refused(
                number,
                UsageError(
                    f"a batch of {len(calls)} calls, more than the limit of {self._max_batch}: "
                    "send smaller ones or raise the server's max_batch (OPENENV_MAX_BATCH)"
                ),
            )
        # With one call that is good, since an empty batch is refused and bad calls are not.
        envelope = fields | {"calls": [{"op": "state", "session": ""}] if calls else []}
        batch = self._request(number, envelope, OPS)
        if isinstance(batch, Batch):
            batch.calls = [cast(Call, self._call(call)) for call in calls]
        return cast("Batch | Refused", batch)

    def _call(self, fields: Any) -> Request | Refused:
        if not isinstance(fields, dict):
            return Refused(0, InvalidAction(f"a call is a map, not {type(fields).__name__}"))
        session = fields.get("session")
        if "id" in fields:
            refused = Refused(0, _invalid(["id"], "a call of a batch has no id of its own"))
        else:
            message = self._request(0, fields, CALLS)
            if not isinstance(message, Refused):
                return message
            refused = message
        return refused._replace(session=session if isinstance(session, str) else None)

    def _request(self, number: int, fields: dict[Any, Any], known: Mapping[str, type[Request]]) -> Request | Refused:
        op = fields.get("op")
        declared = known.get(op) if isinstance(op, str) else None
        if declared is None:
            return Refused(number, UnknownMessage(f"unknown op {op!r:.50}: known are {', '.join(known)}"))
        if "action" in fields and "action" in declared.__struct_fields__:
            try:
                fields = fields | {"action": msgspec.Raw(self._codec.encode(fields["action"]))}
            except ValueError as error:
                return Refused(number, _invalid(["action"], str(error)))
        try:
            return msgspec.convert(fields, declared)
        except (ValueError, TypeError, RecursionError) as error:
            place = _PLACE.search(str(error))
            return Refused(number, _invalid(_parts(place[1]) if place else [], _PLACE.sub("", str(error))))


def _invalid(place: list[str | int], message: str) -> InvalidAction:
    return InvalidAction("Invalid message", data={"errors": [{"type": "message", "loc": place, "msg": message}]})


def _parts(path: str) -> list[str | int]:
    return [name or (int(index) if index.isdigit() else index) for name, index in _PART.findall(path)]
