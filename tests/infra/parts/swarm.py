"""A swarm of several Docker engines on this machine, each a node in a network namespace of its own."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from .dockerd import Dockerd, dockerd
from .image import Quick, quick

__all__ = ["Node", "everywhere", "swarm_of"]


@dataclass(frozen=True, slots=True)
class Node:
    """One engine of a swarm; the first is its manager.

    Attributes:
        engine: The engine.
        address: Where the tests, and the other nodes, reach it.
        namespace: The network namespace that it is in.
    """

    engine: Dockerd
    address: str
    namespace: str


@contextlib.contextmanager
def swarm_of(nodes: int, arguments: Sequence[str] = ()) -> Iterator[list[Node]]:
    """Starts engines and joins them to a swarm; skips the test, with the reason, where that cannot be.

    Args:
        nodes: How many.
        arguments: Further arguments of each dockerd.
    """
    with contextlib.ExitStack() as stack:
        net, names = stack.enter_context(_cables(nodes))
        engines = [
            stack.enter_context(dockerd(namespace=name, hostname=name, iptables=True, arguments=arguments))
            for name in names
        ]
        clients: list[Any] = [stack.enter_context(contextlib.closing(engine.client())) for engine in engines]
        places = [f"{net}.{number}" for number in range(2, nodes + 2)]
        clients[0].swarm.init(advertise_addr=places[0], listen_addr=f"{places[0]}:2377")
        clients[0].swarm.reload()
        token = clients[0].swarm.attrs["JoinTokens"]["Worker"]
        for client, place in zip(clients[1:], places[1:], strict=True):
            client.swarm.join([f"{places[0]}:2377"], token, advertise_addr=place, listen_addr=f"{place}:2377")
        yield [Node(*parts) for parts in zip(engines, places, names, strict=True)]


@contextlib.contextmanager
def _cables(nodes: int) -> Iterator[tuple[str, list[str]]]:
    """Network namespaces at one switch, which this one is at too; yields their net's beginning, and their names."""
    with contextlib.ExitStack() as stack:
        for number in itertools.count(1):
            # The name of this end of the cable is the claim to the net: the kernel has each name once.
            here, switch = f"oe-swarm{number}", f"oe-switch{number}"
            made = _ip("link", "add", here, "type", "veth", "peer", "name", f"{here}x")
            if made.returncode == 0:
                break
            if "exists" not in made.stderr or number == 99:
                pytest.skip(f"a swarm's nodes need cables, which cannot be made here: {made.stderr.strip()}")
        stack.callback(_ip, "link", "delete", here)
        net, names = f"10.232.{number}", [f"oe-node{number}-{each}" for each in range(1, nodes + 1)]
        for name in (switch, *names):
            _ip("netns", "delete", name)  # of a run that was killed
            _done("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
            _done("-n", name, "link", "set", "lo", "up")
        # The switch has a namespace of its own, where no rules of iptables hold its frames up.
        _done("-n", switch, "link", "add", "switch", "type", "bridge")
        _done("-n", switch, "link", "set", "switch", "up")
        _plug(f"{here}x", switch)
        _done("address", "add", f"{net}.1/24", "dev", here)
        _done("link", "set", here, "up")
        for each, name in enumerate(names, 2):
            _done("link", "add", f"{name}x", "type", "veth", "peer", "name", "eth0", "netns", name)
            _plug(f"{name}x", switch)
            _done("-n", name, "address", "add", f"{net}.{each}/24", "dev", "eth0")
            _done("-n", name, "link", "set", "eth0", "up")
            _done("-n", name, "route", "add", "default", "via", f"{net}.1")
        yield net, names


def _plug(end: str, switch: str) -> None:
    _done("link", "set", end, "netns", switch)
    _done("-n", switch, "link", "set", end, "master", "switch", "up")


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


def _done(*words: str) -> None:
    made = _ip(*words)
    assert made.returncode == 0, f"ip {' '.join(words)}: {made.stderr.strip()}"


def everywhere(nodes: Sequence[Node]) -> Quick:
    """Puts the image with nothing in it into every node's engine: the same one, as if it came from a registry."""
    with contextlib.closing(nodes[0].engine.client()) as first:
        image = quick(first)
        parcel = b"".join(first.images.get(image.image).save(named=True))
    for node in nodes[1:]:
        with contextlib.closing(node.engine.client()) as other:
            other.images.load(parcel)
    return image
