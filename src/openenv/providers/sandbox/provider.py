"""Run servers as jobs on the Hub (`HFSandboxProvider`)."""

from __future__ import annotations

import secrets as random_secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ...errors import MissingExtra, UsageError
from ..base import PRIVATE_SERVER_VARIABLES, BlockingContainers, Leftover, SingleServerProvider, StartRate
from ..deployment import Deployment, Server
from ..owner import DEPLOYMENT, OWNER, PROVIDER
from ..redaction import KEYS, is_secret, key_of
from ..spec import CONTAINER_PORT, Capabilities, LaunchSpec
from .jobs import HubJob, HubJobsApi
from .proxy import proxy_of_this_loop
from .relay import ProxyTimeouts, SandboxRoute

# Settings of the provider that a specification may override.
_OPTIONS = frozenset({"flavor", "timeout", "secrets", "labels"})


class HFSandboxProvider(BlockingContainers, SingleServerProvider):
    """Runs servers as jobs on the Hub. Clients reach them over a proxy on loopback, one for the whole process.

    The proxy checks the deployment's key, so that other users of this machine cannot use it. It sends the Hub's token
    to the Hub's proxy in front of the job.

    Example::

        async with await HFSandboxProvider(flavor="cpu-upgrade").launch(LaunchSpec(image=IMAGE)) as sandboxes:
            await sandboxes.ready()

    Args:
        image: Image of specifications without one: a target or a command. For a target, it must contain openenv.
        command: Command of the container, unless the specification has one: jobs ignore the command of their image.
        flavor: Hardware, as the Hub calls it.
        timeout: Time limit of a job, in seconds or as "30m": it ends jobs that could not be cancelled.
        env_vars: Environment variables of every server. Those with a secret's name become secrets of the job.
        secrets: Secrets of every server, by name of their environment variable.
        labels: Additional labels of every job.
        namespace: The user or organization that owns the jobs; None: the token's user.
        token: The Hub's token; None takes that of huggingface_hub.
        endpoint: Address of the Hub; None takes that of huggingface_hub.
        insecure: Allow http to other machines, for the Hub and for addresses of jobs.
        ready_timeout_s: Seconds that a server has to become ready, including the wait for hardware.
        request_timeout_s: Seconds for each request to the Hub.
        glance_s: Seconds between two requests for the state of a job.
        timeouts: Timeouts of the proxy.
        start_rate: How fast jobs are started, and retries of temporary failures.

    Raises:
        MissingExtra: huggingface_hub or httpx is not installed.
        ProviderFailed: There is no token.
        UsageError: The endpoint is not https.
    """

    capabilities: ClassVar = Capabilities(forms=frozenset({"image", "target", "command"}), options=_OPTIONS)
    public = True

    def __init__(
        self,
        *,
        image: str = "python:3.12",
        command: Sequence[str] = ("openenv", "serve", "."),
        flavor: str = "cpu-basic",
        timeout: float | str = "1h",
        env_vars: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        namespace: str | None = None,
        token: str | None = None,
        endpoint: str | None = None,
        insecure: bool = False,
        ready_timeout_s: float = 600.0,
        request_timeout_s: float = 30.0,
        glance_s: float = 1.0,
        timeouts: ProxyTimeouts | None = None,
        start_rate: StartRate | None = None,
    ):
        try:
            import httpx  # noqa: F401 - check for the extra before a start
        except ModuleNotFoundError:
            raise MissingExtra("httpx", "sandbox") from None
        self.start_rate = start_rate or StartRate(rate=5.0)
        # The start rate does not limit cancellations: they must not queue behind starts.
        retries = replace(self.start_rate, rate=1000.0, at_once=64)
        self._hub = HubJobsApi(endpoint, token, namespace, insecure, request_timeout_s, retries)
        self.variables = {**PRIVATE_SERVER_VARIABLES, **(env_vars or {}), **(secrets or {})}
        self.api_key = key_of(self.variables)
        self.ready_timeout_s = ready_timeout_s
        self._image = image
        self._command = list(command)
        self._defaults: dict[str, Any] = {
            "flavor": flavor,
            "timeout": timeout,
            "secrets": secrets or {},
            "labels": labels or {},
        }
        self._glance_s = glance_s
        self._timeouts = timeouts or ProxyTimeouts()

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`. The proxy checks the key even if the servers do not."""
        given = spec.options.get("secrets", {})
        deployment = super().deployment(spec.changed(env_vars={**spec.env_vars, **given}))
        if deployment.api_key is None:
            deployment.api_key = random_secrets.token_urlsafe(24)
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
        wanted = self._wanted(deployment, port)
        job = HubJob(self._hub, server.name, port, self._glance_s, [*deployment.secrets, *wanted["secrets"].values()])
        assert deployment.api_key is not None
        entries = [entry.strip() for entry in deployment.variables.get(KEYS, "").split(",")]
        # All keys of the server. Empty if it does not check keys.
        keys = [entry.rpartition(":")[2] for entry in entries if entry not in {"", "none"}]
        route = SandboxRoute(server.name, keys or [deployment.api_key], job, self._timeouts, shows_key=bool(keys))
        server.handle = route
        await job.begin(**wanted)
        server.url = await proxy_of_this_loop().add(route)

    def _wanted(self, deployment: Deployment, port: int) -> dict[str, Any]:
        """Arguments of `huggingface_hub.run_job` for a server."""
        spec, ours = deployment.spec, {_plain(name): value for name, value in deployment.labels.items()}
        chosen = {**self._defaults, **spec.options}
        given = {**self._defaults["secrets"], **spec.options.get("secrets", {})}
        labels = {**self._defaults["labels"], **spec.options.get("labels", {}), **ours}
        variables = {**deployment.variables, "HOST": "0.0.0.0", "PORT": str(port)}  # noqa: S104 - inside the job
        hidden = {
            name: value
            for name, value in variables.items()
            if name in given or name == KEYS or is_secret(name, value)
        }
        command = spec.command or self._command
        if spec.command is None and spec.target is not None:
            command = ["openenv", "serve", spec.target]
        return {
            "image": spec.image or self._image,
            "command": list(command),
            "env": {name: value for name, value in variables.items() if name not in hidden},
            "secrets": hidden,
            "labels": labels,
            "flavor": chosen["flavor"],
            "timeout": chosen["timeout"],
        }

    async def stop_server(self, server: Server) -> None:
        route: SandboxRoute | None = server.handle
        if route is not None:
            await proxy_of_this_loop().remove(route)
            await route.job.end()

    async def why_gone(self, server: Server) -> str | None:
        route: SandboxRoute | None = server.handle
        if route is None:
            return None
        await route.job.look()
        return route.job.gone

    async def read_log(self, server: Server, lines: int) -> str:
        route: SandboxRoute | None = server.handle
        return "" if route is None else await route.job.log(lines)

    async def find_leftovers(self) -> list[Leftover]:
        jobs = await self._hub.labelled({_plain(PROVIDER): type(self).__name__})
        found = []
        for job in jobs:
            labels = {name: (job.labels or {}).get(_plain(name), "") for name in (DEPLOYMENT, OWNER)}
            found.append(Leftover.from_labels("job", str(job.id), labels, str(job.id)))
        return found

    async def remove_leftover(self, leftover: Leftover) -> None:
        await self._hub.cancel(leftover.handle)


def _plain(label: str) -> str:
    """A label's name without dots, which the Hub does not allow."""
    return label.replace(".", "-")
