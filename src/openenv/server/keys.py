"""Keys: who holds one, what it allows, and how often a wrong one may be shown. Pure: no sockets, no clock."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from ..errors import Forbidden, UsageError
from .visitor import Scope

__all__ = ["NO_KEYS", "SHORT_KEY", "FailureBook", "Keyring", "Right", "allows", "is_tool_call", "refusal"]

# Shorter ones can be guessed in the time that a server lives.
SHORT_KEY = 16
WINDOW_S = 60.0
# Addresses remembered; who has more than that to come from is not stopped by counting.
MOST_ADDRESSES = 10_000
NO_KEYS = "none"


class Right(Enum):
    """Something that a key may allow."""

    READ = auto()
    """What the environment is: metadata and schema."""
    WATCH = auto()
    """What the server does and offers: metrics and the documentation of its routes."""
    CONNECT = auto()
    """Connections to the environment endpoint, and sessions of one's own on them: open, attach, close."""
    TOOLS = auto()
    """Tools: `mcp` frames, and steps for which `is_tool_call` is true."""
    DRIVE = auto()
    """Reset, state, and every other step."""
    EVERYTHING = auto()
    """All else: other people's sessions, routes that the app's owner added."""


_ALLOWED: dict[Scope, frozenset[Right]] = {
    Scope.CONTROL: frozenset(Right),
    Scope.AGENT: frozenset({Right.READ, Right.CONNECT, Right.TOOLS}),
    Scope.VIEW: frozenset({Right.READ, Right.WATCH}),
}

_TOOL_ACTIONS = frozenset({"list_tools", "call_tool"})


def allows(scope: Scope, right: Right) -> bool:
    """Whether a key of a scope allows something.

    Whoever holds a `Visitor` asks before acting for it; on the path of a step, only if `visitor.scope is not
    Scope.CONTROL`, which may do everything. What is not allowed is answered with `refusal(scope, what)`.
    """
    return right in _ALLOWED[scope]


def refusal(scope: Scope, what: str) -> Forbidden:
    """The error for what a scope does not allow; `what` as in "reset" or "GET /sessions"."""
    return Forbidden(f"{what} is not for keys of scope {scope}: show one of scope {Scope.CONTROL}")


def is_tool_call(action: Any) -> bool:
    """Whether a validated action uses a tool, by its `type`: then `Right.TOOLS` suffices, else it takes `DRIVE`.

    A `type` that the action's class does not declare says nothing, since the environment does not look at it.
    """
    if isinstance(action, Mapping):
        kind = action.get("type")
    elif "type" in getattr(type(action), "model_fields", ("type",)):
        kind = getattr(action, "type", None)
    else:
        return False
    return isinstance(kind, str) and kind in _TOOL_ACTIONS


class Keyring:
    """The keys of a server.

    Attributes:
        open: No key is asked for.
        short: Numbers of the keys that are short enough to be guessed.
    """

    __slots__ = ("_holders", "open", "short")

    def __init__(self, keys: list[tuple[Scope, str]]):
        # Digests, so that a comparison takes the same time whatever the lengths are.
        self._holders = [(_digest(key.encode()), scope) for scope, key in keys]
        self.open = not keys
        self.short = [number for number, (_, key) in enumerate(keys, 1) if len(key) < SHORT_KEY]

    @classmethod
    def parse(cls, text: str | None) -> Keyring:
        """Reads the setting `api_keys`.

        Args:
            text: `scope:key` or `key`, separated by commas; None or "none" for a server that asks for none.

        Raises:
            UsageError: It cannot be read; the message names the entry by its place and never shows it.
        """
        if text is None or text.strip() == NO_KEYS:
            return cls([])
        keys: list[tuple[Scope, str]] = []
        for place, entry in enumerate(filter(None, map(str.strip, text.split(","))), 1):
            scope, key = _entry(entry, place)
            if key in (earlier for _, earlier in keys):
                raise _fault(f"entry {place} repeats an earlier key")
            keys.append((scope, key))
        if not keys:
            raise _fault("there is no key in it")
        return cls(keys)

    def find(self, presented: bytes) -> tuple[Scope, int] | None:
        """The scope and the number (from 1) of a key; None for one that is not known.

        Looks at every key in the same way, whichever it is.
        """
        digest = _digest(presented)
        found: tuple[Scope, int] | None = None
        for number, (held, scope) in enumerate(self._holders, 1):
            if hmac.compare_digest(digest, held):
                found = (scope, number)
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _entry(entry: str, place: int) -> tuple[Scope, str]:
    before, colon, after = entry.partition(":")
    if not colon:
        if entry == NO_KEYS:
            raise _fault(f"entry {place} is {NO_KEYS!r}, which must stand alone")
        return Scope.CONTROL, entry
    if before not in set(Scope):
        raise _fault(f"what stands before the colon of entry {place} is none of {', '.join(Scope)}")
    if not after:
        raise _fault(f"entry {place} has no key")
    return Scope(before), after


def _fault(what: str) -> UsageError:
    return UsageError(
        f"setting api_keys (OPENENV_API_KEYS): {what}; write scope:key,scope:key, or {NO_KEYS} to ask for no key"
    )


class FailureBook:
    """How many wrong keys came from where.

    Args:
        limit: Wrong keys from one address within a minute; then it hears no more than that it must wait.
        most: Addresses remembered; beyond that, the one whose minute began first is forgotten.
    """

    def __init__(self, limit: int, most: int = MOST_ADDRESSES):
        self._limit = limit
        self._most = most
        self._minutes: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._minutes)

    def failed(self, address: str, now: float) -> float | None:
        """Notes a wrong key.

        Returns:
            The seconds after which one is looked at again; None while there are fewer than too many.
        """
        place = _network(address)
        began, count = self._minutes.get(place, (now, 0))
        if now - began >= WINDOW_S:
            del self._minutes[place]
            began, count = now, 0
        if count >= self._limit:
            return WINDOW_S - (now - began)
        self._minutes[place] = (began, count + 1)
        if len(self._minutes) > self._most:
            self._minutes.popitem(last=False)
        return None


def _network(address: str) -> str:
    """What counts as one address: of IPv6, what one subscriber is given."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if ip.version == 4:
        return address
    mapped = ip.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((int(ip), 64), strict=False))
