"""The HTTP headers of a handshake, and the key among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError

__all__ = ["SECRET", "Headers", "headers_of"]

Headers = tuple[tuple[str, str], ...]
SECRET = ("authorization", "cookie")
"""Those that are for one server alone, in lower case."""


def headers_of(given: Mapping[str, str], api_key: str | None, else_key: str | None = None) -> Headers:
    """The headers of the handshake.

    Args:
        given: Those that the user names.
        api_key: The key to show.
        else_key: The key to show where the user names none, neither so nor by a header.

    Raises:
        UsageError: One of them cannot be sent. A key is not repeated in the message.
    """
    headers = tuple(_header(name, value) for name, value in given.items())
    own = any(name.lower() == "authorization" for name, _ in headers)
    if own and api_key is not None:
        raise UsageError("api_key and a header Authorization: give one of them")
    key = else_key if api_key is None and not own else api_key
    if key is None:
        return headers
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or not key or " " in key:
        raise UsageError("api_key (OPENENV_API_KEY) cannot be sent: it must be printable ASCII without spaces")
    return (*headers, ("Authorization", f"Bearer {key}"))


def _header(name: Any, value: Any) -> tuple[str, str]:
    if not (isinstance(name, str) and isinstance(value, str)) or any(end in name + value for end in "\r\n"):
        raise UsageError(f"header {name!r} cannot be sent: name and value must be text of one line")
    return name, value
