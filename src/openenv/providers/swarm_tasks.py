"""What a swarm's tasks say of the servers of a service. A task is one container, from its order to its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Slot", "logged_by", "slots_of"]

_ENDINGS = {
    "failed": "failed",
    "rejected": "was rejected",
    "complete": "ended by itself",
    "orphaned": "was lost with its node",
}
_OVER = {*_ENDINGS, "shutdown", "remove"}


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one server in a service, which tasks take one after the other.

    Attributes:
        key: What it is known by: its number; in a global service, its node.
        tasks: The tasks it has had, the current one last.
        running: Whether the current one runs.
        failure: Why it does not, to go on with after "the server"; None while it runs or is on its way for the first
            time.
        state: How far the current one is, in the words of the swarm.
        node: The node that it is on, if it has one.
        ports: Ports of the node, by those of the container.
        addresses: Its addresses in networks of the swarm.
    """

    key: str
    tasks: tuple[str, ...]
    running: bool
    failure: str | None
    state: str
    node: str | None
    ports: Mapping[int, int]
    addresses: tuple[str, ...]

    @property
    def imageless(self) -> bool:
        """Whether it failed because its node has no such image."""
        return "No such image" in (self.failure or "")


def slots_of(tasks: Iterable[Mapping[str, Any]]) -> dict[str, Slot]:
    """The slots of a service, in the order of their numbers.

    Args:
        tasks: Its tasks, as the engine's API lists them.
    """
    histories: dict[str, list[Mapping[str, Any]]] = {}
    for task in sorted(tasks, key=lambda task: _moment(task.get("CreatedAt", ""))):
        histories.setdefault(str(task.get("Slot") or task.get("NodeID", "")), []).append(task)
    # The tasks of a slot that was taken away are on their way out, all of them.
    there = {key: history for key, history in histories.items() if any(not _leaving(task) for task in history)}
    return {key: _slot(key, there[key]) for key in sorted(there, key=lambda key: (len(key), key))}


def logged_by(tasks: Iterable[str], log: bytes) -> str:
    """The lines that some tasks have written, of a service's log with details."""
    marks = tuple(f"com.docker.swarm.task.id={task}" for task in tasks)
    lines = (line.partition(" ") for line in log.decode(errors="replace").splitlines())
    return "\n".join(text for details, _, text in lines if any(mark in details.split(",") for mark in marks))


def _slot(key: str, history: list[Mapping[str, Any]]) -> Slot:
    # A rolling update may have its new task started before the old one is ended.
    running = [task for task in history if _state(task) == "running" and task.get("DesiredState") == "running"]
    current = running[-1] if running else history[-1]
    status = current.get("Status", {})
    published = status.get("PortStatus", {}).get("Ports") or ()
    attached = current.get("NetworksAttachments") or ()
    return Slot(
        key=key,
        tasks=tuple(task["ID"] for task in history),
        running=bool(running),
        failure=None if running else _failure(history),
        state=": ".join(filter(None, (_state(current), status.get("Err") or status.get("Message")))),
        node=current.get("NodeID") or None,
        ports={port["TargetPort"]: port["PublishedPort"] for port in published if port.get("PublishMode") == "host"},
        addresses=tuple(each.partition("/")[0] for network in attached for each in network.get("Addresses") or ()),
    )


def _failure(history: list[Mapping[str, Any]]) -> str | None:
    """Why nothing runs: how the current task has ended, or the one before it while it is on its way."""
    current = history[-1]
    if _state(current) not in _OVER and len(history) > 1:
        current = history[-2]
    if _state(current) not in _ENDINGS:
        return None
    status = current.get("Status", {})
    return f"{_ENDINGS[_state(current)]} ({status.get('Err') or status.get('Message')})"


def _state(task: Mapping[str, Any]) -> str:
    return str(task.get("Status", {}).get("State", "new"))


def _leaving(task: Mapping[str, Any]) -> bool:
    return task.get("DesiredState") == "remove"


def _moment(stamp: str) -> str:
    """A time of the engine, to be compared: it leaves out zeros at the end of fractions."""
    return stamp.removesuffix("Z").ljust(len("2000-01-01T00:00:00.000000000"), "0")
