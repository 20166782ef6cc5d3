"""How a client opens the shared memory that a server on its machine offers. Arrays travel in frames if it cannot."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from .._shared_memory import digest_of, open_segment
from ..protocol.messages import SharedMemoryOffer


def offer_in(hello: Mapping[str, Any]) -> SharedMemoryOffer | None:
    """The offer of another process, if a server's hello has one. In one process, frames are not copied anyway."""
    with contextlib.suppress(msgspec.ValidationError):
        offer = msgspec.convert(hello.get("shared_memory"), SharedMemoryOffer)
        return None if offer.process == os.getpid() else offer
    return None


def offered_token(offer: SharedMemoryOffer) -> str | None:
    """The token of the offered memory; None if this process cannot open it, as on another machine."""
    with contextlib.suppress(OSError):
        token, _ = open_segment(offer.process, offer.descriptor)
        return token if digest_of(token) == offer.digest else None
    return None


def opened_memory(offer: SharedMemoryOffer, descriptor: object) -> tuple[str, memoryview] | None:
    """Token and data of the memory of a connection; None if it cannot be opened.

    Args:
        offer: The server's offer.
        descriptor: That of its reply to the offered token.
    """
    with contextlib.suppress(OSError):
        if type(descriptor) is int:
            return open_segment(offer.process, descriptor)
    return None
