"""What a cluster has: objects with versions, and everybody who watches them."""

from __future__ import annotations

import asyncio
import copy
import datetime
import uuid
from typing import Any

__all__ = ["PLURALS", "Store", "now"]

Thing = dict[str, Any]
Key = tuple[str, str, str]

PLURALS = {
    "pods": ("v1", "Pod"),
    "secrets": ("v1", "Secret"),
    "services": ("v1", "Service"),
    "events": ("v1", "Event"),
    "namespaces": ("v1", "Namespace"),
    "deployments": ("apps/v1", "Deployment"),
    "daemonsets": ("apps/v1", "DaemonSet"),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy"),
    "poddisruptionbudgets": ("policy/v1", "PodDisruptionBudget"),
    "horizontalpodautoscalers": ("autoscaling/v2", "HorizontalPodAutoscaler"),
}


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """Objects by kind, namespace and name.

    Attributes:
        things: All that there is.
        history: What has happened: version, kind of event, object.
        forgotten: Version up to which nothing is remembered.
    """

    def __init__(self) -> None:
        self.things: dict[Key, Thing] = {}
        self.history: list[tuple[int, str, Thing]] = []
        self.forgotten = 0
        self.version = 1
        self.changed = asyncio.Event()

    def get(self, kind: str, namespace: str, name: str) -> Thing | None:
        return self.things.get((kind, namespace, name))

    def select(self, kind: str, namespace: str, labels: str = "", fields: str = "") -> list[Thing]:
        return [
            thing
            for (each, space, _), thing in self.things.items()
            if each == kind and space == namespace and matches(thing, labels, fields)
        ]

    def put(self, thing: Thing, namespace: str) -> Thing:
        """Adds an object, or another version of it."""
        key = (thing["kind"], namespace, thing["metadata"]["name"])
        there = self.things.get(key)
        metadata = thing["metadata"]
        if there is None:
            metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            if thing["kind"] != "Namespace":
                metadata["namespace"] = namespace
        self.things[key] = thing
        self._happened("ADDED" if there is None else "MODIFIED", thing)
        return thing

    def remove(self, thing: Thing) -> None:
        key = (thing["kind"], thing["metadata"].get("namespace", ""), thing["metadata"]["name"])
        if self.things.pop(key, None) is not None:
            self._happened("DELETED", thing)

    def forget(self) -> None:
        """Forgets what has happened, so that whoever watches has to list anew."""
        self.version += 1
        self.forgotten = self.version
        self.history.clear()
        self._tell()

    def _happened(self, what: str, thing: Thing) -> None:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, what, copy.deepcopy(thing)))
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def matches(thing: Thing, labels: str, fields: str) -> bool:
    has = thing["metadata"].get("labels", {})
    if any(has.get(term.partition("=")[0]) != term.partition("=")[2] for term in labels.split(",") if term):
        return False
    return all(_field(thing, term.partition("=")[0]) == term.partition("=")[2] for term in fields.split(",") if term)


def _field(thing: Thing, path: str) -> Any:
    found: Any = thing
    for name in path.split("."):
        found = found.get(name, {})
    return found
