"""What an engine says while it pushes an image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PushProgress", "Upload"]

_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64})")
_THERE = ("Layer already exists", "Mounted from")


@dataclass(frozen=True, slots=True)
class PushProgress:
    """How far the pushing of an image has come.

    Attributes:
        layers: How many layers it has, as far as that is known.
        done: How many of them are at the registry.
        there: How many of those were there before.
        sent: Bytes that were sent.
        total: How many there will be, as far as that is known.
    """

    layers: int = 0
    done: int = 0
    there: int = 0
    sent: int = 0
    total: int = 0


@dataclass(slots=True)
class _Layer:
    sent: int = 0
    total: int = 0
    done: bool = False
    there: bool = False


class Upload:
    """The pushing of one image.

    Attributes:
        digest: Of the image, as soon as it is there.
        failure: Why it cannot be.
    """

    def __init__(self) -> None:
        self.digest: str | None = None
        self.failure: str | None = None
        self._layers: dict[str, _Layer] = {}

    def note(self, event: Mapping[str, Any]) -> None:
        """Takes one thing that the engine said."""
        if "error" in event or "message" in event:
            self.failure = str(event.get("error") or event["message"])
            return
        aux, status = event.get("aux") or {}, str(event.get("status", ""))
        said = _DIGEST.search(status)
        self.digest = aux.get("Digest") or (said[1] if said is not None else self.digest)
        if event.get("id") is None or said is not None or status.startswith("The push refers"):
            return
        layer = self._layers.setdefault(event["id"], _Layer())
        layer.there = layer.there or status.startswith(_THERE)
        layer.done = layer.done or layer.there or status == "Pushed"
        if status == "Pushing":
            sizes = event.get("progressDetail") or {}
            layer.sent = int(sizes.get("current") or 0)
            layer.total = max(int(sizes.get("total") or 0), layer.sent)
        elif layer.done:
            layer.sent = layer.total

    @property
    def progress(self) -> PushProgress:
        """How far it is."""
        layers = self._layers.values()
        return PushProgress(
            layers=len(layers),
            done=sum(layer.done for layer in layers),
            there=sum(layer.there for layer in layers),
            sent=sum(layer.sent for layer in layers),
            total=sum(layer.total for layer in layers),
        )
