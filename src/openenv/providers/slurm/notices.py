"""What tasks tell of themselves: where their server is, and that it has ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .job import Job

__all__ = ["AS_ASKED", "Notice", "address_of", "end_of", "newest"]

AS_ASKED = "as asked"
"""How a server ended that Slurm or its owner asked to: whether the task is over, Slurm knows."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What one start of a task has told.

    Attributes:
        task: Array and index.
        restart: How often it was started before.
        url: Where its server is; None: nowhere yet, or no more.
        node: Where it runs.
        ended: How its server ended by itself, to go on with after "the server"; None while it is there.
        log: The last lines of its log, where there is no file of it.
    """

    task: str
    restart: int = 0
    url: str | None = None
    node: str = ""
    ended: str | None = None
    log: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def read(cls, text: str) -> Notice | None:
        """A notice as a task writes it; None for what is none."""
        try:
            facts: Any = json.loads(text)
            url, ended = facts.get("url"), facts.get("ended")
            return cls(
                str(facts["task"]),
                int(facts["restart"]),
                None if url is None else str(url),
                str(facts.get("node", "")),
                None if ended is None else str(ended),
                tuple(str(line) for line in facts.get("log", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def end_of(job: Job, notice: Notice | None) -> str | None:
    """Why a server is gone, to go on with after "the server"; None while it is there or on its way."""
    told = None
    if notice is not None and notice.restart >= job.restarts and notice.ended != AS_ASKED:
        told = notice.ended
    return told or job.over


def address_of(job: Job, notice: Notice | None) -> str | None:
    """Where a server is. What an earlier start has told counts no more."""
    return None if notice is None or notice.restart < job.restarts or job.over is not None else notice.url


def newest(notices: Iterable[Notice]) -> dict[str, Notice]:
    """Of each task the notice of its last start."""
    found: dict[str, Notice] = {}
    for notice in notices:
        if notice.task not in found or found[notice.task].restart <= notice.restart:
            found[notice.task] = notice
    return found
