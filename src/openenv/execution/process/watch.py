"""How many processes and threads each session has: counted in /proc when there may be too many."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Census", "Watch", "take_census"]

# Looking at the number of all threads of the machine is cheap; counting those of each session is not.
GLANCE_S = 0.05
COUNT_S = 5.0
# The share of this process's time that counting may take.
SHARE = 0.05


class Census(NamedTuple):
    """Parents, groups and numbers of threads of the processes there are."""

    parents: dict[int, int]
    groups: dict[int, int]
    threads: dict[int, int]

    def descendants(self, ancestors: Collection[int]) -> dict[int, list[int]]:
        """Of each ancestor: itself, and all that descend from it."""
        families: dict[int, list[int]] = {ancestor: [] for ancestor in ancestors}
        of: dict[int, int | None] = {ancestor: ancestor for ancestor in ancestors}
        for pid in self.parents:
            path = []
            at: int | None = pid
            while at is not None and at not in of:
                path.append(at)
                of[at] = None  # until it is known; a circle cannot be, but processes come and go while we read
                at = self.parents.get(at)
            found = of.get(at) if at is not None else None
            for each in path:
                of[each] = found
        for pid in self.parents:
            owner = of.get(pid)
            if owner is not None:
                families[owner].append(pid)
        return families


def take_census() -> Census:
    """Reads /proc."""
    census = Census({}, {}, {})
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is wanted, thousands of them
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/stat").read_bytes()
            except OSError:  # gone
                continue
            fields = text[text.rfind(b")") + 2 :].split()
            if len(fields) < 18:  # gone while it was read
                continue
            pid = int(name)
            census.parents[pid] = int(fields[1])
            census.groups[pid] = int(fields[2])
            census.threads[pid] = int(fields[17])
    return census


class Watch:
    """Finds the sessions that have started too many processes.

    Args:
        most: How many a session may have.
    """

    def __init__(self, most: int):
        self._most = most
        self._enough = 0  # threads of the machine with which no session can be over its limit
        self._count_at = 0.0
        self._not_before = 0.0

    def over(self, sessions: Iterable[int]) -> list[int]:
        """Those of the given processes that have more descendants and threads than they may."""
        total, now = _threads_of_the_machine(), time.monotonic()
        if now < self._not_before or (total < self._enough and now < self._count_at):
            return []
        leaders = list(sessions)
        census = take_census()
        found, most = [], 0
        for leader, family in census.descendants(leaders).items():
            size = sum(census.threads.get(pid, 1) for pid in family)
            most = max(most, size)
            if size - 1 > self._most:  # without the process itself
                found.append(leader)
        self._not_before = now + (time.monotonic() - now) / SHARE
        self._count_at = max(self._not_before, now + COUNT_S)
        self._enough = total + max(self._most - most, 1) if total else 0
        return found


def _threads_of_the_machine() -> int:
    try:
        return int(Path("/proc/loadavg").read_bytes().split()[3].partition(b"/")[2])
    except (OSError, IndexError, ValueError):  # some containers hide or replace it: then each session is counted
        return 0
