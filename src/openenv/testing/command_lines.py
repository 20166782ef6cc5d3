"""The command lines of this machine, which anybody may read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

__all__ = ["CommandLines"]

GLANCE_S = 0.05


class CommandLines:
    """Looks for secrets on the command lines of this machine, as anybody may."""

    def __init__(self, secrets: list[str]):
        self._secrets = secrets
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="openenv-command-lines", daemon=True)
        self.found: set[str] = set()

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(GLANCE_S):
            self.found.update(line for line in _command_lines() if any(each in line for each in self._secrets))


def _command_lines() -> Iterator[str]:
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield line.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
