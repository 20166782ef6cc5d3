"""A Ray cluster, as far as servers need one: calls that block, some for as long as Ray waits for its head."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..errors import LaunchFailed, MissingExtra, ProviderFailed
from ..settings import ray_address
from . import farewell
from .process import GRACE_S
from .ray_actor import Plan, Report, ServerActor

__all__ = ["ANSWER_S", "ActorAway", "ActorGone", "Cluster"]

ANSWER_S = 5.0
"""Seconds for an answer of an actor."""
# Calls of an actor at one time: some wait for its server to listen, while others must not wait.
_CALLS = 8
_connecting = threading.Lock()


class ActorGone(ProviderFailed):
    """There is no such actor, and Ray will not make it again."""


class ActorAway(ProviderFailed):
    """An actor that does not answer at the moment: Ray is making it, or making it again on another node."""

    retryable = True


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process is connected to, or connects to when that is needed.

    Attributes:
        address: As for `ray.init`.
        start: Whether a cluster of this process alone is started where there is none.
        namespace: Where names of actors are.
    """

    address: str | None
    start: bool
    namespace: str

    def connected(self) -> Any:
        """The module `ray`, connected. What the process is connected to already is used as it is, and stays.

        Raises:
            MissingExtra: Ray is not installed.
            ProviderFailed: No cluster can be reached.
        """
        ray = required()
        with _connecting:
            if not ray.is_initialized():
                self._connect(ray)
                farewell.before()  # Ray, too, leaves when the process ends
        return ray

    def is_connected(self) -> bool:
        """Whether this process is connected to a cluster, whoever has done it. Does not block."""
        return bool(required().is_initialized())

    def reserve(self, name: str, bundles: Sequence[Mapping[str, float]], strategy: str) -> str:
        """Asks for a placement group, and does not wait for its places. Returns its id."""
        with self._said("reserving places") as ray:
            group = ray.util.placement_group(list(map(dict, bundles)), strategy, name, lifetime="detached")
            return str(group.id.hex())

    def placed(self, group: str, timeout_s: float) -> bool:
        """Whether a group has its places, at the latest after `timeout_s`."""
        with self._said("placing servers") as ray:
            return bool(_group(ray, group).wait(timeout_s))

    def release(self, group: str) -> None:
        """Removes a placement group. What is gone already is no error."""
        with self._said("releasing places") as ray:
            ray.util.remove_placement_group(_group(ray, group))

    def room(self) -> str:
        """What there is free in the cluster, in words."""
        with self._said("asking for resources") as ray:
            free = ray.available_resources()
            return ", ".join(f"{free[name]:g} {name}" for name in sorted(free) if ":" not in name) or "nothing"

    def create(self, name: str, plan: Plan, needs: Mapping[str, float], group: str, place: int) -> None:
        """Makes an actor with a server, and does not wait for it."""
        with self._said("making an actor") as ray:
            custom = {key: value for key, value in needs.items() if key not in {"CPU", "GPU", "memory"}}
            where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(_group(ray, group), place)
            options = {
                "name": name,
                "namespace": self.namespace,
                "lifetime": "detached",
                "max_restarts": plan.restarts,
                "max_concurrency": _CALLS,
                "num_cpus": needs.get("CPU", 0),
                "num_gpus": needs.get("GPU", 0),
                "resources": custom,
                "scheduling_strategy": where,
            }
            if "memory" in needs:
                options["memory"] = needs["memory"]
            ray.remote(ServerActor).options(**options).remote(plan)

    def report(self, name: str, wait_s: float = 0.0) -> Report:
        """See `ServerActor.report`. Raises `ActorGone` or `ActorAway`."""
        found: Report = self._asked(name, "report", ANSWER_S + wait_s, wait_s)
        return found

    def tail(self, name: str) -> str:
        """See `ServerActor.tail`. Raises `ActorGone` or `ActorAway`."""
        return str(self._asked(name, "tail", ANSWER_S))

    def end(self, name: str, namespace: str | None = None) -> None:
        """Ends a server, then its actor. What is gone already is no error."""
        with contextlib.suppress(ActorGone, ActorAway):
            self._asked(name, "stop", GRACE_S + ANSWER_S, namespace=namespace)
        with contextlib.suppress(ActorGone), self._said("ending an actor") as ray:
            ray.kill(self._actor(ray, name, namespace), no_restart=True)

    def actors(self) -> list[tuple[str, str]]:
        """The namespace and name of all named actors of all programs."""
        with self._said("listing actors") as ray:
            found = ray.util.list_named_actors(all_namespaces=True)
            return [(each["namespace"], each["name"]) for each in found]

    def groups(self) -> list[tuple[str, str]]:
        """The id and name of all placement groups of all programs."""
        with self._said("listing placement groups") as ray:
            table = ray.util.placement_group_table()
            return [(key, row["name"]) for key, row in table.items() if row["state"] != "REMOVED"]

    def _connect(self, ray: Any) -> None:
        address = "local" if self.start else self.address or ray_address() or "auto"
        try:
            _reach(address)
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # noqa: BLE001 - Ray raises whatever it got from below
            raise ProviderFailed(
                f"no Ray cluster can be reached ({_brief(error)}); begin one with `ray start --head`, say where it "
                "is (address, RAY_ADDRESS; RAY_AUTH_MODE and its token as there), or RayProvider(start=True)"
            ) from None

    def _asked(self, name: str, method: str, limit_s: float, *arguments: Any, namespace: str | None = None) -> Any:
        with self._said(f"{method} of an actor") as ray:
            call = getattr(self._actor(ray, name, namespace), method).remote(*arguments)
            try:
                return ray.get(call, timeout=limit_s)
            except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError) as error:
                raise ActorAway(f"does not answer: {_brief(error)}") from None
            except ray.exceptions.RayActorError as error:
                raise ActorGone(f"has lost its actor: {_brief(error)}") from None

    def _actor(self, ray: Any, name: str, namespace: str | None) -> Any:
        try:
            return ray.get_actor(name, namespace=namespace or self.namespace)
        except ValueError:
            raise ActorGone("has no actor any more") from None

    @contextlib.contextmanager
    def _said(self, what: str) -> Iterator[Any]:
        """Translates what Ray raises."""
        ray = self.connected()
        try:
            yield ray
        except ProviderFailed:
            raise
        except Exception as error:  # noqa: BLE001 - Ray raises whatever it got from below
            raise LaunchFailed(f"{what}: Ray says {_brief(error)}") from None


def required() -> Any:
    """The module `ray`. Raises `MissingExtra`."""
    try:
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    return ray


def _reach(address: str) -> None:
    """Raises `OSError` where nobody listens, which Ray would take more than a minute to say."""
    place = urlsplit(address if "//" in address else f"//{address}")
    with contextlib.suppress(ValueError):
        if place.hostname and place.port:
            socket.create_connection((place.hostname, place.port), ANSWER_S).close()


def _group(ray: Any, group: str) -> Any:
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group)))


def _brief(error: BaseException) -> str:
    """An error of Ray's, which may be long, in a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}" if text else type(error).__name__
