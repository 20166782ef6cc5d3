"""Providers whose server is a process of this machine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import LaunchFailed, UsageError
from .process import Process
from .provider import RuntimeProvider
from .readiness import wait_until_ready
from .secrecy import key_of

__all__ = ["ServerProcess"]

# What `openenv serve` and uvicorn say when they listen. The port is the kernel's choice: nobody can take it before.
_LISTENING = r"\bon https?://\[?[\w.:]+?\]?:(\d+)"


class ServerProcess(RuntimeProvider):
    """One process that says where it listens.

    Args:
        env_vars: Environment variables, besides those of this process.
        start_timeout_s: Seconds until it listens.
    """

    def __init__(self, env_vars: Mapping[str, str] | None, start_timeout_s: float):
        self._env_vars = dict(env_vars or {})
        self._start_timeout_s = start_timeout_s
        self._folder: Path | None = None
        self._reached_at = "127.0.0.1"
        self._process: Process | None = None
        self._base_url: str | None = None
        self.api_key = key_of(self._env_vars)

    @property
    def base_url(self) -> str:
        """The server's address.

        Raises:
            UsageError: It was not started.
        """
        if self._base_url is None:
            raise UsageError(f"this {type(self).__name__} has no server: call start(), or use it in `with`")
        return self._base_url

    def start(self, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any) -> str:
        """See `RuntimeProvider.start`.

        Raises:
            LaunchFailed: It ended, or did not listen in its time; with the end of its log.
            UsageError: It runs already.
        """
        if self._process is not None:
            raise UsageError(f"this {type(self).__name__} runs its server already: stop() it first, or make another")
        command = self._command(0 if port is None else port, **kwargs)
        variables = {**self._variables(**kwargs), **self._env_vars, **(env_vars or {})}
        self.api_key = key_of(variables)
        self._process = process = Process(command, variables, self._folder)
        try:
            self._base_url = f"http://{self._reached_at}:{self._port(process) if port is None else port}"
        except BaseException:
            self.stop()
            raise
        return self._base_url

    def stop(self) -> None:
        process = self._process
        if process is not None:
            process.stop()
        self._process = self._base_url = None

    def wait_for_ready(self, timeout_s: float | None = None) -> None:
        """See `RuntimeProvider.wait_for_ready`; None takes the time that it had for its start."""
        url, process = self.base_url, self._process
        assert process is not None
        wait_until_ready(
            url,
            self._start_timeout_s if timeout_s is None else timeout_s,
            gone=lambda: process.end,
            log=lambda: process.tail,
            api_key=self.api_key,
        )

    @abstractmethod
    def _command(self, port: int, **options: Any) -> list[str]:
        """The command line of a server on a port; 0 takes a free one."""

    @abstractmethod
    def _variables(self, **options: Any) -> dict[str, str]:
        """The environment variables of the server, apart from those that the user names."""

    def _port(self, process: Process) -> str:
        found = process.wait_for(_LISTENING, self._start_timeout_s)
        if found is None:
            how = process.end or f"did not listen within {self._start_timeout_s:g} s"
            log = process.tail
            raise LaunchFailed(f"the server {how}{f'; its log ends with:{chr(10)}{log}' if log else ''}")
        return found[1]
