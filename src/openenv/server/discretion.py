"""Keeps keys out of what libraries log."""

from __future__ import annotations

import logging
import re

__all__ = ["keep_keys_out_of_logs"]

# At level debug, websockets logs every header of a handshake, in uvicorn's name; uvicorn logs the URL of each.
_LOGGER = "uvicorn.error"
_SECRET = frozenset({"authorization", "proxy-authorization", "cookie", "sec-websocket-protocol"})
_TOKEN = re.compile(r"(?<=[?&]token=)[^&]*")


class _Discretion(logging.Filter):
    """Replaces the values of headers that may hold keys, and tokens in URLs."""

    def filter(self, record: logging.LogRecord) -> bool:
        match record.args:
            case (str(name), _) if name.lower() in _SECRET:
                record.args = (name, "(not shown)")
            case (client, str(url), *more) if "token=" in url:
                record.args = (client, _TOKEN.sub("(not shown)", url), *more)
        return True


_DISCRETION = _Discretion()


def keep_keys_out_of_logs() -> None:
    """Has effect for the whole process, from here on; may be called repeatedly."""
    logging.getLogger(_LOGGER).addFilter(_DISCRETION)
