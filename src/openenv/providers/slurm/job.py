"""Jobs in Slurm's formats: arguments of `sbatch`, listings of `squeue`, notices of tasks. Pure functions."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ...errors import UsageError
from ..base import Leftover
from ..owner import DEPLOYMENT, OWNER, OwnerProcess
from ..spec import LaunchSpec

OPTIONS = frozenset(
    {
        "account",
        "constraint",
        "exclude",
        "exclusive",
        "gres",
        "licenses",
        "nice",
        "nodelist",
        "partition",
        "prefer",
        "qos",
        "reservation",
        "switches",
        "time",
    }
)
"""Allowed options of `sbatch`, in `LaunchSpec.options` or for a provider."""
# Columns of fixed width, since values may contain any separator.
_WIDTHS = {"ArrayJobID": 24, "ArrayTaskID": 24, "State": 24, "RestartCnt": 12, "Reason": 64}
_LISTED = {"ArrayJobID": 24, "Name": 160, "Comment": 1024}
COLUMNS: Mapping[str, str] = {
    "states": ",".join(f"{name}:{width}" for name, width in _WIDTHS.items()),
    "labels": ",".join(f"{name}:{width}" for name, width in _LISTED.items()),
}
"""Columns for `squeue --Format`: those of states, and those of labels."""
_MARK = "openenv"
_UNDER_WAY = {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "RESIZING", "SIGNALING", "STAGE_OUT"}
_UNDER_WAY |= {"REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "RESV_DEL_HOLD"}
_ENDS = {
    "COMPLETED": "has ended (COMPLETED)",
    "TIMEOUT": "was ended by its time limit (TIMEOUT): raise time_limit",
    "NODE_FAIL": "was lost with its node (NODE_FAIL)",
    "OUT_OF_MEMORY": "exceeded its memory limit (OUT_OF_MEMORY): raise resources.memory",
    "PREEMPTED": "was preempted (PREEMPTED)",
    "CANCELLED": "was cancelled (CANCELLED)",
    "DEADLINE": "was ended by its deadline (DEADLINE)",
    "FORGOTTEN": "has ended, with a result that Slurm has forgotten",
    "REVOKED": "was moved to another cluster (REVOKED)",
}
# As Slurm's manual writes times: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]].
_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One task of an array, as `squeue` lists it.

    Attributes:
        state: Its state, as Slurm calls it.
        restarts: Number of its restarts.
        reason: Why it waits, or why it ended. "" if Slurm gives no reason.
    """

    state: str
    restarts: int = 0
    reason: str = ""

    @property
    def over(self) -> str | None:
        """How it ended, phrased to follow "the server". None while it is not over."""
        if self.state in _UNDER_WAY:
            return None
        reason = f", {self.reason}" if self.reason else ""
        return _ENDS.get(self.state, f"failed as a job ({self.state}{reason})")

    @property
    def runs(self) -> bool:
        """Whether its server may run."""
        return self.state in {"RUNNING", "COMPLETING", "SIGNALING"}


FORGOTTEN = SlurmJob("FORGOTTEN")
"""A task that is over, with an unknown end."""


def comment(labels: Mapping[str, str], folder: Path | None) -> str:
    """Labels as the comment of a job."""
    return json.dumps([_MARK, labels[DEPLOYMENT], labels[OWNER], None if folder is None else str(folder)])


def options_of(spec: LaunchSpec, given: Mapping[str, Any]) -> list[str]:
    """Options of `sbatch` for a specification.

    Args:
        spec: The specification; its options override `given`.
        given: Options by their long names. True for an option without a value, None for an unset one.

    Raises:
        UsageError: An invalid value.
    """
    resources = spec.resources
    asked: dict[str, Any] = {}
    if resources.cpus is not None:
        asked["cpus-per-task"] = math.ceil(resources.cpus)
    if resources.memory_bytes is not None:
        asked["mem"] = f"{math.ceil(resources.memory_bytes / 1024**2)}M"
    if spec.gpus_each:
        asked["gres"] = f"gpu:{spec.gpus_each}"
    for name, value in {**given, **spec.options}.items():
        text = "" if value is None or value is False else str(value)
        if "\n" in text or "\0" in text:
            raise UsageError(f"{name} must be one line, got {value!r}")
        if name == "time" and text and not _TIME.fullmatch(text):
            raise UsageError(
                f"time_limit must be a timedelta, or in Slurm's format ('30' minutes, '4:00:00', '1-12'); "
                f"got {value!r}"
            )
        if name == "gres" and text and name in asked:
            text = f"{asked[name]},{text}"
        if text:
            asked[name] = value if value is True else text
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in asked.items()]


def seconds_of(time: str) -> int | None:
    """Seconds of a time in Slurm's format; None for no limit, or another text."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time.strip())
    if match is None:
        return None
    days, parts = match[1], [int(part) for part in match.groups()[1:] if part is not None]
    if days is None and len(parts) < 3:
        parts = [0, *parts]  # it begins with minutes, not with hours
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def arrays_of(tasks: Iterable[str]) -> list[str]:
    """Tasks in the format of `scancel`, grouped by array."""
    by_array: dict[str, list[str]] = {}
    for task in tasks:
        array, _, index = task.partition("_")
        by_array.setdefault(array, []).append(index)
    return [f"{array}_[{','.join(indices)}]" for array, indices in by_array.items()]


def script(python: str, setup: Sequence[str], task: str, plan: Mapping[str, Any]) -> str:
    """The batch script of every task. No secrets.

    Args:
        python: The Python of the nodes.
        setup: Lines of bash before it.
        task: The source of `task.py`.
        plan: Argument of its `main`.

    Raises:
        UsageError: A line of `setup` contains a line break.
    """
    if any("\n" in line or "\0" in line for line in setup):
        raise UsageError("setup must be a list of lines of bash, without line breaks")
    # `exec` replaces the shell with the task, so that a signal to the batch script (--signal=B:...) reaches the task.
    lines = ["#!/bin/bash", *setup, f"exec {shlex.quote(python)} - <<'OPENENV_TASK'"]
    return "\n".join([*lines, task, f"main({dict(plan)!r}, os.environ)", "OPENENV_TASK", ""])


def jobs_in(listing: str) -> dict[str, SlurmJob]:
    """Parses the output of `squeue --array` with the columns of states; by `ARRAY_INDEX`."""
    found = {}
    for row in _rows(listing, _WIDTHS):
        restarts = row["RestartCnt"]
        reason = "" if row["Reason"] in {"None", "(null)"} else row["Reason"]
        job = SlurmJob(row["State"], int(restarts) if restarts.isdigit() else 0, reason)
        for index in indices(row["ArrayTaskID"]):
            found[f"{row['ArrayJobID']}_{index}"] = job
    return found


def jobs_in_history(listing: str) -> dict[str, SlurmJob]:
    """Parses the output of `sacct --parsable2` with JobID and State; by `ARRAY_INDEX`."""
    rows = (line.split("|") for line in listing.splitlines())
    return {row[0]: SlurmJob(row[1].split()[0]) for row in rows if len(row) == 2 and row[1].split()}


def indices(text: str) -> list[int]:
    """Parses the indices of an array: `3`, `0-4,7`, `1-9:2`, perhaps with `%` and a limit."""
    found: list[int] = []
    for part in text.partition("%")[0].strip("[]").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())
        if match is not None:
            first = int(match[1])
            found += range(first, int(match[2] or first) + 1, int(match[3] or 1))
    return found


def leftovers_in(listing: str) -> list[Leftover]:
    """Our arrays in the output of `squeue` with the columns of labels; `handle` is the folder, if there is one."""
    found = {}
    for row in _rows(listing, _LISTED):
        try:
            mark, deployment, owner, folder = json.loads(row["Comment"])
        except (ValueError, TypeError):
            continue
        # The name must match the comment: jobs are cancelled by name.
        if mark == _MARK and deployment == row["Name"]:
            array = row["ArrayJobID"]
            found[array] = Leftover("job", array, deployment, OwnerProcess.read(str(owner)), folder)
    return list(found.values())


def _rows(listing: str, widths: Mapping[str, int]) -> Iterable[dict[str, str]]:
    for line in listing.splitlines():
        row, start = {}, 0
        for name, width in widths.items():
            row[name] = line[start : start + width].strip()
            start += width
        yield row


AS_ASKED = "as asked"
"""How a server ended at the request of Slurm or its owner. Slurm may start it again: `squeue` shows if it is over."""


@dataclass(frozen=True, slots=True)
class TaskNotice:
    """The newest report of one start of a task.

    Attributes:
        task: Array and index.
        restart: Number of earlier starts.
        url: Address of its server; None before it listens and after its end.
        ended: How its server ended without a request, phrased to follow "the server". None while it runs.
        log: The last lines of its log, if the log is not in a file.
    """

    task: str
    restart: int = 0
    url: str | None = None
    ended: str | None = None
    log: tuple[str, ...] = field(default=(), repr=False)

    @staticmethod
    def read(text: str) -> TaskNotice | None:
        """Parses a notice as a task writes it; None for any other text."""
        try:
            return _NOTICES.validate_json(text)
        except ValidationError:
            return None


_NOTICES = TypeAdapter(TaskNotice)


def end_of(job: SlurmJob, notice: TaskNotice | None) -> str | None:
    """Why a server is gone, phrased to follow "the server". None while it runs or starts."""
    reported = None
    if notice is not None and notice.restart >= job.restarts and notice.ended != AS_ASKED:
        reported = notice.ended
    return reported or job.over


def address_of(job: SlurmJob, notice: TaskNotice | None) -> str | None:
    """The address of a server. Ignores notices of earlier starts."""
    return None if notice is None or notice.restart < job.restarts or job.over is not None else notice.url


def newest(notices: Iterable[TaskNotice]) -> dict[str, TaskNotice]:
    """The notice of the last start of each task."""
    found: dict[str, TaskNotice] = {}
    for notice in notices:
        if notice.task not in found or found[notice.task].restart <= notice.restart:
            found[notice.task] = notice
    return found
