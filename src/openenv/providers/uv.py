"""Servers of a project in its own Python environment, with `uv run` (`UVProvider`)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ..errors import ProviderFailed, UsageError
from ..settings import environ_of_environments, is_loopback_for_secrets
from .base import StartRate
from .local import ProcessProvider
from .spec import Capabilities, LaunchSpec

# Prefix of a `project_path` that is the address of a repository.
GIT_URL_PREFIX = "git+"

# Shorter than the grace period of a process.
SHUTDOWN_S = 2
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - compared with, not bound


class UVProvider(ProcessProvider):
    """Runs the app of a project with `uv run`, which first installs the project's dependencies.

    Args:
        project_path: A folder with pyproject.toml, or `git+https://...` of a repository. None takes the
            project of each `LaunchSpec`.
        app: Its app, as `module:attribute`.
        host: Address to listen on. Other machines can reach the server unless it is loopback.
        reload: Whether the server restarts when a file changes.
        env_vars: Environment variables of the servers, added to those of this process.
        context_timeout_s: Timeout in seconds for the start with the installation, and a second one until it is ready.
        options: Options for `uv run`, such as `("--offline",)`.
        start_rate: How fast servers are started.

    Raises:
        UsageError: The folder does not exist, or has no project.
        ProviderFailed: uv is not installed.
    """

    capabilities: ClassVar = Capabilities(
        forms=frozenset({"project", "command"}), gpus=True, options=frozenset({"app", "workers"})
    )

    def __init__(
        self,
        *,
        project_path: str | Path | None = None,
        app: str = "server.app:app",
        host: str = "127.0.0.1",
        reload: bool = False,
        env_vars: Mapping[str, str] | None = None,
        context_timeout_s: float = 60.0,
        options: tuple[str, ...] = (),
        start_rate: StartRate | None = None,
    ):
        super().__init__(env_vars, context_timeout_s, start_rate)
        # An absolute path, since this process may change its working folder. A repository's address stays as it is.
        self.project_path = None if project_path is None else _source_of(project_path)[1]
        self.app = app
        self.host = host
        self.reload = reload
        self._env_vars = None if env_vars is None else dict(env_vars)
        self._options = options
        self._uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
        if self._uv is None:
            raise ProviderFailed("uv is not installed: run pip install uv")

    def start(
        self,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        workers: int = 1,
        *,
        keyed: bool = False,
        **kwargs: Any,
    ) -> str:
        """See `BlockingRuntime.start`; `workers` is the number of processes of the server."""
        return super().start(port, env_vars, keyed=keyed, workers=workers, **kwargs)

    @property
    def host(self) -> str:
        """The address that its servers listen on."""
        return self._host

    @host.setter
    def host(self, host: str) -> None:
        self._host = host
        # The address at which this machine reaches a server on a wildcard address.
        self._reached_at = _EVERYWHERE.get(host) or (f"[{host}]" if ":" in host else host)
        self.public = not is_loopback_for_secrets(host)

    # Read-only: the servers' variables are fixed, and setting them here would have no effect.
    @property
    def env_vars(self) -> dict[str, str] | None:
        """A copy of the environment variables that the provider was made with."""
        return None if self._env_vars is None else dict(self._env_vars)

    @property
    def context_timeout_s(self) -> float:
        """Timeout in seconds for the start, and a second one until the server is ready."""
        return self.ready_timeout_s

    @context_timeout_s.setter
    def context_timeout_s(self, timeout_s: float) -> None:
        self.ready_timeout_s = timeout_s

    def spec_of(self, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        if self.project_path is None:
            raise UsageError(
                "UVProvider() has no project: use UVProvider(project_path=...), or launch() a LaunchSpec"
            )
        return LaunchSpec(project=self.project_path, port=port, env_vars=env_vars, options=options)

    def command(self, spec: LaunchSpec, port: int) -> list[str]:
        assert self._uv is not None
        assert spec.project is not None
        served = [spec.options.get("app", self.app), "--host", self.host, "--port", str(port)]
        manner = ["--log-level", "info", "--timeout-graceful-shutdown", str(SHUTDOWN_S)]
        how_many = ["--reload"] if self.reload else ["--workers", str(spec.options.get("workers", 1))]
        source = _source_of(spec.project)
        return [self._uv, "run", *self._options, *source, "uvicorn", *served, *manner, *how_many]

    def folder(self, spec: LaunchSpec) -> Path | None:
        return None if spec.project is None or _is_url(spec.project) else Path(_source_of(spec.project)[1])

    def environment(self) -> dict[str, str]:
        # Make uv use the project's environment, not that of this process.
        inherited = environ_of_environments()
        for name in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"):
            inherited.pop(name, None)
        return inherited


def _is_url(project_path: str | Path) -> bool:
    return str(project_path).startswith(GIT_URL_PREFIX)


def _source_of(project_path: str | Path) -> tuple[str, ...]:
    """The options of `uv run` that name the project."""
    if _is_url(project_path):
        return "--with", str(project_path), "--isolated", "--no-project"
    folder = Path(project_path).expanduser().resolve()
    if not (folder / "pyproject.toml").is_file():
        raise UsageError(
            f"{folder} is not a project: project_path must be a folder with pyproject.toml, or git+https://..."
        )
    return "--project", str(folder)
