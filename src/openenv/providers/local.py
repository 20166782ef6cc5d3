"""A server as a child process of this Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..settings import ServerSettings, environ_of_environments
from .provider import FOR_ITS_OWNER
from .server_process import ServerProcess

__all__ = ["LocalProvider"]


class LocalProvider(ServerProcess):
    """Runs `openenv serve` on this machine, with the Python and the packages of this process.

    Example::

        async with EnvClient(provider=LocalProvider("echo", workers=4)) as env:
            await env.reset()

    Args:
        target: What to serve, as for `openenv serve`: `module:attribute`, a folder with openenv.yaml,
            `gymnasium:ENV_ID`, or a bundled environment.
        folder: Where it runs, and modules are looked for; None: here.
        env_vars: Environment variables, besides those of this process.
        start_timeout_s: Seconds for the start of the process, environments not included.
        settings: Settings of the server by name (`workers`, `max_sessions`, ...).

    Raises:
        UsageError: A setting that there is not, or of no such value.
    """

    def __init__(
        self,
        target: str,
        *,
        folder: str | Path | None = None,
        env_vars: Mapping[str, str] | None = None,
        start_timeout_s: float = 60.0,
        **settings: Any,
    ):
        super().__init__(env_vars, start_timeout_s)
        self._target = target
        self._folder = None if folder is None else Path(folder)
        self._settings = _variables_of(settings)

    def _command(self, port: int, **options: Any) -> list[str]:
        return [sys.executable, "-m", "openenv", "serve", self._target, "--port", str(port), "--host", "127.0.0.1"]

    def _variables(self, **options: Any) -> dict[str, str]:
        return environ_of_environments() | dict(FOR_ITS_OWNER) | self._settings | _variables_of(options)


def _variables_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as the environment variables that say the same: a command line can be read by everybody."""
    rows = {row.name: row for row in ServerSettings.table() if row.name not in {"host", "port", "target"}}
    unknown = sorted(settings.keys() - rows.keys())
    if unknown:
        raise UsageError(f"{', '.join(unknown)}: no such setting; there are {', '.join(rows)}")
    ServerSettings.read({}, **settings)
    return {rows[name].variables[0]: str(value) for name, value in settings.items() if value is not None}
