"""Run servers in sandboxes of Daytona (`DaytonaProvider`)."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Unpack

from ...errors import MissingExtra
from ...settings import variable_here
from ..base import StartRate
from ..dockerfile import Dockerfile
from ..spec import Capabilities
from .commands import CloudOptions, CommandSandboxProvider, CommandService
from .service import SandboxInfo

_SNAPSHOT = "snapshot:"
_OVER = frozenset({"destroyed", "destroying"})
_ENDED = _OVER | {"stopped", "stopping", "error", "build_failed", "archived", "archiving", "paused", "pausing"}


class DaytonaSandboxes(CommandService):
    """One account at Daytona.

    Args:
        config: Arguments of `daytona.DaytonaConfig`.
        cloud: Further arguments of the provider.
        retries, create_timeout_s: See `SandboxService`.

    Raises:
        MissingExtra: The package daytona is not installed.
        ProviderFailed: There is no key.
    """

    name = "Daytona"
    key_setting = "api_key (DAYTONA_API_KEY), and its expiry at https://app.daytona.io/dashboard/keys"
    no_answer = frozenset({"DaytonaConnectionError"})

    def __init__(self, config: dict[str, Any], cloud: CloudOptions, retries: StartRate, create_timeout_s: float):
        try:
            import daytona
        except ModuleNotFoundError as error:
            raise MissingExtra(error.name or "daytona", "daytona") from None
        self._sdk = daytona
        super().__init__([config.get("api_key") or ""], cloud, retries, create_timeout_s)
        url = variable_here("DAYTONA_API_URL") or "https://app.daytona.io/api"
        self.check_encrypted("DAYTONA_API_URL", url)
        try:
            self._client = daytona.Daytona(daytona.DaytonaConfig(api_url=url, **config))
        except daytona.DaytonaError as error:
            raise self.no_key(error) from None
        self._known: dict[str, Any] = {}

    def boot(
        self, image: str, variables: Mapping[str, str], labels: Mapping[str, str], port: int, **options: Any
    ) -> str:
        build = {name: options.pop(name) for name in ("on_snapshot_create_logs",) if name in options}
        resources, source = options.pop("resources", None), options.pop("source", None)
        options |= {"env_vars": dict(variables), "labels": dict(labels)}
        if image.startswith(_SNAPSHOT):
            params = self._sdk.CreateSandboxFromSnapshotParams(snapshot=image.removeprefix(_SNAPSHOT), **options)
        else:
            found = image if source is None else self._image(*source)
            params = self._sdk.CreateSandboxFromImageParams(image=found, resources=resources, **options)
        try:
            sandbox = self._client.create(params, timeout=self.create_timeout_s, **build)
        except self._sdk.DaytonaTimeoutError as error:
            if isinstance(error, self._sdk.DaytonaConnectionError):
                raise
            raise self.slow_boot() from None
        self._known[sandbox.id] = sandbox
        return str(sandbox.id)

    def _image(self, dockerfile: Dockerfile, context: Path) -> Any:
        with tempfile.NamedTemporaryFile("w", dir=context, prefix=".openenv-", suffix=".dockerfile") as file:
            file.write(dockerfile.for_any_engine().text)
            file.flush()
            return self._sdk.Image.from_dockerfile(file.name)

    def shell(self, sandbox_id: str, command: str) -> str:
        run = self._sandbox(sandbox_id).process.exec
        return str(run(f"sh -c {shlex.quote(command)}", timeout=max(1, round(self.timeout_s))).result)

    def reach(self, sandbox_id: str, port: int) -> tuple[str, Mapping[str, str]]:
        link = self._sandbox(sandbox_id).get_preview_link(port, request_timeout=self.timeout_s)
        return link.url, {"X-Daytona-Preview-Token": link.token}

    def state(self, sandbox_id: str) -> SandboxInfo:
        sandbox = self._sandbox(sandbox_id)
        sandbox.refresh_data(request_timeout=self.timeout_s)
        return self._info(sandbox)

    def delete(self, sandbox_id: str) -> None:
        self._sandbox(sandbox_id).delete(timeout=self.timeout_s)
        self._known.pop(sandbox_id, None)

    def labelled(self, labels: Mapping[str, str]) -> Iterable[SandboxInfo]:
        query = self._sdk.ListSandboxesQuery(labels=dict(labels))
        return [self._info(each) for each in self._client.list(query, request_timeout=self.timeout_s)]

    def answer_of(self, error: Exception) -> tuple[int, Mapping[str, str]] | None:
        status = getattr(error, "status_code", None)
        return None if status is None else (status, getattr(error, "headers", {}))

    def _sandbox(self, sandbox_id: str) -> Any:
        if sandbox_id not in self._known:
            self._known[sandbox_id] = self._client.get(sandbox_id, request_timeout=self.timeout_s)
        return self._known[sandbox_id]

    def _info(self, sandbox: Any) -> SandboxInfo:
        stage = str(getattr(sandbox.state, "value", sandbox.state))
        return SandboxInfo(
            id=str(sandbox.id),
            stage=stage,
            ended=stage in _ENDED,
            remains=stage not in _OVER,
            message=sandbox.error_reason or "",
            labels=sandbox.labels,
        )


class DaytonaProvider(CommandSandboxProvider):
    """Runs servers in sandboxes of Daytona.

    Example::

        async with await DaytonaProvider(image="my-org/env:latest").launch(LaunchSpec(target="echo")) as sandboxes:
            await sandboxes.ready()

    Args:
        image: An image, `snapshot:NAME`, or what `image_from_dockerfile` returned; for starts without one.
        env_vars: Environment variables of starts without any.
        api_key: Key of the account; None takes `DAYTONA_API_KEY`.
        public: Whether Daytona's proxy admits everybody; the server itself still asks for its key.
        resources: `daytona.Resources` of sandboxes from images.
        auto_stop_interval: Minutes without activity after which Daytona stops a sandbox; 0: never.
        target: Region; None takes `DAYTONA_TARGET`.
        on_snapshot_create_logs: Called with each line of the log of an image's build.
        cmd: Command line of the server. None: the `app` of the image's openenv.yaml, else the CMD of its Dockerfile.
        create_timeout: Seconds for the start of a sandbox, and the build of its image.
        cloud: See `CloudOptions`.

    Raises:
        MissingExtra: The package daytona is not installed.
        ProviderFailed: There is no key.
    """

    capabilities: ClassVar = Capabilities(forms=frozenset({"image", "target", "command"}), options=None)

    def __init__(
        self,
        *,
        image: str | None = None,
        env_vars: dict[str, str] | None = None,
        api_key: str | None = None,
        public: bool = False,
        resources: Any = None,
        auto_stop_interval: int = 15,
        target: str | None = None,
        on_snapshot_create_logs: Callable[[str], None] | None = None,
        cmd: str | None = None,
        create_timeout: float = 300,
        **cloud: Unpack[CloudOptions],
    ):
        super().__init__(image, env_vars, cmd, cloud)
        given = {"api_key": api_key, "target": target}
        config = {name: value for name, value in given.items() if value is not None}
        self.service = DaytonaSandboxes(config, cloud, self.retries, create_timeout)
        self._create = {
            "public": public,
            "auto_stop_interval": auto_stop_interval,
            "resources": resources,
            "on_snapshot_create_logs": on_snapshot_create_logs,
        }

    @staticmethod
    def strip_buildkit_syntax(dockerfile_content: str) -> str:
        """A Dockerfile for Daytona, which has no BuildKit. Raises `UsageError` if its result needs BuildKit."""
        return Dockerfile("the Dockerfile", tuple(dockerfile_content.splitlines())).for_any_engine().text

    def refresh_preview_url(self) -> str:
        """The address of the server, which does not expire: the proxy has the token of the sandbox's port."""
        return self.base_url

    def wanted(self, deployment: Any, port: int) -> dict[str, Any]:
        return {**self._create, **super().wanted(deployment, port)}
