"""A server as a child process of this Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ..errors import UsageError
from ..settings import ServerSettings, environ_of_environments
from .capabilities import Capabilities
from .deployment import Deployment
from .pace import Pace
from .server_process import ServerProcess
from .spec import LaunchSpec

__all__ = ["LocalProvider"]


class LocalProvider(ServerProcess):
    """Runs `openenv serve` on this machine, with the Python and the packages of this process.

    Example::

        async with EnvClient(provider=LocalProvider("echo", workers=4)) as env:
            await env.reset()

    Args:
        target: What to serve, as for `openenv serve`: `module:attribute`, a folder with openenv.yaml,
            `gymnasium:ENV_ID`, `pettingzoo:MODULE`, or a bundled environment. None leaves it to each `LaunchSpec`.
        folder: Where it runs, and modules are looked for; None: here.
        env_vars: Environment variables, besides those of this process.
        start_timeout_s: Seconds for the start of the process, environments not included.
        pace: How fast servers are started.
        settings: Settings of the server by name (`workers`, `max_sessions`, ...); `LaunchSpec.options` are such too.

    Raises:
        UsageError: A setting that there is not, or of no such value.
    """

    capabilities: ClassVar = Capabilities(forms=frozenset({"target", "command"}), gpus=True, options=None)

    def __init__(
        self,
        target: str | None = None,
        *,
        folder: str | Path | None = None,
        env_vars: Mapping[str, str] | None = None,
        start_timeout_s: float = 60.0,
        pace: Pace | None = None,
        **settings: Any,
    ):
        super().__init__({**variables_of(settings), **(env_vars or {})}, start_timeout_s, pace)
        self._target = target
        self._folder = None if folder is None else Path(folder)

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`; the specification's options are settings of the server."""
        given = {**variables_of(spec.options), **spec.env_vars}
        return super().deployment(spec.changed(env_vars=given))

    def _spec(self, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        if self._target is None:
            raise UsageError('LocalProvider() has no target: LocalProvider("echo"), or launch() a LaunchSpec')
        return LaunchSpec(target=self._target, port=port, env_vars=env_vars, options=options)

    def _command(self, spec: LaunchSpec, port: int) -> list[str]:
        served = [str(spec.target), "--port", str(port), "--host", "127.0.0.1"]
        return [sys.executable, "-m", "openenv", "serve", *served]

    def _where(self, spec: LaunchSpec) -> Path | None:
        return self._folder

    def _inherited(self) -> dict[str, str]:
        return environ_of_environments()


def variables_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as the environment variables that say the same: a command line can be read by everybody."""
    # Servers on loopback need no certificates, and clients are given an address without.
    kept = {"host", "port", "target", "ssl_certfile", "ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"}
    rows = {row.name: row for row in ServerSettings.table() if row.name not in kept}
    unknown = sorted(settings.keys() - rows.keys())
    if unknown:
        raise UsageError(f"{', '.join(unknown)}: no such setting; there are {', '.join(rows)}")
    ServerSettings.read({}, **settings)
    return {rows[name].variables[0]: str(value) for name, value in settings.items() if value is not None}
