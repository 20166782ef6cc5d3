"""Run servers in sandboxes of Azure Container Apps (`ACASandboxProvider`)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, Unpack

from ..._exceptions import add_cleanup_note
from ...errors import LaunchFailed, MissingExtra, UsageError
from ...settings import variable_here
from ..base import StartRate
from ..deployment import Deployment
from ..spec import Capabilities, LaunchSpec
from .commands import CloudOptions, CommandSandboxProvider, CommandService
from .service import SERVER, SandboxInfo

_OVER = frozenset({"Deleting", "Deleted"})
# Arguments that say where sandboxes are, and their environment variables.
_PLACE = {
    "subscription_id": "AZURE_SUBSCRIPTION_ID",
    "resource_group": "AZURE_RESOURCE_GROUP",
    "sandbox_group": "AZURE_SANDBOX_GROUP",
}


def _sdk() -> Any:
    try:
        from azure.containerapps import sandbox
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "azure-containerapps-sandbox", "azure") from None
    return sandbox


class AzureSandboxes(CommandService):
    """The sandboxes of one group in Azure Container Apps.

    Args:
        place: Arguments of the SDK's `SandboxGroupClient`.
        polling_s: Seconds between two requests for the state of a sandbox that starts.
        cloud: Further arguments of the provider.
        retries, create_timeout_s: See `SandboxService`.

    Raises:
        MissingExtra: A package of the SDK is not installed.
        UsageError: The SDK refuses the arguments.
    """

    name = "Azure Container Apps"
    key_setting = (
        "AZURE_SUBSCRIPTION_ID, the credential (`az login`, or AZURE_TENANT_ID, AZURE_CLIENT_ID and "
        "AZURE_CLIENT_SECRET), and its role in the sandbox group, which needs minutes to become valid"
    )
    no_answer = frozenset({"ServiceRequestError", "ServiceResponseError"})

    def __init__(
        self,
        place: dict[str, Any],
        polling_s: float,
        cloud: CloudOptions,
        retries: StartRate,
        create_timeout_s: float,
    ):
        super().__init__([], cloud, retries, create_timeout_s)
        self._polling_s = polling_s
        if place["credential"] is None:
            try:
                from azure.identity import DefaultAzureCredential
            except ModuleNotFoundError as error:
                raise MissingExtra(error.name or "azure-identity", "azure") from None
            place["credential"] = DefaultAzureCredential()
        try:
            self._group = _sdk().SandboxGroupClient(**place)
        except ValueError as error:
            raise UsageError(f"the SDK of {self.name} refuses the arguments of the provider: {error}") from None

    def boot(
        self, image: str, variables: Mapping[str, str], labels: Mapping[str, str], port: int, **options: Any
    ) -> str:
        private = image.removeprefix("disk-id:")
        disk = {"disk": image.removeprefix("disk:")} if private == image else {"disk_id": private}
        starting = self._group.begin_create_sandbox(
            **disk,
            environment=dict(variables),
            labels=dict(labels),
            polling_timeout=self.create_timeout_s,
            polling_interval=self._polling_s,
            **{name: value for name, value in options.items() if value is not None},
        )
        try:
            return str(starting.result().sandbox_id)
        except BaseException as error:
            with add_cleanup_note(error):
                for each in self.labelled({SERVER: labels[SERVER]}):
                    self.delete(each.id)
            if isinstance(error, TimeoutError):
                raise self.slow_boot() from None
            raise

    def shell(self, sandbox_id: str, command: str) -> str:
        return str(self._group.get_sandbox_client(sandbox_id).exec(command).stdout)

    def reach(self, sandbox_id: str, port: int) -> tuple[str, Mapping[str, str]]:
        url = self._group.get_sandbox_client(sandbox_id).add_port(port, anonymous=True).url
        if not url:
            raise LaunchFailed(f"{self.name} gave port {port} of {self.kind} {sandbox_id} no address")
        return str(url), {}

    def state(self, sandbox_id: str) -> SandboxInfo:
        return self._info(self._group.get_sandbox(sandbox_id))

    def delete(self, sandbox_id: str) -> None:
        self._group.delete_sandbox(sandbox_id)

    def labelled(self, labels: Mapping[str, str]) -> Iterable[SandboxInfo]:
        return [self._info(each) for each in self._group.list_sandboxes(labels=dict(labels))]

    def answer_of(self, error: Exception) -> tuple[int, Mapping[str, str]] | None:
        if "ClientAuthenticationError" in {cls.__name__ for cls in type(error).__mro__}:  # of the credential
            return getattr(error, "status_code", None) or 401, {}
        return super().answer_of(error)

    def close(self) -> None:
        """Closes the connections."""
        self._group.close()

    def _info(self, sandbox: Any) -> SandboxInfo:
        stage = str(sandbox.state)
        return SandboxInfo(
            id=str(sandbox.id),
            stage=stage,
            ended=stage != "Running",  # a suspended one resumes for a request, which sessions do not survive
            remains=stage not in _OVER,
            labels=sandbox.labels,
        )


class ACASandboxProvider(CommandSandboxProvider):
    """Runs servers in sandboxes of Azure Container Apps.

    An image is a disk of the sandbox group: `disk:NAME` or `NAME` for a public one, `disk-id:ID` for a private one.

    Example::

        safe = ACASandboxProvider.deny_all_egress()
        provider = ACASandboxProvider(image="disk:my-env", anonymous_port=True, egress_policy=safe)
        async with await provider.launch(LaunchSpec(target="echo")) as sandboxes:
            await sandboxes.ready()

    Args:
        subscription_id: The subscription; None takes AZURE_SUBSCRIPTION_ID.
        resource_group: Its resource group; None takes AZURE_RESOURCE_GROUP.
        sandbox_group: The group of the sandboxes; None takes AZURE_SANDBOX_GROUP.
        region: The region; None takes AZURE_REGION.
        endpoint: Address of the service; None takes that of the region.
        credential: A credential of azure-identity; None takes its `DefaultAzureCredential`.
        cpu: Processors of each sandbox, such as 1000m.
        memory: Memory of each sandbox, such as 2048Mi.
        disk_size: Disk of each sandbox; None: that of the image.
        auto_suspend_seconds: Seconds without activity after which the service suspends a sandbox.
        auto_suspend_mode: What is kept then: Memory or Disk.
        egress_policy: What sandboxes may reach, as by `deny_all_egress`; None: everything, with a warning.
        anonymous_port: Must be True: the service admits everybody to the server's port; the server asks for its key.
        image: Disk of starts and specifications without one.
        env_vars: Environment variables of starts without any.
        cmd: Command line of the server. None: the `app` of the image's openenv.yaml.
        working_directory: Folder of the server in its sandbox.
        surface_server_logs: Whether errors show the end of the log. Known secrets are masked in it.
        create_timeout: Seconds for the start of a sandbox.
        polling_interval: Seconds between two requests for the state of a sandbox that starts.
        sdk_kwargs: Further arguments of the SDK's client.
        cloud: See `CloudOptions`.

    Raises:
        MissingExtra: A package of the SDK is not installed.
        UsageError: An argument is missing or invalid.
    """

    capabilities: ClassVar = Capabilities(
        forms=frozenset({"image", "target", "command"}),
        options=frozenset({"cmd", "labels", "egress_policy", "anonymous_port"}),
    )

    def __init__(
        self,
        *,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        sandbox_group: str | None = None,
        region: str | None = None,
        endpoint: str | None = None,
        credential: Any = None,
        cpu: str = "1000m",
        memory: str = "2048Mi",
        disk_size: str | None = None,
        auto_suspend_seconds: int = 900,
        auto_suspend_mode: Literal["Memory", "Disk"] = "Memory",
        egress_policy: Any = None,
        anonymous_port: Literal[True] | None = None,
        image: str | None = None,
        env_vars: dict[str, str] | None = None,
        cmd: str | None = None,
        working_directory: str | None = None,
        surface_server_logs: bool = False,
        create_timeout: float = 300,
        polling_interval: float = 3,
        sdk_kwargs: dict[str, Any] | None = None,
        **cloud: Unpack[CloudOptions],
    ):
        if auto_suspend_mode not in {"Memory", "Disk"}:
            raise UsageError(f"auto_suspend_mode must be 'Memory' or 'Disk', got {auto_suspend_mode!r}")
        super().__init__(
            image, env_vars, cmd, cloud, working_directory=working_directory, surface_server_logs=surface_server_logs
        )
        given = dict(zip(_PLACE, (subscription_id, resource_group, sandbox_group), strict=True))
        place: dict[str, Any] = {name: value or variable_here(_PLACE[name]) for name, value in given.items()}
        region = region or variable_here("AZURE_REGION")
        missing = [f"{name} ({_PLACE[name]})" for name, value in place.items() if not value]
        if endpoint is None and not region:
            missing.append("region (AZURE_REGION)")
        if missing:
            raise UsageError(f"ACASandboxProvider needs {', '.join(missing)}: pass it, or set the variable")
        place["endpoint"] = endpoint or _sdk().endpoint_for_region(region)
        # `StartRate` repeats calls: the SDK would repeat a refused key for a minute.
        place |= {"credential": credential, "retry_total": 0, **(sdk_kwargs or {})}
        self._egress = {"egress_policy": egress_policy, "anonymous_port": anonymous_port}
        self._check(self._egress)
        self._create = {
            "cpu": cpu,
            "memory": memory,
            "disk_size": disk_size,
            "auto_suspend_seconds": auto_suspend_seconds,
            "auto_suspend_mode": auto_suspend_mode,
        }
        self.service: AzureSandboxes = AzureSandboxes(place, polling_interval, cloud, self.retries, create_timeout)

    @staticmethod
    def deny_all_egress(allow: list[str] | None = None) -> Any:
        """A policy for `egress_policy`: sandboxes reach only the hosts in `allow`."""
        sdk = _sdk()
        rules = [sdk.EgressHostRule(pattern=host, action="Allow") for host in allow or []]
        return sdk.EgressPolicy(default_action="Deny", host_rules=rules)

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`. Warns of servers that reach every address."""
        deployment = super().deployment(spec)
        image = spec.image or self._image or ""
        name = image.partition(":")[2] if image.startswith(("disk:", "disk-id:")) else image
        if not name.strip() or "/" in name or ":" in name:
            raise UsageError(f"image must be a disk: disk:NAME, NAME or disk-id:ID; got {image!r}")
        self._check({**self._egress, **spec.options})
        return deployment

    def _check(self, options: Mapping[str, Any]) -> None:
        if options["anonymous_port"] is not True:
            raise UsageError(
                "anonymous_port must be True: clients cannot log in at the ports of Azure Container Apps, so these "
                "must admit everybody; the server itself asks for its key"
            )

    def wanted(self, deployment: Any, port: int) -> dict[str, Any]:
        wanted = {**self._create, **self._egress, **super().wanted(deployment, port)}
        del wanted["anonymous_port"]
        if wanted["egress_policy"] is None:
            warnings.warn(
                "servers in sandboxes of Azure Container Apps can reach every address: pass "
                "egress_policy=ACASandboxProvider.deny_all_egress(allow=[...])",
                stacklevel=2,
            )
        return wanted

    def close(self) -> None:
        """Stops the running server, and closes the connections."""
        super().close()
        self.service.close()
