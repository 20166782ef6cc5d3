"""Keeps keys out of what libraries log."""

from __future__ import annotations

import logging

__all__ = ["keep_keys_out_of_logs"]

# At level debug, websockets logs every header of a handshake, in uvicorn's name.
_LOGGER = "uvicorn.error"
_SECRET = frozenset({"authorization", "proxy-authorization", "cookie", "sec-websocket-protocol"})


class _Discretion(logging.Filter):
    """Replaces the values of headers that may hold keys."""

    def filter(self, record: logging.LogRecord) -> bool:
        match record.args:
            case (str(name), _) if name.lower() in _SECRET:
                record.args = (name, "(not shown)")
        return True


_DISCRETION = _Discretion()


def keep_keys_out_of_logs() -> None:
    """Has effect for the whole process, from here on; may be called repeatedly."""
    logging.getLogger(_LOGGER).addFilter(_DISCRETION)
