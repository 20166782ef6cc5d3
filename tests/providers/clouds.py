"""What the stand-ins of clouds share: their sandboxes, and the deviations that tests of them must find."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..warm import WarmPython
from .standin import Machine, Refused, StandIn

KEY = "key-of-an-account-0123456789"


@dataclass
class Box:
    """A sandbox: booting, running, stopped or deleted."""

    id: str
    labels: dict[str, str]
    machine: Machine
    state: str = "running"


class Cloud(StandIn):
    """A cloud with sandboxes.

    Args:
        warm: Python for the servers in its sandboxes.

    Attributes:
        id_prefix: The beginning of its sandboxes' ids.
        boxes: Every sandbox there ever was, by its id.
        boots: Whether sandboxes that are started come to run.
        deviations: What it does wrong: `keeps` (what is deleted), `forgets` (labels), `hurries` (a sandbox is said to
            run before it does), `misleads` (a port's address is that of another sandbox).
    """

    key = KEY
    id_prefix = "sandbox"

    def __init__(self, warm: WarmPython) -> None:
        self.boxes: dict[str, Box] = {}
        self.boots = True
        self.deviations: set[str] = set()
        self.closed = threading.Event()
        self._warm = warm
        super().__init__()

    @property
    def alive(self) -> list[Box]:
        """Sandboxes that cost money."""
        return [box for box in self.boxes.values() if box.state != "deleted"]

    def close(self) -> None:
        self.closed.set()
        for box in self.boxes.values():
            box.machine.end()
        super().close()

    def settings(self) -> dict[str, str]:
        """Environment variables with which the SDK finds this stand-in."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Arguments of its provider that only this stand-in needs."""
        return {}

    def start(self, variables: Mapping[str, str], labels: Mapping[str, str]) -> Box:
        box = Box(f"{self.id_prefix}{secrets.token_hex(8)}", dict(labels), Machine(variables, self._warm))
        if "forgets" in self.deviations:
            box.labels = {}
        if not self.boots or "hurries" in self.deviations:
            box.state = "booting"
        self.boxes[box.id] = box
        return box

    def box(self, box_id: str) -> Box:
        """A sandbox that exists. Raises `Refused` with status 404."""
        box = self.boxes.get(box_id)
        if box is None or box.state == "deleted":
            raise Refused(404, f"Sandbox {box_id} not found")
        return box

    def running(self, box_id: str) -> Machine:
        """The machine of a sandbox that takes commands."""
        box = self.box(box_id)
        if box.state != "running":
            raise Refused(409, f"Sandbox {box_id} is {box.state}")
        return box.machine

    def listed(self, labels: Mapping[str, str]) -> list[Box]:
        return [box for box in self.alive if labels.items() <= box.labels.items()]

    def delete(self, box: Box) -> Box:
        if "keeps" not in self.deviations:
            box.state = "deleted"
            box.machine.end()
        return box

    def stage(self, box: Box) -> str:
        """The state of a sandbox, as it is said."""
        return "running" if box.state == "booting" and "hurries" in self.deviations else box.state

    def port_of(self, box: Box) -> int:
        """The port of this machine that a sandbox's server listens on."""
        if "misleads" in self.deviations:
            return next(iter(self.boxes.values())).machine.port
        return box.machine.port
