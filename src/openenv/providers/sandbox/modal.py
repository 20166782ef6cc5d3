"""Run servers in sandboxes of Modal (`ModalProvider`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Unpack

from ..._exceptions import add_cleanup_note
from ...errors import MissingExtra, ProviderFailed
from ..base import StartRate
from ..deployment import run_exit_hook_first
from ..spec import Capabilities
from .commands import CloudOptions, CommandSandboxProvider, CommandService
from .service import SandboxInfo

# Modal's default requests: `cpu` and `memory` are limits, which cost nothing until they are used.
_REQUESTS = {"cpu": 0.125, "memory": 128}
# The SDK's exit codes of sandboxes that did not end by themselves.
_EXITS = {124: "its `timeout` is over", 137: "it was terminated"}
# Names of modal's errors, and the HTTP status that says the same.
_STATUSES = {
    "InvalidError": 400,
    "AuthError": 401,
    "PermissionDeniedError": 403,
    "NotFoundError": 404,
    "ConflictError": 409,
    "ResourceExhaustedError": 429,
    "InternalError": 500,
    "ServiceError": 503,
}


class ModalSandboxes(CommandService):
    """The sandboxes of one app at Modal.

    Args:
        app_name: The app, which is created if it is missing.
        use_sandbox_v2: Whether sandboxes are of the second version, also where that is not the default of the SDK.
        cloud: Further arguments of the provider.
        retries, create_timeout_s: See `SandboxService`.

    Raises:
        MissingExtra: The package modal is not installed.
        ProviderFailed: There is no token, or this modal has no sandboxes of the second version.
    """

    name = "Modal"
    key_setting = "MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`"
    no_answer = frozenset({"ConnectionError"})

    def __init__(
        self,
        app_name: str,
        use_sandbox_v2: bool,
        cloud: CloudOptions,
        retries: StartRate,
        create_timeout_s: float,
    ):
        try:
            import modal
        except ModuleNotFoundError as error:
            raise MissingExtra(error.name or "modal", "modal") from None
        run_exit_hook_first()  # modal's own exit hook closes its connections
        settings = modal.config.config
        super().__init__([settings.get("token_secret") or ""], cloud, retries, create_timeout_s)
        if not any(map(settings.get, ("token_id", "oauth_refresh_token", "task_id"))):
            raise self.no_key("there is none")
        create = getattr(modal.Sandbox, "_experimental_create", None) if use_sandbox_v2 else modal.Sandbox.create
        if create is None:
            raise ProviderFailed("this modal has no sandboxes of the second version: leave out use_sandbox_v2")
        self._sdk = modal
        self._create = create
        self._app_name = app_name
        self._known: dict[str, Any] = {}

    def boot(
        self, image: str, variables: Mapping[str, str], labels: Mapping[str, str], port: int, **options: Any
    ) -> str:
        source = options.pop("source", None)
        images = self._sdk.Image
        if source is None:
            wanted = images.from_registry(image)
        else:
            wanted = images.from_dockerfile(source[0].name, context_dir=source[1])
        for name, request in _REQUESTS.items():
            if options.get(name) is not None:
                options[name] = (request, options[name])
        sandbox = self._create(
            "sleep",
            "infinity",
            app=self._app(),
            image=wanted,
            env=dict(variables),
            tags=dict(labels),
            encrypted_ports=[port],
            **options,
        )
        sandbox_id = str(sandbox.object_id)
        self._known[sandbox_id] = sandbox
        try:
            sandbox.tunnels(timeout=max(1, round(self.create_timeout_s)))
        except BaseException as error:
            with add_cleanup_note(error):
                self.delete(sandbox_id)
            if isinstance(error, self._sdk.exception.SandboxTimeoutError):
                raise self.slow_boot(sandbox_id) from None
            raise
        return sandbox_id

    def shell(self, sandbox_id: str, command: str) -> str:
        process = self._sandbox(sandbox_id).exec("sh", "-c", command, timeout=max(1, round(self.timeout_s)))
        text = str(process.stdout.read())
        process.wait()
        return text

    def reach(self, sandbox_id: str, port: int) -> tuple[str, Mapping[str, str]]:
        return str(self._sandbox(sandbox_id).tunnels()[port].url), {}

    def state(self, sandbox_id: str) -> SandboxInfo:
        code = self._sandbox(sandbox_id).poll()
        if code is None:
            return SandboxInfo(id=sandbox_id, stage="RUNNING")
        self._known.pop(sandbox_id, None)
        reason = _EXITS.get(code, f"exit code {code}")
        return SandboxInfo(id=sandbox_id, stage="ENDED", ended=True, remains=False, message=reason)

    def delete(self, sandbox_id: str) -> None:
        sandbox = self._sandbox(sandbox_id)
        sandbox.terminate()
        sandbox.detach()
        self._known.pop(sandbox_id, None)

    def labelled(self, labels: Mapping[str, str]) -> Iterator[SandboxInfo]:
        for each in self._sdk.Sandbox.list(app_id=self._app().app_id, tags=dict(labels)):
            yield SandboxInfo(id=str(each.object_id), stage="RUNNING", labels=each.get_tags())

    def answer_of(self, error: Exception) -> tuple[int, Mapping[str, str]] | None:
        names = [cls.__name__ for cls in type(error).__mro__]
        return next(((_STATUSES[name], {}) for name in names if name in _STATUSES), None)

    def _app(self) -> Any:
        return self._sdk.App.lookup(self._app_name, create_if_missing=True)

    def _sandbox(self, sandbox_id: str) -> Any:
        if sandbox_id not in self._known:
            self._known[sandbox_id] = self._sdk.Sandbox.from_id(sandbox_id)
        return self._known[sandbox_id]


class ModalProvider(CommandSandboxProvider):
    """Runs servers in sandboxes of Modal. Clients reach them over the local proxy.

    The token is that of the SDK: MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or ~/.modal.toml.

    Example::

        async with await ModalProvider(cpu=2.0, memory=4096).launch(LaunchSpec(image=IMAGE)) as sandboxes:
            await sandboxes.ready()

    Args:
        image: Image of starts and specifications without one: a name in a registry, or from `image_from_dockerfile`.
        env_vars: Environment variables of starts without any.
        app_name: The app of the sandboxes, which is created if it is missing.
        use_sandbox_v2: Whether sandboxes are of the second version, also where that is not the default of the SDK.
        timeout: Seconds after which Modal ends a sandbox.
        cmd: Command line of the server. None: the `app` of the image's openenv.yaml, else the CMD of its Dockerfile.
        cpu: Limit of CPU cores.
        memory: Limit of memory in MiB.
        surface_server_logs: Whether errors show the end of the log. Known secrets are masked in it.
        create_timeout: Seconds for the start of a sandbox, and the build of its image.
        cloud: See `CloudOptions`.

    `start_container` and `LaunchSpec.options` also take the arguments of `modal.Sandbox.create`, such as `gpu`.

    Raises:
        MissingExtra: The package modal is not installed.
        ProviderFailed: This modal has no sandboxes of the second version.
    """

    capabilities: ClassVar = Capabilities(forms=frozenset({"image", "target", "command"}), options=None)

    def __init__(
        self,
        *,
        image: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        app_name: str = "openenv",
        use_sandbox_v2: bool = False,
        timeout: int = 300,
        cmd: str | None = None,
        cpu: float | None = None,
        memory: int | None = None,
        surface_server_logs: bool = False,
        create_timeout: float = 600.0,
        **cloud: Unpack[CloudOptions],
    ):
        super().__init__(image, env_vars, cmd, cloud, surface_server_logs=surface_server_logs)
        self._limits = {"timeout": timeout, "cpu": cpu, "memory": memory}
        self.service = ModalSandboxes(app_name, use_sandbox_v2, cloud, self.retries, create_timeout)

    def wanted(self, deployment: Any, port: int) -> dict[str, Any]:
        return {**self._limits, **super().wanted(deployment, port)}
