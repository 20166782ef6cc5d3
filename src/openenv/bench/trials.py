"""A closed loop several times, next to an empty server if that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from .closed_loop import Metered, measure_steps
from .floor import Floor
from .step_cost import StepCost
from .stepper import Loop

__all__ = ["Trials", "measure_trials"]


@dataclass(slots=True)
class Trials:
    """What came of it.

    Attributes:
        server: One a trial.
        floor: Of the empty server, one a trial; none if it was not asked for.
    """

    server: list[StepCost] = field(default_factory=list)
    floor: list[StepCost] = field(default_factory=list)


def measure_trials(
    loop: Loop,
    trials: int,
    processes: int,
    server: Metered | None,
    *,
    floor: bool = False,
    stage: Callable[[str], None] = lambda text: None,
) -> Trials:
    """Measures, turn and turn about.

    Args:
        loop: What to do. The floor is always that of single steps.
        trials: How often.
        processes: Among which the sessions are shared out.
        server: What serves, for its CPU time and memory.
        floor: Whether to put the same load on an empty server on this machine.
        stage: Called with a sentence when something begins.

    Raises:
        UsageError, LaunchFailed: As `measure_steps`.
    """
    found = Trials()
    what = f"{loop.sessions:,} sessions step for {loop.duration_s:g} s"
    with Floor() if floor else nullcontext() as empty:
        for number in range(1, trials + 1):
            which = f", trial {number} of {trials}" if trials > 1 else ""
            stage(what + which)
            cost = measure_steps(loop, processes, server)
            # A server keeps the memory that sessions have given back: only the first trial sees it grow.
            found.server.append(cost if number == 1 else replace(cost, kib_per_session=None))
            if empty is not None:
                stage(f"the floor: {what}{which}")
                at_floor = replace(loop, url=empty.url, action={}, vector=False)
                found.floor.append(measure_steps(at_floor, processes, empty))
    return found
