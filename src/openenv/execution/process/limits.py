"""What the process of a session may use."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Self

from ...settings import ServerSettings

__all__ = ["ProcessLimits", "most_output_bytes"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of one session's process, from the settings `process_*`.

    Attributes:
        memory_bytes: Address space; None for as much as there is.
        cpu_s: CPU seconds over its life; None for no limit.
        children: Processes and threads that it may have started. The kernel's own limit (`RLIMIT_NPROC`) counts all
            processes of a user together and does not bind root, so the parent watches this one.
        files: Open files.
        output_bytes: Largest reply, and largest file it may write.
    """

    memory_bytes: int | None
    cpu_s: float | None
    children: int
    files: int
    output_bytes: int

    @classmethod
    def of(cls, settings: ServerSettings) -> Self:
        """As the settings say."""
        memory = settings.process_memory_mb
        return cls(
            memory_bytes=None if memory is None else int(memory * _MIB),
            cpu_s=settings.process_cpu_s,
            children=settings.process_children,
            files=settings.process_files,
            output_bytes=int(settings.process_output_mb * _MIB),
        )

    def apply(self) -> None:
        """Binds this process and all that it starts to them."""
        import resource

        _lower(resource.RLIMIT_CORE, 0)
        _lower(resource.RLIMIT_NOFILE, self.files)
        _lower(resource.RLIMIT_FSIZE, self.output_bytes)
        if self.cpu_s is not None:
            seconds = math.ceil(self.cpu_s)
            _lower(resource.RLIMIT_CPU, seconds, beyond=1)  # first SIGXCPU, which can be caught, then SIGKILL
        if self.memory_bytes is not None:
            _lower(resource.RLIMIT_AS, self.memory_bytes)


def most_output_bytes() -> int:
    """In the process of a session: its limit of replies, which is that of files too."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _lower(kind: int, limit: int, beyond: int = 0) -> None:
    import resource

    _, hard = resource.getrlimit(kind)
    most = limit + beyond if hard == resource.RLIM_INFINITY else min(hard, limit + beyond)
    resource.setrlimit(kind, (min(limit, most), most))
