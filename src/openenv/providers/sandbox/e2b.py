"""Run servers in sandboxes of E2B, and of Novita, which has a fork of E2B's SDK."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Unpack

from ...errors import MissingExtra, ProviderFailed, UsageError
from ...settings import variable_here
from ..base import StartRate
from ..deployment import Deployment
from ..dockerfile import Dockerfile
from .commands import CloudOptions, CommandSandboxProvider, CommandService
from .service import SandboxInfo

TEMPLATE = "template:"
# The image's own command must not take the port of the server.
SLEEP, SLEEP_READY_MS = "sleep infinity", 5000
# Seconds for the SDK to notice the end of its own timeout.
_MORE_S = 10.0
# Some of the SDK's errors have a status only in their message, or in their class.
_STATUSES = {"AuthenticationException": 401, "RateLimitException": 429, "ServiceBusyException": 503}
_GONE = frozenset({"NotFoundException", "SandboxNotFoundException", "SandboxNotRunningException"})


class E2BSandboxes(CommandService):
    """One account at E2B.

    Args:
        api_key: Key of the account.
        domain: Domain of the service.
        cloud: Further arguments of the provider.
        retries: See `SandboxService`.

    Raises:
        MissingExtra: The SDK is not installed.
        ProviderFailed: There is no key.
        UsageError: The SDK is in its debug mode, or would send the key in plain text.
    """

    name = "E2B"
    sdk_name: ClassVar[str] = "e2b"
    extra: ClassVar[str] = "e2b"
    prefix: ClassVar[str] = "E2B"
    key_setting = "api_key (E2B_API_KEY), which https://e2b.dev/dashboard shows"
    no_answer = frozenset({"TimeoutException", "SandboxUnreachableException", "HTTPError"})
    create_setting = "request_timeout_s"

    def __init__(self, api_key: str | None, domain: str | None, cloud: CloudOptions, retries: StartRate):
        try:
            self._sdk = importlib.import_module(self.sdk_name)
        except ModuleNotFoundError as error:
            raise MissingExtra(error.name or self.sdk_name, self.extra) from None
        key = api_key or variable_here(f"{self.prefix}_API_KEY")
        super().__init__([key or ""], cloud, retries, _MORE_S)
        if not key:
            raise ProviderFailed(f"{self.name} needs a key: set {self.key_setting}")
        if (variable_here(f"{self.prefix}_DEBUG") or "").lower() == "true":
            raise UsageError(f"{self.prefix}_DEBUG makes the SDK use servers of this machine: unset it")
        for name in ("API_URL", "SANDBOX_URL"):
            url = variable_here(f"{self.prefix}_{name}")
            if url:
                self.check_encrypted(f"{self.prefix}_{name}", url)
        given = {"api_key": key, "domain": domain, "request_timeout": self.timeout_s}
        self.account = {name: value for name, value in given.items() if value is not None}
        self._known: dict[str, Any] = {}
        self._users: dict[str, str | None] = {}

    def boot(
        self, image: str, variables: Mapping[str, str], labels: Mapping[str, str], port: int, **options: Any
    ) -> str:
        import httpx

        build = options.pop("build")
        user = None
        if "source" in options:
            options["template"] = self._build(*options.pop("source"), **build)
        else:
            origin, user = self.origin(image)
            options |= origin
        try:
            sandbox = self._sdk.Sandbox.create(envs=dict(variables), metadata=dict(labels), **options, **self.account)
        except (self._sdk.TimeoutException, httpx.ReadTimeout):
            raise self.slow_boot(limit_s=self.timeout_s) from None
        self._known[sandbox.sandbox_id], self._users[sandbox.sandbox_id] = sandbox, user
        return str(sandbox.sandbox_id)

    def origin(self, image: str) -> tuple[dict[str, Any], str | None]:
        """Arguments of `Sandbox.create` for an image that is no Dockerfile, and the user of its commands."""
        return {"template": image.removeprefix(TEMPLATE)}, None

    def _build(self, dockerfile: Dockerfile, context: Path, **build: Any) -> str:
        text = dockerfile.for_any_engine().text
        builder = self._sdk.Template(file_context_path=str(context)).from_dockerfile(text)
        if not any(each.word == "USER" for each in dockerfile.instructions()):
            builder.set_user("root")  # as Docker does; the SDK takes another user, who cannot write to /app
        builder.set_start_cmd(SLEEP, self._sdk.wait_for_timeout(SLEEP_READY_MS))
        slug = re.sub("[^a-z0-9]+", "-", context.name.lower()).strip("-")
        name = build.pop("name", None) or f"openenv-{slug}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        return str(self._sdk.Template.build(builder, name, **build, **self.account).template_id)

    def shell(self, sandbox_id: str, command: str) -> str:
        try:
            run = self._known[sandbox_id].commands.run
            return str(run(command, timeout=self.timeout_s, user=self._users[sandbox_id]).stdout)
        except self._sdk.CommandExitException as end:
            return str(end.stdout)

    def reach(self, sandbox_id: str, port: int) -> tuple[str, Mapping[str, str]]:
        sandbox = self._known[sandbox_id]
        token = sandbox.traffic_access_token
        headers = {f"{self.prefix}-Traffic-Access-Token": str(token)} if token else {}
        shared = variable_here(f"{self.prefix}_SANDBOX_URL")
        if shared:  # one address for all sandboxes, such as that of a service on own machines
            return shared, {
                **headers,
                f"{self.prefix}-Sandbox-Id": sandbox_id,
                f"{self.prefix}-Sandbox-Port": str(port),
            }
        return f"https://{sandbox.get_host(port)}", headers

    def state(self, sandbox_id: str) -> SandboxInfo:
        return self._info(self._sdk.Sandbox.get_info(sandbox_id, **self.account))

    def delete(self, sandbox_id: str) -> None:
        self._sdk.Sandbox.kill(sandbox_id, **self.account)
        self._known.pop(sandbox_id, None)

    def labelled(self, labels: Mapping[str, str]) -> Iterable[SandboxInfo]:
        pages = self._sdk.Sandbox.list(query=self._sdk.SandboxQuery(metadata=dict(labels)), **self.account)
        while pages.has_next:
            yield from map(self._info, pages.next_items())

    def answer_of(self, error: Exception) -> tuple[int, Mapping[str, str]] | None:
        names = [cls.__name__ for cls in type(error).__mro__]
        if _GONE & set(names):
            return 404, {}
        said = re.match(r"(\d{3}):", str(error))
        status = getattr(error, "status_code", None) or (int(said[1]) if said else None)
        status = status or next((_STATUSES[name] for name in names if name in _STATUSES), None)
        return super().answer_of(error) if status is None else (status, {})

    def _info(self, found: Any) -> SandboxInfo:
        stage = str(getattr(found.state, "value", found.state))
        return SandboxInfo(
            id=str(found.sandbox_id), stage=stage, ended=stage != "running", labels=found.metadata or {}
        )


class E2BProvider(CommandSandboxProvider):
    """Runs servers in sandboxes of E2B.

    Example::

        async with await E2BProvider(image="my-template").launch(LaunchSpec(target="echo")) as sandboxes:
            await sandboxes.ready()

    Args:
        image: Name or id of a template, or what `image_from_dockerfile` returned; for starts without one.
        env_vars: Environment variables of starts without any.
        api_key: Key of the account; None takes `E2B_API_KEY`.
        domain: Domain of the service; None takes `E2B_DOMAIN`.
        timeout: Seconds after which E2B ends a sandbox, even one in use.
        metadata: Further labels of every sandbox.
        secure: Whether E2B asks for a token before it runs commands; None takes the SDK's default.
        cmd: Command line of the server. None: the `app` of the image's openenv.yaml, else the CMD of its Dockerfile.
        working_directory: Folder of the server in its sandbox.
        surface_server_logs: Whether errors show the end of the log. Known secrets are masked in it.
        cpu_count: Processors of sandboxes from a Dockerfile.
        memory_mb: MiB of memory of sandboxes from a Dockerfile.
        template_name: Name of the template that is built from a Dockerfile; None: one that depends on its content.
        on_build_logs: Called with each entry of the log of a template's build.
        cloud: See `CloudOptions`.

    Raises:
        MissingExtra: The SDK is not installed.
        ProviderFailed: There is no key.
        UsageError: The SDK is in its debug mode, or would send the key in plain text.
    """

    from_dockerfile = TEMPLATE
    account: ClassVar[type[E2BSandboxes]] = E2BSandboxes

    def __init__(
        self,
        *,
        image: str | None = None,
        env_vars: dict[str, str] | None = None,
        api_key: str | None = None,
        domain: str | None = None,
        timeout: int = 3600,
        metadata: dict[str, str] | None = None,
        secure: bool | None = None,
        cmd: str | None = None,
        working_directory: str | None = None,
        surface_server_logs: bool = False,
        cpu_count: int = 2,
        memory_mb: int = 1024,
        template_name: str | None = None,
        on_build_logs: Callable[[Any], None] | None = None,
        **cloud: Unpack[CloudOptions],
    ):
        cloud["labels"] = {**cloud.get("labels", {}), **(metadata or {})}
        super().__init__(
            image,
            env_vars,
            cmd,
            cloud,
            working_directory=working_directory,
            surface_server_logs=surface_server_logs,
        )
        self.service = self.account(api_key, domain, cloud, self.retries)
        build: dict[str, Any] = {"name": template_name, "cpu_count": cpu_count, "memory_mb": memory_mb}
        self._create: dict[str, Any] = {"timeout": timeout, "build": build}
        if secure is not None:
            self._create["secure"] = secure
        if on_build_logs is not None:
            build["on_build_logs"] = on_build_logs

    def wanted(self, deployment: Deployment, port: int) -> dict[str, Any]:
        return {**self._create, **super().wanted(deployment, port)}


class NovitaSandboxes(E2BSandboxes):
    """One account at Novita. Arguments and errors: see `E2BSandboxes`."""

    name = "Novita"
    sdk_name = "novita_sandbox"
    extra = "novita"
    prefix = "NOVITA"
    key_setting = "api_key (NOVITA_API_KEY), which https://novita.ai/dashboard shows"

    def origin(self, image: str) -> tuple[dict[str, Any], str | None]:
        if image.startswith(TEMPLATE):
            return super().origin(image)
        ready = self._sdk.wait_for_timeout(SLEEP_READY_MS).get_cmd()
        # A template that Novita makes of an image loses the image's user.
        return {"image": image, "build": {"cmd": SLEEP, "ready_cmd": ready, "build_logs": False}}, "root"


class NovitaSandboxProvider(E2BProvider):
    """Runs servers in sandboxes of Novita.

    Example::

        async with await NovitaSandboxProvider(image="my-org/env:latest").launch(LaunchSpec(target="echo")) as found:
            await found.ready()

    Its arguments are those of `E2BProvider`, with these differences:

    - `image` is the name of an image, `template:NAME`, or what `image_from_dockerfile` returned.
    - `api_key` and `domain` are those of Novita; None takes `NOVITA_API_KEY` and `NOVITA_DOMAIN`.
    """

    account = NovitaSandboxes
