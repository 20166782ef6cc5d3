"""What a closed loop has shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

__all__ = ["StepCost", "mean_cost"]


@dataclass(slots=True)
class StepCost:
    """What was measured. Latencies are seconds, by nearest rank.

    Attributes:
        sessions: How many stepped to the end.
        failed: How many did not.
        errors: How often each error came, by type and message.
        steps: Steps answered.
        resets: Episodes that ended and were followed by a reset; its time and CPU count too.
        seconds: Duration.
        steps_per_second: `steps` by `seconds`.
        p50, p99: Latency of a step; of a batch of them, where they went as batches.
        server_us_per_step: CPU microseconds of the server's processes; None if they are not known.
        client_us_per_step: CPU microseconds of the load's processes.
        kib_per_session: By how much the server's resident memory grew for each session, read when all had done a
            few steps and none had anything to do; None if it is not known, or too few to tell.
    """

    sessions: int
    failed: int
    errors: dict[str, int]
    steps: int
    resets: int
    seconds: float
    steps_per_second: float
    p50: float | None
    p99: float | None
    server_us_per_step: float | None
    client_us_per_step: float | None
    kib_per_session: float | None = None

    @property
    def us_per_step(self) -> float | None:
        """CPU microseconds of both sides; None if those of one are not known."""
        if self.server_us_per_step is None or self.client_us_per_step is None:
            return None
        return self.server_us_per_step + self.client_us_per_step


def mean_cost(trials: Sequence[StepCost]) -> StepCost:
    """Several trials as one: counts are sums, figures are means of those trials that have them.

    Args:
        trials: At least one, all of one loop.
    """
    return StepCost(
        sessions=min(trial.sessions for trial in trials),
        failed=sum(trial.failed for trial in trials),
        errors=dict(sum((Counter(trial.errors) for trial in trials), Counter[str]())),
        steps=sum(trial.steps for trial in trials),
        resets=sum(trial.resets for trial in trials),
        seconds=sum(trial.seconds for trial in trials),
        steps_per_second=fmean(trial.steps_per_second for trial in trials),
        p50=_mean(trial.p50 for trial in trials),
        p99=_mean(trial.p99 for trial in trials),
        server_us_per_step=_mean(trial.server_us_per_step for trial in trials),
        client_us_per_step=_mean(trial.client_us_per_step for trial in trials),
        kib_per_session=_mean(trial.kib_per_session for trial in trials),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None
