"""What Slurm knows of the tasks of a provider: one question a second at most, for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from ...background import heard
from ...errors import LaunchFailed, ProviderBusy, ProviderFailed
from .commands import run
from .job import COLUMNS, FORGOTTEN, Job, jobs_in, jobs_in_history

__all__ = ["Queue"]

EVERY_S = 1.0
# A task that was submitted so many seconds ago and is not known has been there and is over.
SETTLED_S = 5.0
_WAITS = Job("PENDING")


class Queue:
    """The states of tasks, which are called `ARRAY_INDEX`, as they were a second ago at most."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._jobs: dict[str, Job] = {}
        self._asked = float("-inf")
        self._question: asyncio.Task[None] | None = None

    def watch(self, tasks: Iterable[str]) -> None:
        """Asks for these from now on."""
        self._since |= dict.fromkeys(tasks, asyncio.get_running_loop().time())

    def forget(self, tasks: Iterable[str]) -> None:
        """Asks for these no more."""
        for task in tasks:
            self._since.pop(task, None)
            self._jobs.pop(task, None)

    async def job(self, task: str) -> Job:
        """What is known of a task.

        While the controller does not answer, what is known stands. One that it has forgotten is over.

        Raises:
            ProviderFailed: There is no `squeue`, or it refuses.
        """
        if asyncio.get_running_loop().time() - self._asked >= EVERY_S:
            await self._answer()
        return self._jobs.get(task, _WAITS)

    async def under_way(self, tasks: Collection[str]) -> list[str]:
        """Which of those are not over, as of now."""
        if self._question is not None:  # that one may have been asked before what the caller did
            await self._answer()
        await self._answer()
        return [task for task in tasks if self._jobs.get(task, _WAITS).over is None]

    async def _answer(self) -> None:
        if self._question is None:
            self._question = asyncio.ensure_future(self._ask())
            self._question.add_done_callback(heard)
        question = self._question
        try:
            await asyncio.shield(question)
        finally:
            if question.done() and self._question is question:
                self._question = None

    async def _ask(self) -> None:
        asked = asyncio.get_running_loop().time()
        try:
            arrays = sorted({task.partition("_")[0] for task in self._since})
            found = jobs_in(await _listed(arrays)) if arrays else {}
            lost = [
                task
                for task, since in self._since.items()
                if task not in found and asked - since > SETTLED_S and self._jobs.get(task, _WAITS).over is None
            ]
            if lost:
                found |= await _history(lost)
        except ProviderBusy:
            found = {}
        finally:
            self._asked = asyncio.get_running_loop().time()
        self._jobs |= {task: job for task, job in found.items() if task in self._since}


async def _listed(arrays: list[str]) -> str:
    how = ("--noheader", "--array", "--states=all", f"--Format={COLUMNS['states']}")
    try:
        return await run("squeue", *how, f"--jobs={','.join(arrays)}")
    except LaunchFailed as refusal:
        if "invalid job id" in str(refusal).lower():
            return ""  # forgotten, as it does some minutes after their end
        raise


async def _history(tasks: list[str]) -> dict[str, Job]:
    """How tasks ended that the controller has forgotten; the accounting may know, where there is one."""
    try:
        listing = await run("sacct", "-n", "-P", "-X", "-o", "JobID,State", "-j", ",".join(tasks))
    except ProviderBusy:
        raise
    except ProviderFailed:  # there is none, or it is not to be had
        listing = ""
    return dict.fromkeys(tasks, FORGOTTEN) | jobs_in_history(listing)
