"""Run servers in sandboxes of a service, behind one local proxy (`SandboxProvider`)."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import UsageError
from ..base import BlockingContainers, Leftover, SingleServerProvider, StartRate
from ..deployment import Deployment, Server
from ..owner import DEPLOYMENT, OWNER, PROVIDER
from ..redaction import KEYS
from ..spec import CONTAINER_PORT, LaunchSpec
from .proxy import proxy_of_this_loop
from .relay import ProxyTimeouts, SandboxRoute
from .service import RemoteSandbox, SandboxService


class SandboxProvider(BlockingContainers, SingleServerProvider):
    """Base of the providers that run servers in sandboxes of a service. Clients reach them over a proxy on loopback.

    The proxy, one for the whole process, checks the deployment's key, so that other users of this machine cannot use
    it. It sends the headers that the service asks for. A subclass sets `service`, and implements `wanted`.

    Args:
        glance_s: Seconds between two requests for the state of a sandbox.
        timeouts: Timeouts of the proxy.
        start_rate: How fast sandboxes are started, and retries of temporary failures.

    Attributes:
        service: The account at the service.
        surface_server_logs: Whether the log of a server is read, for errors and `logs`.
        retries: Retries of calls that the start rate does not limit, such as ends: they must not queue behind starts.
    """

    public = True
    service: SandboxService
    surface_server_logs = True

    def __init__(self, glance_s: float, timeouts: ProxyTimeouts | None, start_rate: StartRate | None):
        self.start_rate = start_rate or StartRate(rate=5.0)
        self.retries = replace(self.start_rate, rate=1000.0, at_once=64)
        self._glance_s = glance_s
        self._timeouts = timeouts or ProxyTimeouts()

    @abstractmethod
    def wanted(self, deployment: Deployment, port: int) -> dict[str, Any]:
        """Arguments of `SandboxService.create` for a server, in addition to name, port and labels."""

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`. The proxy checks the key even if the servers do not."""
        deployment = super().deployment(spec)
        if deployment.api_key is None:
            deployment.api_key = secrets.token_urlsafe(24)
        return deployment

    def spec_of(self, image: str, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        if port is not None:
            raise UsageError("all sandboxes are behind one local port, which cannot be chosen: leave out port")
        return LaunchSpec(
            image=image,
            command=options.pop("command", None),
            port=options.pop("container_port", None),
            replicas=options.pop("replicas", 1),
            env_vars=env_vars,
            options=options,
        )

    async def start_server(self, deployment: Deployment, server: Server) -> None:
        port = deployment.spec.port or CONTAINER_PORT
        wanted = self.wanted(deployment, port)
        hidden = [*deployment.secrets, *wanted.get("secrets", {}).values()]
        sandbox = RemoteSandbox(self.service, server.name, port, self._glance_s, hidden)
        assert deployment.api_key is not None
        entries = [entry.strip() for entry in deployment.variables.get(KEYS, "").split(",")]
        # All keys of the server. Empty if it does not check keys.
        keys = [entry.rpartition(":")[2] for entry in entries if entry not in {"", "none"}]
        route = SandboxRoute(server.name, keys or [deployment.api_key], sandbox, self._timeouts, shows_key=bool(keys))
        server.handle = route
        await sandbox.begin({_plain(name): value for name, value in deployment.labels.items()}, **wanted)
        server.url = await proxy_of_this_loop().add(route)

    async def stop_server(self, server: Server) -> None:
        route: SandboxRoute | None = server.handle
        if route is not None:
            await proxy_of_this_loop().remove(route)
            await route.sandbox.end()

    async def why_gone(self, server: Server) -> str | None:
        route: SandboxRoute | None = server.handle
        if route is None:
            return None
        await route.sandbox.look()
        return route.sandbox.gone

    async def read_log(self, server: Server, lines: int) -> str:
        route: SandboxRoute | None = server.handle
        if not self.surface_server_logs:
            return "(withheld: surface_server_logs=True shows it)"
        return "" if route is None else await route.sandbox.log(lines)

    async def find_leftovers(self) -> list[Leftover]:
        found = []
        for each in await self.service.living({_plain(PROVIDER): type(self).__name__}):
            labels: Mapping[str, str] = {name: each.labels.get(_plain(name), "") for name in (DEPLOYMENT, OWNER)}
            found.append(Leftover.from_labels(self.service.kind, each.id, labels, each.id))
        return found

    async def remove_leftover(self, leftover: Leftover) -> None:
        await self.service.end(leftover.handle)


def _plain(label: str) -> str:
    """A label's name without dots, which not every service allows."""
    return label.replace(".", "-")
