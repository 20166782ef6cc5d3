"""Keeps keys out of what libraries log."""

from __future__ import annotations

import logging
import re
from urllib.parse import unquote

__all__ = ["keep_keys_out_of_logs"]

# At level debug, websockets logs every header of a handshake, in uvicorn's name; uvicorn logs the URL of each.
_LOGGERS = ("uvicorn.error", "uvicorn.access")
_SECRET = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "set-cookie",
        "sec-websocket-protocol",
        "x-openenv-key",
        "x-session-token",
    }
)
_HIDDEN = "(not shown)"
# One field of a query: its name up to the `=`, and its value.
_FIELD = re.compile(r"(?<=[?&;])([^=&;?]*=)([^&;]*)")
# uvicorn logs this with the traceback of a decoder: the client's fault, and no news.
_BAD_TEXT = "Invalid UTF-8 sequence received from client."


class _Redaction(logging.Filter):
    """Replaces the values of headers that may hold keys, and tokens in URLs."""

    def filter(self, record: logging.LogRecord) -> bool:
        match record.args:
            case (str(name), _) if name.strip().lower() in _SECRET:
                record.args = (name, _HIDDEN)
            case tuple(values) if any(isinstance(value, str) and "?" in value for value in values):
                record.args = tuple(
                    _FIELD.sub(_field, value) if isinstance(value, str) else value for value in values
                )
        if record.msg == _BAD_TEXT:
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


def _field(found: re.Match[str]) -> str:
    # A server decodes the name too: `%74oken` is a token.
    return found[1] + (_HIDDEN if unquote(found[1][:-1]).lower() == "token" else found[2])


_REDACTION = _Redaction()


def keep_keys_out_of_logs() -> None:
    """Has effect for the whole process, from here on; may be called repeatedly."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_REDACTION)
