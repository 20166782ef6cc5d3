"""What has become of a Pod, by what the cluster says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["address_of", "end_of", "never_ran", "unplaced"]

Manifest = Mapping[str, Any]

# Reasons for which a container waits that it does not come out of by itself.
_HOPELESS = {
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
}
# What their messages say where the kubelet only waits for others, and will try again: after a stall, for one.
_PASSING = ("failed to sync ", "timed out", "deadline exceeded")


def end_of(pod: Manifest) -> str | None:
    """Why a Pod is no server, and will never be one, to go on with after "the server"; None: it is, or may be.

    That there is no node for it is not among the reasons: see `unplaced`.
    """
    status = pod.get("status", {})
    if status.get("phase") == "Failed" and status.get("reason"):
        # An eviction, or a time that is over: containers are stopped for it, and may end with exit code 0.
        return f"was ended by the cluster ({_because(status)})"
    restarts = pod.get("spec", {}).get("restartPolicy") == "Always"
    for container in _containers(pod):
        end = _end_of_container(container, restarts)
        if end is not None:
            return end
    if status.get("phase") in {"Failed", "Succeeded"}:
        return f"was ended by the cluster ({_because(status) or status['phase']})"
    if pod.get("metadata", {}).get("deletionTimestamp") is not None:
        return f"is being removed from the cluster{_whereby(pod)}"
    return None


def unplaced(pod: Manifest) -> str | None:
    """Why no node takes a Pod, to go on with after "the server"; None where one has, or it was not looked for yet."""
    condition = _condition(pod, "PodScheduled")
    if condition.get("status") == "False" and condition.get("reason") == "Unschedulable":
        return f"finds no node that takes it (Unschedulable: {condition.get('message', 'no reason given')})"
    return None


def address_of(pod: Manifest) -> str | None:
    """The address of a Pod within its cluster, if it has one."""
    address = pod.get("status", {}).get("podIP")
    if not address:
        return None
    return f"[{address}]" if ":" in address else str(address)


def never_ran(pod: Manifest) -> bool:
    """Whether none of its containers has been started yet."""
    states = [{**each.get("state", {}), **each.get("lastState", {})} for each in _containers(pod)]
    return not any("running" in state or "terminated" in state for state in states)


def _end_of_container(container: Manifest, restarts: bool) -> str | None:
    state = container.get("state", {})
    if "terminated" in state:
        # One that is started again is between two lives. An init container that did its work is no end of anything.
        return None if restarts or container.get("ready") else _ended(state["terminated"])
    waiting = state.get("waiting", {})
    reason = waiting.get("reason")
    if reason not in _HOPELESS:
        return None
    if reason == "CrashLoopBackOff":
        return f"{_ended(container.get('lastState', {}).get('terminated', {}))}, again and again ({reason})"
    message = waiting.get("message", "no reason given")
    return None if any(each in message for each in _PASSING) else f"cannot start ({reason}: {message})"


def _ended(terminated: Manifest) -> str:
    reason = terminated.get("reason")
    told = f" ({_because(terminated)})" if reason and reason not in {"Error", "Completed"} else ""
    return f"ended with exit code {terminated.get('exitCode', 'unknown')}{told}"


def _containers(pod: Manifest) -> Iterator[Manifest]:
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _condition(pod: Manifest, kind: str) -> Manifest:
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def _whereby(pod: Manifest) -> str:
    because = _because(_condition(pod, "DisruptionTarget"))
    return f" ({because})" if because else ""


def _because(part: Manifest) -> str:
    return ": ".join(part[name] for name in ("reason", "message") if part.get(name))
