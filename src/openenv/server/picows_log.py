"""What picows says of a connection, in words of ours."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from picows import WSCloseCode

from ..logs import about

__all__ = ["PicowsLog", "Speaker"]

logger = logging.getLogger("openenv.server")


class Speaker(Protocol):
    """The connection that is spoken of."""

    @property
    def session_id(self) -> str:
        """Its session, for the log."""

    def broken(self, code: WSCloseCode, explanation: str) -> None:
        """picows found a frame that it will not read."""


class PicowsLog:
    """What picows logs of one connection: its faults, with the session's id.

    Given a `logging.Logger`, picows makes a child of it for every connection; given this, it does not.
    """

    def __init__(self, channel: Speaker):
        self._channel = channel

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name of logging.Logger's method
        return level >= logging.WARNING

    def log(self, *args: Any) -> None:
        """Notes on single frames: not wanted."""

    debug = info = log

    def error(self, message: str, *args: Any) -> None:
        if args and isinstance(args[0], tuple) and len(args[0]) == 2:
            self._channel.broken(*args[0])
        else:
            self._note(message, *args)

    def exception(self, message: str, *args: Any) -> None:
        session = self._channel.session_id
        logger.exception("session %s: " + message, session, *args, extra=about(session))

    def _note(self, message: str, *args: Any) -> None:
        session = self._channel.session_id
        logger.warning("session %s: " + message, session, *args, extra=about(session))

    warning = _note
