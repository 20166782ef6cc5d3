"""What is done with the objects of a cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from ...background import to_its_end
from ...errors import LaunchFailed, ProviderFailed
from .api import Api, Place, Refused, Unanswered, decoded, translated

__all__ = ["KINDS", "Cluster", "Expired", "Manifest"]

Manifest = dict[str, Any]

KINDS = {
    "Deployment": ("apps/v1", "deployments"),
    "DaemonSet": ("apps/v1", "daemonsets"),
    "Pod": ("v1", "pods"),
    "Service": ("v1", "services"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "horizontalpodautoscalers"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Secret": ("v1", "secrets"),
    "Event": ("v1", "events"),
    "Namespace": ("v1", "namespaces"),
}
"""Version and path of each kind that is used here."""
MANAGER = "openenv"
"""Who has set a field, where several do."""
# Seconds after which what is watched is asked for anew, and of silence beyond that: a connection may be dead, and
# nobody has said so.
WATCH_S, SILENCE_S = 45, 15
_NOT_FOUND, _CONFLICT, _GONE = 404, 409, 410


class Expired(Exception):
    """What is watched has to be listed again: the cluster remembers no more what has happened since."""


def _age(event: Manifest) -> tuple[str, bool, int]:
    """Sorts events, the most telling last: times are in seconds, and "BackOff" says less than what went before."""
    when = event.get("lastTimestamp") or event.get("eventTime") or ""
    version = event.get("metadata", {}).get("resourceVersion", "")
    return when, event.get("reason") != "BackOff", int(version) if version.isdigit() else 0


class Cluster:
    """The objects of one namespace.

    Args:
        api: The cluster's API, as somebody with certain rights.
    """

    def __init__(self, api: Api):
        self.api = api

    async def create(self, manifest: Manifest) -> Manifest:
        """Creates an object, or finds it there as a request made it whose answer was lost.

        A caller who is cancelled waits until it is known whether it is there: so it can be deleted.

        Raises:
            LaunchFailed: The cluster refuses it (`ProviderBusy`: at the moment).
        """
        with translated(f"creating {manifest['kind']} {manifest['metadata']['name']}", LaunchFailed):
            return await to_its_end(self._created(manifest))

    async def apply(self, manifest: Manifest) -> Manifest:
        """Has an object be as a manifest says, whether it is there or not (server-side apply).

        Raises:
            LaunchFailed: The cluster refuses it (`ProviderBusy`: at the moment).
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        with translated(f"applying {kind} {name}", LaunchFailed):
            return await self._answer(
                "PATCH",
                await self._place(kind, name),
                manifest,
                {"fieldManager": MANAGER, "force": "true"},
                {"Content-Type": "application/apply-patch+yaml"},
            )

    async def get(self, kind: str, name: str) -> Manifest | None:
        """An object; None where there is none.

        Raises:
            ProviderFailed: The cluster does not say.
        """
        with translated(f"looking at {kind} {name}"):
            try:
                return await self._answer("GET", await self._place(kind, name))
            except Refused as refusal:
                if refusal.status == _NOT_FOUND:
                    return None
                raise

    async def find(self, kind: str, **selectors: str) -> tuple[list[Manifest], str]:
        """Objects of a kind, and the version of the whole, from which changes can be watched.

        Args:
            kind: The kind.
            selectors: `labelSelector` and `fieldSelector`, as the API has them.

        Raises:
            ProviderFailed: The cluster does not say.
        """
        with translated(f"looking for {KINDS[kind][1]}"):
            found = await self._answer("GET", await self._place(kind), params=selectors)
        return found.get("items") or [], found.get("metadata", {}).get("resourceVersion", "")

    async def delete(self, kind: str, name: str, *, uid: str | None = None, grace_s: int | None = None) -> None:
        """Deletes an object, and what it has made. It need not be there.

        Args:
            kind: The kind.
            name: Its name.
            uid: Only if it is this one, and not another of its name.
            grace_s: Seconds that a Pod has to end; None: as it says itself. With 0, it is forgotten at once.

        Raises:
            ProviderFailed: The cluster does not do it.
        """
        body: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        with translated(f"deleting {kind} {name}"):
            try:
                await self.api.text("DELETE", await self._place(kind, name), body)
            except Refused as refusal:
                if refusal.status != _NOT_FOUND and not (uid is not None and refusal.status == _CONFLICT):
                    raise

    async def log(self, pod: str, lines: int) -> str:
        """The last lines of a Pod's log; "" where there is none to be had."""
        params = {"tailLines": str(lines)}
        try:
            text = await self.api.text("GET", await self._place("Pod", f"{pod}/log"), params=params, attempts=2)
        except (Refused, Unanswered):
            return ""
        return text.rstrip()

    async def warnings(self, name: str) -> list[str]:
        """What the cluster warns of about an object, the latest last; [] where it does not say."""
        try:
            events, _ = await self.find("Event", fieldSelector=f"involvedObject.name={name},type=Warning")
        except ProviderFailed:
            return []
        events.sort(key=_age)
        return [f"{event.get('reason')}: {event.get('message')}" for event in events]

    async def watch(self, kind: str, since: str, **selectors: str) -> AsyncGenerator[tuple[str, Manifest]]:
        """What happens to objects of a kind, until the question has to be asked anew.

        Args:
            kind: The kind.
            since: A version that `find` or an object had.
            selectors: As for `find`.

        Yields:
            ADDED, MODIFIED, DELETED or BOOKMARK, and the object.

        Raises:
            Expired: That version is too old.
            ProviderFailed: The cluster does not say.
        """
        params = {
            **selectors,
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        with translated(f"watching {KINDS[kind][1]}"):
            try:
                async with aclosing(self.api.lines(await self._place(kind), params, WATCH_S + SILENCE_S)) as lines:
                    async for line in lines:
                        event = decoded(line)
                        if event["type"] == "ERROR":
                            raise Refused(event["object"].get("code") or 500, str(event["object"].get("message")))
                        yield event["type"], event["object"]
            except Refused as refusal:
                if refusal.status == _GONE:
                    raise Expired from None
                raise

    async def road_to(
        self, pod: str, port: int, refused: Mapping[str, Any] | None = None
    ) -> tuple[str, Mapping[str, Any]]:
        """The address of a WebSocket that leads to a port of a Pod, and what `websockets.connect` needs for it.

        Args:
            pod: The Pod.
            port: Its port.
            refused: What was needed before, and was not let in.

        Raises:
            ProviderFailed: The cluster is not to be found.
        """
        with translated(f"reaching Pod {pod}"):
            return await self.api.road(await self._place("Pod", f"{pod}/portforward?ports={port}"), refused)

    async def _created(self, manifest: Manifest) -> Manifest:
        kind, metadata = manifest["kind"], manifest["metadata"]
        try:
            return await self._answer("POST", await self._place(kind), manifest, attempts=1)
        except Refused as refusal:
            there = await self.get(kind, metadata["name"]) if refusal.status == _CONFLICT else None
            if there is None or not metadata["labels"].items() <= there["metadata"].get("labels", {}).items():
                raise
            return there

    async def _answer(self, method: str, place: Place, *more: Any, **settings: Any) -> Manifest:
        return decoded(await self.api.text(method, place, *more, **settings))

    async def _place(self, kind: str, name: str | None = None) -> Place:
        version, plural = KINDS[kind]
        path = plural if name is None else f"{plural}/{name}"
        return Place(version, path, None if kind == "Namespace" else await self.api.namespace())
