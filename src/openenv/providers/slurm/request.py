"""What `sbatch` is asked for: options and the script, of a provider's arguments and a specification."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ...background import on_thread
from ...errors import UsageError
from ..deployment import Deployment
from ..spec import LaunchSpec
from . import task
from .board import Board
from .job import comment, options_of, script, seconds_of

__all__ = ["Request", "in_slurms_words"]

# Slurm sees what time it is now and then only: so much earlier than they need it are servers asked to end.
MARGIN_S = 5
LONGEST_GRACE_S = 65000


@dataclass(frozen=True, slots=True)
class Request:
    """What all arrays of a provider have in common. What the attributes mean, `SlurmProvider` says.

    Attributes:
        given: Options of `sbatch` by their names, as for `options_of`.
        reached_at: "address" or "hostname".
        trainers: Hosts that servers are reached from; those that Slurm knows of are tried after them.
    """

    given: Mapping[str, Any]
    _: KW_ONLY
    grace_s: float
    requeue: bool
    reached_at: str
    trainers: Sequence[str]
    python: str
    folder: Path
    setup: Sequence[str]

    def __post_init__(self) -> None:
        if self.reached_at not in {"address", "hostname"}:
            raise UsageError(f"reached_at must be address or hostname, got {self.reached_at!r}")
        if not 0 <= self.grace_s <= LONGEST_GRACE_S:
            raise UsageError(f"grace_s must be from 0 to {LONGEST_GRACE_S}, got {self.grace_s!r}")

    def check(self, spec: LaunchSpec) -> None:
        """Raises `UsageError` for what `sbatch` cannot be given."""
        self._options(spec)
        script(self.python, self.setup, "", {})

    def arguments(self, deployment: Deployment, count: int, board: Board) -> list[str]:
        """Arguments of `sbatch` for an array of so many servers. No secrets."""
        return [
            "--parsable",
            f"--array=0-{count - 1}",
            f"--job-name={deployment.name}",
            f"--comment={comment(deployment.labels, board.folder)}",
            f"--output={board.output}",
            "--open-mode=append",
            f"--chdir={self.folder}",
            "--export=ALL",
            *self._options(deployment.spec),
        ]

    async def script(self, spec: LaunchSpec, board: Board) -> str:
        """The script of each of them. No secrets."""
        if spec.command is not None:
            command, port = list(spec.command), spec.port
        else:
            serve = ["serve", str(spec.target), "--host", "{host}", "--port", "{port}"]
            command, port = [self.python, "-m", "openenv", *serve], spec.port or 0
        facts = {"command": command, "port": port, "announced": self.reached_at, "trainers": list(self.trainers)}
        source = await on_thread(lambda: Path(task.__file__).read_text(encoding="utf-8"))
        return script(self.python, self.setup, source, {**facts, **board.plan})

    def _options(self, spec: LaunchSpec) -> list[str]:
        """Those that do not depend on a deployment."""
        chosen = options_of(spec, self.given)
        warning_s = math.ceil(self.grace_s) + MARGIN_S
        limit_s = seconds_of(str(spec.options.get("time", self.given["time"]) or ""))
        if limit_s is not None and limit_s <= warning_s:
            raise UsageError(
                f"time_limit ({limit_s} s) leaves no time before its last {warning_s} s, in which servers take no "
                "new sessions: raise it, or lower grace_s"
            )
        again = "--requeue" if self.requeue else "--no-requeue"
        return ["--nodes=1", "--ntasks=1", again, f"--signal=B:TERM@{warning_s}", *chosen]


def in_slurms_words(limit: str | timedelta | None) -> str | None:
    """A time limit as `sbatch` takes it. Raises `UsageError` for one of no length."""
    if not isinstance(limit, timedelta):
        return limit
    minutes = math.ceil(limit.total_seconds() / 60)
    if minutes < 1:
        raise UsageError(f"time_limit must be more than 0, got {limit!r}")
    return str(minutes)
