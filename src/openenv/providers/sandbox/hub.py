"""Run servers as jobs on the Hub (`HFSandboxProvider`)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from ...errors import MissingExtra, ProviderFailed, UsageError
from ...settings import is_loopback_for_secrets
from ..base import PRIVATE_SERVER_VARIABLES, StartRate
from ..deployment import Deployment
from ..redaction import KEYS, is_secret, key_of
from ..spec import Capabilities, LaunchSpec
from .provider import SandboxProvider
from .relay import ProxyTimeouts
from .service import SandboxInfo, SandboxService

# Settings of the provider that a specification may override.
_OPTIONS = frozenset({"flavor", "timeout", "secrets", "labels"})
_ENDED = frozenset({"COMPLETED", "CANCELED", "ERROR", "DELETED"})


class HubJobs(SandboxService):
    """One user's jobs.

    Args:
        endpoint: Address of the Hub; None takes that of huggingface_hub (`HF_ENDPOINT`).
        token: Token of the user; None takes that of huggingface_hub (`HF_TOKEN`, `hf auth login`).
        namespace: The user or organization that owns the jobs; None takes the token's user.
        insecure, timeout_s, retries: See `SandboxService`.

    Raises:
        MissingExtra: huggingface_hub is not installed.
        ProviderFailed: There is no token.
        UsageError: The endpoint is not encrypted.
    """

    name = "the Hub"
    kind = "job"
    key_setting = "that the token (HF_TOKEN) has write access to jobs there"

    def __init__(
        self,
        endpoint: str | None,
        token: str | None,
        namespace: str | None,
        insecure: bool,
        timeout_s: float,
        retries: StartRate,
    ):
        try:
            import huggingface_hub
        except ModuleNotFoundError as error:
            raise MissingExtra(error.name or "huggingface_hub", "sandbox") from None
        found = str(token or huggingface_hub.get_token() or "")
        super().__init__([found], insecure, timeout_s, retries)
        if not found:
            raise ProviderFailed(
                "there is no token for the Hub: pass token=..., set HF_TOKEN, or run `hf auth login`"
            )
        self._token = found
        self._api = huggingface_hub.HfApi(endpoint=endpoint, token=found)
        self.check_encrypted("the Hub's endpoint (HF_ENDPOINT)", self._api.endpoint)
        self._namespace = namespace
        self._asking = threading.Lock()  # one concurrent request for the user: the Hub limits their rate

    def check_address(self, info: SandboxInfo) -> None:
        super().check_address(info)
        host = urlsplit(info.url or "").hostname or ""
        if not (host.startswith(f"{info.id}--".lower()) or is_loopback_for_secrets(host)):
            raise UsageError(f"job {info.id} has the address {info.url}, which is not its own")

    def create(self, name: str, port: int, labels: Mapping[str, str], **wanted: Any) -> SandboxInfo:
        job = {**wanted, "labels": dict(labels), "name": name, "expose": [port]}
        return self._info(self._api.run_job(namespace=self._owner_name(), **job))

    def inspect(self, sandbox_id: str) -> SandboxInfo:
        return self._info(self._api.inspect_job(job_id=sandbox_id, namespace=self._owner_name()))

    def delete(self, sandbox_id: str) -> None:
        self._api.cancel_job(job_id=sandbox_id, namespace=self._owner_name())

    def labelled(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        listed = self._api.list_jobs(labels=dict(labels), namespace=self._owner_name(), timeout=self.timeout_s)
        return [self._info(job) for job in listed]

    def log(self, sandbox_id: str, lines: int) -> str:
        read = self._api.fetch_job_logs(job_id=sandbox_id, namespace=self._owner_name(), tail=lines)
        return "\n".join(str(line).rstrip("\n") for line in read)

    def _owner_name(self) -> str:
        with self._asking:
            if self._namespace is None:
                self._namespace = str(self._api.whoami()["name"])
        return self._namespace

    def _info(self, job: Any) -> SandboxInfo:
        stage = str(getattr(job.status.stage, "value", job.status.stage))
        ended = stage in _ENDED
        return SandboxInfo(
            id=str(job.id),
            stage=stage,
            ended=ended,
            remains=not ended,
            message=job.status.message or "",
            url=next(iter(job.status.expose_urls or []), None),
            headers={"Authorization": f"Bearer {self._token}"},
            labels=job.labels or {},
        )


class HFSandboxProvider(SandboxProvider):
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
        super().__init__(glance_s, timeouts, start_rate)
        self.service = HubJobs(endpoint, token, namespace, insecure, request_timeout_s, self.retries)
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

    def deployment(self, spec: LaunchSpec) -> Deployment:
        given = spec.options.get("secrets", {})
        return super().deployment(spec.changed(env_vars={**spec.env_vars, **given}))

    def wanted(self, deployment: Deployment, port: int) -> dict[str, Any]:
        """Arguments of `huggingface_hub.run_job` for a server."""
        spec = deployment.spec
        chosen = {**self._defaults, **spec.options}
        given = {**self._defaults["secrets"], **spec.options.get("secrets", {})}
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
            "labels": {**self._defaults["labels"], **spec.options.get("labels", {})},
            "flavor": chosen["flavor"],
            "timeout": chosen["timeout"],
        }
