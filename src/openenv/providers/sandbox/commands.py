"""Servers in sandboxes that run shell commands, as those of cloud services do (`CommandSandboxProvider`)."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import yaml

from ..._exceptions import add_cleanup_note
from ...errors import LaunchFailed, UsageError
from ..base import PRIVATE_SERVER_VARIABLES, StartRate
from ..deployment import Deployment
from ..dockerfile import Dockerfile
from ..redaction import key_of
from ..spec import CONTAINER_PORT, Capabilities, LaunchSpec
from .provider import SandboxProvider
from .relay import ProxyTimeouts
from .service import SandboxInfo, SandboxService

_LOG = '"${TMPDIR:-/tmp}/openenv-server.log"'
_PID = '"${TMPDIR:-/tmp}/openenv-server.pid"'
# Field 3 of proc(5), /proc/PID/stat. A zombie has ended: a sandbox without init never waits for it.
_ALIVE = (
    f'state=$(cut -d " " -f 3 "/proc/$(cat {_PID})/stat" 2>/dev/null); case "$state" in ""|Z|X) echo DEAD;; '
    "*) echo ALIVE;; esac"
)
_FIND = (
    "file=/app/env/openenv.yaml; "
    '[ -f "$file" ] || file=$(find /app -maxdepth 4 -name openenv.yaml -print -quit 2>/dev/null); '
    '[ -n "$file" ] && echo "$file" && cat "$file"'
)


class CloudOptions(TypedDict, total=False):
    """Further arguments of the providers of clouds.

    Attributes:
        labels: Additional labels of every sandbox.
        insecure: Allow http to other machines, for the service and for addresses of sandboxes.
        ready_timeout_s: Seconds that a server has to become ready (120).
        request_timeout_s: Seconds for each request to the service (60).
        glance_s: Seconds between two requests for the state of a sandbox (2).
        timeouts: Timeouts of the proxy.
        start_rate: How fast sandboxes are started, and retries of temporary failures.
    """

    labels: Mapping[str, str]
    insecure: bool
    ready_timeout_s: float
    request_timeout_s: float
    glance_s: float
    timeouts: ProxyTimeouts | None
    start_rate: StartRate | None


class CommandService(SandboxService):
    """A service with sandboxes that run shell commands: one of them starts the server.

    A subclass implements `boot`, `shell`, `reach`, `state`, `delete` and `labelled` with the SDK of the service.

    Args:
        secrets, retries, create_timeout_s: See `SandboxService`.
        cloud: Further arguments of the provider.
    """

    def __init__(self, secrets: Iterable[str], cloud: CloudOptions, retries: StartRate, create_timeout_s: float):
        limit = cloud.get("request_timeout_s", 60.0)
        super().__init__(secrets, cloud.get("insecure", False), limit, retries, create_timeout_s)

    @abstractmethod
    def boot(
        self, image: str, variables: Mapping[str, str], labels: Mapping[str, str], port: int, **options: Any
    ) -> str:
        """Starts a sandbox that waits for commands, with environment variables for all of them. Returns its id."""

    @abstractmethod
    def shell(self, sandbox_id: str, command: str) -> str:
        """Runs a command line by a POSIX shell, and returns its standard output, for every exit code."""

    @abstractmethod
    def reach(self, sandbox_id: str, port: int) -> tuple[str, Mapping[str, str]]:
        """The address of a port, and headers that the service's proxy asks for there."""

    @abstractmethod
    def state(self, sandbox_id: str) -> SandboxInfo:
        """The state of a sandbox. Raises an error with status 404 if there is no such sandbox."""

    def create(self, name: str, port: int, labels: Mapping[str, str], **wanted: Any) -> SandboxInfo:
        command: str | None = wanted.pop("command")
        fallback: str | None = wanted.pop("fallback")
        folder: str | None = wanted.pop("folder")
        sandbox_id = self.boot(labels=labels, port=port, **wanted)
        try:
            line = command or self._command_of_image(sandbox_id, fallback)
            line = line if folder is None else f"cd {shlex.quote(folder)} && {line}"
            start = f"nohup sh -c {shlex.quote(line)} > {_LOG} 2>&1 < /dev/null & echo $! > {_PID}"
            self.shell(sandbox_id, start)
            url, headers = self.reach(sandbox_id, port)
        except BaseException as error:
            with add_cleanup_note(error):
                self.delete(sandbox_id)
            raise
        return SandboxInfo(id=sandbox_id, stage="STARTED", url=url, headers=headers, labels=labels)

    def _command_of_image(self, sandbox_id: str, fallback: str | None) -> str:
        """The command of the environment in the image, which has an openenv.yaml below /app."""
        path, _, text = self.shell(sandbox_id, _FIND).partition("\n")
        try:
            manifest = yaml.safe_load(text)
        except yaml.YAMLError:
            manifest = None
        app = manifest.get("app") if isinstance(manifest, dict) else None
        if isinstance(app, str) and path.startswith("/"):
            folder = shlex.quote(path.strip().rpartition("/")[0])
            return f'cd {folder} && exec python -m uvicorn {shlex.quote(app)} --host 0.0.0.0 --port "$PORT"'
        if fallback is None:
            reason = f"{path.strip()} has no `app`" if path else "there is no openenv.yaml below /app"
            raise LaunchFailed(f"the image does not say how its server starts ({reason}): pass cmd=...")
        return fallback

    def inspect(self, sandbox_id: str) -> SandboxInfo:
        found = self.state(sandbox_id)
        if not found.ended and "DEAD" in self.shell(sandbox_id, _ALIVE):
            return replace(found, stage="EXITED", ended=True, message="the process of its server has ended")
        return found

    def log(self, sandbox_id: str, lines: int) -> str:
        return self.shell(sandbox_id, f"tail -n {lines} {_LOG}")


class CommandSandboxProvider(SandboxProvider):
    """Base of the providers of clouds. A subclass sets `service`.

    Args:
        image: Image of starts and specifications without one.
        env_vars: Environment variables of starts without any.
        cmd: Command line of the server. None: the `app` of the image's openenv.yaml, else the CMD of its Dockerfile.
        working_directory: Folder of the server in its sandbox.
        surface_server_logs: Whether errors show the end of the log. Known secrets are masked in it.
        cloud: Further arguments.
    """

    capabilities: ClassVar = Capabilities(
        forms=frozenset({"image", "target", "command"}), options=frozenset({"cmd", "wait_timeout"})
    )
    from_dockerfile: ClassVar[str] = "dockerfile:"
    # Contexts of Dockerfiles, by path.
    _contexts: ClassVar[dict[str, Path]] = {}

    def __init__(
        self,
        image: str | None,
        env_vars: Mapping[str, str] | None,
        cmd: str | None,
        cloud: CloudOptions,
        *,
        working_directory: str | None = None,
        surface_server_logs: bool = True,
    ):
        super().__init__(cloud.get("glance_s", 2.0), cloud.get("timeouts"), cloud.get("start_rate"))
        self.ready_timeout_s = cloud.get("ready_timeout_s", 120.0)
        self.variables = PRIVATE_SERVER_VARIABLES
        self.surface_server_logs = surface_server_logs
        self.api_key = key_of(env_vars or {})
        self._labels = cloud.get("labels") or {}
        self._image = image
        self._env_vars = dict(env_vars or {})
        self._cmd = cmd
        self._folder = working_directory

    @classmethod
    def image_from_dockerfile(cls, dockerfile_path: str, context_dir: str | None = None) -> str:
        """The name of an image that the service builds from a Dockerfile, for `image`.

        Args:
            dockerfile_path: The Dockerfile.
            context_dir: Folder of the files that it copies; None takes the one above the folder of the Dockerfile.

        Raises:
            FileNotFoundError: There is no such file.
            UsageError: The context, or a file that is copied from it, is missing.
        """
        path = Path(dockerfile_path).resolve()
        if not path.is_file():
            raise FileNotFoundError(f"there is no Dockerfile at {dockerfile_path}")
        context = path.parent.parent if context_dir is None else Path(context_dir)
        if not context.is_dir():
            raise UsageError(f"context_dir is {context_dir!r}, which is not a folder")
        for source in Dockerfile.read(path).sources():
            if not (context / source.lstrip("/")).exists():
                raise UsageError(
                    f"{dockerfile_path} copies {source}, which is not in {context}: pass context_dir=..."
                )
        cls._contexts[str(path)] = context.resolve()
        return f"{cls.from_dockerfile}{path}"

    @classmethod
    def dockerfile_of(cls, image: str) -> tuple[Dockerfile, Path] | None:
        """Dockerfile and context of a name that `image_from_dockerfile` returned; None for another image."""
        path = image.removeprefix(cls.from_dockerfile)
        if path == image or (path not in cls._contexts and "/" not in path):
            return None
        if path not in cls._contexts:
            raise UsageError(f"image is {image!r}: get it from {cls.__name__}.image_from_dockerfile({path!r})")
        return Dockerfile.read(Path(path)), cls._contexts[path]

    def start_container(
        self,
        image: str | None = None,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """See `ContainerProvider.start_container`.

        Args:
            image: The image; None takes that of the provider.
            port: None, or 8000: the address is one of the local proxy.
            env_vars: Environment variables of the server; None takes those of the provider.
            kwargs: `cmd`, and options of the service.

        Raises:
            LaunchFailed: The service refuses the sandbox, or cannot start it.
            UsageError: The provider has a server already, has no image, or an argument is unknown.
        """
        if port not in {None, CONTAINER_PORT}:
            raise UsageError(
                f"port must be None or {CONTAINER_PORT}, got {port!r}: servers listen there in sandboxes"
            )
        return super().start_container(image or self._image_or_raise(), None, env_vars, **kwargs)

    def wait_for_ready(self, base_url: str, timeout_s: float = 120.0) -> None:
        super().wait_for_ready(base_url, timeout_s)

    @property
    def base_url(self) -> str:
        """The address that `start_container` returned.

        Raises:
            UsageError: There is no server.
        """
        if self.current is None:
            raise UsageError(f"this {type(self).__name__} has no server: call start_container()")
        return self.current.url

    def deployment(self, spec: LaunchSpec) -> Deployment:
        image = spec.image or self._image_or_raise()
        self.dockerfile_of(image)
        return super().deployment(spec if spec.env_vars else spec.changed(env_vars=self._env_vars))

    def _image_or_raise(self) -> str:
        if self._image is None:
            raise UsageError(f"there is no image: pass image=... to {type(self).__name__} or to the start")
        return self._image

    def wanted(self, deployment: Deployment, port: int) -> dict[str, Any]:
        spec, options = deployment.spec, dict(deployment.spec.options)
        options.pop("wait_timeout", None)
        image = spec.image or self._image_or_raise()
        command = options.pop("cmd", None) or self._cmd
        if spec.command is not None:
            command = shlex.join(spec.command)
        elif spec.target is not None:
            command = f"openenv serve {shlex.quote(spec.target)}"
        source = self.dockerfile_of(image)
        return {
            "image": image,
            "variables": {**deployment.variables, "HOST": "0.0.0.0", "PORT": str(port)},  # noqa: S104 - in the sandbox
            "command": command,
            "fallback": None if source is None else source[0].command,
            "folder": self._folder,
            "labels": {**self._labels, **options.pop("labels", {})},
            **({} if source is None else {"source": source}),
            **options,
        }
