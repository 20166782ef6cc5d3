"""The providers by their names in commands, and the search for leftovers of each provider."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from itertools import groupby
from typing import Any

from .._asyncio import on_thread
from ..errors import OpenEnvError, UsageError
from .base import Leftover, Provider


@dataclass(frozen=True, slots=True)
class ProviderEntry:
    """A kind of place.

    Attributes:
        name: Its name in commands.
        class_name: Its class in `openenv.providers`.
        extra: The extra that it needs (`pip install 'openenv[EXTRA]'`), if any.
        place: Short description of where its servers run.
    """

    name: str
    class_name: str
    extra: str | None
    place: str

    def load(self) -> type[Provider]:
        """Its class. Does not import packages of the extra; its constructor may."""
        found: type[Provider] = getattr(import_module("openenv.providers"), self.class_name)
        return found

    def make(self, **options: Any) -> Provider:
        """A provider with the arguments of its class.

        Raises:
            MissingExtra: The extra is not installed.
            ProviderFailed: The place cannot be reached.
            UsageError: An argument is unknown.
        """
        found = self.load()
        there = signature(found).parameters.values()
        names = [
            each.name for each in there if each.kind in {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
        ]
        unknown = [name for name in options if name not in names]
        if unknown and not any(each.kind is Parameter.VAR_KEYWORD for each in there):
            raise UsageError(
                f"{found.__name__} has no argument {', '.join(unknown)}. Its arguments: {', '.join(names)}"
            )
        made: Provider = found(**options)
        return made


def catalog_entry(name: str) -> ProviderEntry:
    """The entry of a name. Raises `UsageError` for an unknown name."""
    found = CATALOG.get(name)
    if found is None:
        raise UsageError(f"there is no provider {name!r}. Available: {', '.join(CATALOG)}")
    return found


_ENTRIES = (
    ProviderEntry("local", "LocalProvider", None, "processes of this machine"),
    ProviderEntry("uv", "UVProvider", None, "projects on this machine, by uv run"),
    ProviderEntry("docker", "LocalDockerProvider", "docker", "containers of this machine's Docker engine"),
    ProviderEntry("swarm", "DockerSwarmProvider", "docker", "services of a Docker swarm"),
    ProviderEntry("kubernetes", "KubernetesProvider", "kubernetes", "pods of a Kubernetes cluster"),
    ProviderEntry("ray", "RayProvider", "ray", "actors of a Ray cluster"),
    ProviderEntry("slurm", "SlurmProvider", None, "jobs of a Slurm cluster"),
    ProviderEntry("aca", "ACASandboxProvider", "azure", "sandboxes of Azure Container Apps"),
    ProviderEntry("daytona", "DaytonaProvider", "daytona", "sandboxes of Daytona"),
    ProviderEntry("e2b", "E2BProvider", "e2b", "sandboxes of E2B"),
    ProviderEntry("novita", "NovitaSandboxProvider", "novita", "sandboxes of Novita"),
    ProviderEntry("hf", "HFSandboxProvider", "sandbox", "jobs on the Hub"),
    ProviderEntry("modal", "ModalProvider", "modal", "sandboxes of Modal"),
)
CATALOG: Mapping[str, ProviderEntry] = {each.name: each for each in _ENTRIES}
"""Every provider, by its name in commands."""


# Seconds for a place to list its objects: a place that does not answer must not delay the others.
ANSWER_S = 30.0
# Seconds for the removal of one leftover.
REMOVAL_S = 60.0
AT_ONCE = 16


class LeftoverScan:
    """The leftovers of one provider.

    Attributes:
        entry: The provider.
        found: Its leftovers, in the order of their removal.
        closed: Why the place cannot be searched. None if it can be.
    """

    def __init__(self, entry: ProviderEntry):
        self.entry = entry
        self.found: list[Leftover] = []
        self.closed: str | None = None
        self._provider: Provider | None = None

    async def look(self) -> None:
        """Lists the leftovers. Sets `closed` to the reason if that fails."""
        try:
            async with asyncio.timeout(ANSWER_S):
                if self._provider is None:
                    self._provider = await on_thread(self.entry.make, detached=True)  # it may hang
                self.found = await self._provider.leftovers()
        except TimeoutError:
            self.closed = f"no answer within {ANSWER_S:g} s"
        except Exception as error:  # noqa: BLE001 - an edge: the other places are searched all the same
            self.closed = _message_of(error)

    async def remove(self, wanted: Callable[[Leftover], bool]) -> list[tuple[Leftover, str | None]]:
        """Removes the wanted leftovers; each is paired with the reason why it could not be removed, or None."""
        provider, turns = self._provider, asyncio.Semaphore(AT_ONCE)
        assert provider is not None

        async def one(leftover: Leftover) -> tuple[Leftover, str | None]:
            async with turns:
                try:
                    async with asyncio.timeout(REMOVAL_S):
                        await provider.discard(leftover)
                except TimeoutError:
                    return leftover, f"timeout after {REMOVAL_S:g} s"
                except Exception as error:  # noqa: BLE001 - an edge: the others are removed all the same
                    return leftover, _message_of(error)
                return leftover, None

        outcomes: list[tuple[Leftover, str | None]] = []
        # One kind after the other: a network can only be removed after its containers.
        for _, kind in groupby(filter(wanted, self.found), lambda leftover: leftover.kind):
            outcomes += await asyncio.gather(*map(one, kind))
        return outcomes

    async def leave(self) -> None:
        """Closes the provider, if it was made and can be closed."""
        close = getattr(self._provider, "close", None)
        if close is not None:
            await on_thread(close)


async def places(entries: Iterable[ProviderEntry]) -> list[LeftoverScan]:
    """Searches the places of providers concurrently."""
    found = [LeftoverScan(entry) for entry in entries]
    await asyncio.gather(*(place.look() for place in found))
    return found


def _message_of(error: Exception) -> str:
    return error.message if isinstance(error, OpenEnvError) else f"{type(error).__name__}: {error}"
