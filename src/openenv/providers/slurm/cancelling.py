"""The end of jobs that Slurm is asked for, at once and not when their servers have drained."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence

from ...errors import LaunchFailed, ProviderBusy
from ..pace import Pace
from .commands import run, user
from .job import COLUMNS, leftovers_in

__all__ = ["all_of", "cancel", "cancel_others", "cancel_tasks"]

# Between two looks at what is not over yet.
GLANCE_S = 0.1
# Until jobs that were cancelled are over; those that do not end when asked to have KillWait, 30 s by default.
END_S = 90.0


def all_of(deployment: str) -> list[str]:
    """All jobs of a deployment, in the words of `scancel` and `squeue`."""
    return [f"--name={deployment}", f"--user={user()}"]


async def cancel(deployment: str, pace: Pace) -> None:
    """Ends all jobs of a deployment, also those whose numbers were never heard of."""
    selection = all_of(deployment)
    await cancel_tasks(selection, pace, lambda: _listed(*selection))


async def cancel_tasks(
    selection: Sequence[str], pace: Pace, under_way: Callable[[], Awaitable[Sequence[str]]]
) -> None:
    """Ends tasks and waits for their end.

    Args:
        selection: Which, in the words of `scancel`.
        pace: How often a controller is asked again that does not answer.
        under_way: Those that are not over.

    Raises:
        LaunchFailed: They do not end, or Slurm refuses.
    """
    await pace.start(lambda: _scancel(selection))
    try:
        async with asyncio.timeout(END_S):
            while await under_way():  # noqa: ASYNC110 - Slurm calls nobody back
                await asyncio.sleep(GLANCE_S)
    except TimeoutError:
        raise LaunchFailed(f"{' '.join(selection)}: not over {END_S:g} s after scancel; see squeue") from None


async def cancel_others(deployment: str, known: Collection[str]) -> None:
    """Ends the arrays of a deployment that are not known, and does not wait for that."""
    listing = await run("squeue", "--noheader", *all_of(deployment), f"--Format={COLUMNS['labels']}")
    for each in leftovers_in(listing):
        if each.name not in known:
            await _scancel([each.name])


async def _scancel(selection: Sequence[str]) -> None:
    # The task kills its server at this signal; scancel alone asks it to drain, and waits. What waits has none.
    with contextlib.suppress(LaunchFailed):
        await run("scancel", "--batch", "--signal=USR1", "--state=RUNNING", *selection)
    try:
        await run("scancel", *selection)
    except ProviderBusy:
        raise
    except LaunchFailed as refusal:
        if not any(word in str(refusal).lower() for word in ("invalid job id", "already complet")):
            raise


async def _listed(*selection: str) -> list[str]:
    """Which of some jobs are not over."""
    try:
        return (await run("squeue", "--noheader", "--format=%i", *selection)).split()
    except ProviderBusy:
        return ["unknown"]
    except LaunchFailed as refusal:
        if "invalid job id" in str(refusal).lower():
            return []
        raise
