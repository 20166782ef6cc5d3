"""Which task teaches most per cost: the variance of the rewards in its groups, estimated while a policy trains.

A group in which all rewards are equal has no advantage, and so no gradient. For rewards of 0 and 1 the variance is
p(1 - p), the learnability of a task (Foster and Foerster 2025, https://arxiv.org/abs/2502.12272). Here a variance is
a share of the largest one that the rewards seen so far allow, a quarter of their range squared (Popoviciu's
inequality). The estimate is a beta distribution, updated by shares as by wins and losses, and a task is chosen by a
draw from it (Thompson sampling; for values from 0 to 1: Agrawal and Goyal 2012, https://arxiv.org/abs/1111.1797).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from random import Random

from .sampler_journal import GroupResult, SamplingPlan, TaskKey

__all__ = ["SignalOrder", "TaskSignal"]

# Rewards that the average task of all groups so far counts as, in the estimate of each task.
PRIOR = 2.0
# What remains of earlier groups of a task after another one: the policy has changed in the meantime.
KEPT = 0.5
# Times that all tasks come on average until half of an estimate is forgotten, so that no task is left out for ever.
HALF_LIFE = 4.0
# Most tasks that a choice compares of all, and again of those that had a group: the split may have millions.
CANDIDATES = 64


@dataclass(slots=True)
class _Estimate:
    """A task's weights for and against, the mean of its costs, and the number of groups before its last one."""

    above: float
    below: float
    cost: float
    updated: int


class TaskSignal:
    """Estimates of the tasks of a shard.

    Args:
        tasks: Number of tasks in the shard.
    """

    def __init__(self, tasks: int):
        self._half_life = HALF_LIFE * tasks
        self._estimates: dict[int, _Estimate] = {}
        self._least, self._most = math.inf, -math.inf
        self._groups = 0
        self._share, self._cost = 0.5, 1.0  # means of all groups, which are expected of a task without one

    def update(self, result: GroupResult) -> None:
        """Adds a group. One with fewer than two rewards says nothing about the variance."""
        count = len(result.rewards)
        if count < 2:
            return
        self._least, self._most = min(self._least, *result.rewards), max(self._most, *result.rewards)
        share = 0.0
        if self._most > self._least:
            mean = math.fsum(result.rewards) / count
            variance = math.fsum((reward - mean) ** 2 for reward in result.rewards) / (count - 1)
            share = min(1.0, 4 * variance / (self._most - self._least) ** 2)
        before = self._estimates.get(result.index)
        kept = 0.0 if before is None else KEPT * self._left_of(before)
        above, below, cost = (0.0, 0.0, 0.0) if before is None else (before.above, before.below, before.cost)
        self._estimates[result.index] = _Estimate(
            above=kept * above + (count - 1) * share,
            below=kept * below + (count - 1) * (1 - share),
            cost=result.cost if before is None else (cost + result.cost) / 2,
            updated=self._groups,
        )
        self._groups += 1
        self._share += (share - self._share) / (self._groups + 1)  # never 0 or 1, which no beta distribution has
        self._cost += (result.cost - self._cost) / self._groups

    def choose(self, tasks: Sequence[int], busy: Container[int], random: Random) -> int:
        """The task with the largest draw per cost among candidates, half of which have had a group.

        Args:
            tasks: The tasks of the shard.
            busy: Those whose group is played now, which are chosen only if all candidates are.
            random: Where the draws come from.
        """

        def draw(task: int) -> float:
            above, below, cost = PRIOR * self._share, PRIOR * (1 - self._share), self._cost
            estimate = self._estimates.get(task)
            if estimate is not None:
                left, cost = self._left_of(estimate), estimate.cost
                above, below = above + left * estimate.above, below + left * estimate.below
            return random.betavariate(above, below) / cost

        candidates = [*_some(tasks, random), *_some(list(self._estimates), random)]
        return max([task for task in candidates if task not in busy] or candidates, key=draw)

    def _left_of(self, estimate: _Estimate) -> float:
        """What age leaves of an estimate, 0 to 1."""
        return float(0.5 ** ((self._groups - estimate.updated) / self._half_life))


def _some(tasks: Sequence[int], random: Random) -> Sequence[int]:
    return tasks if len(tasks) <= CANDIDATES else random.sample(tasks, CANDIDATES)


class SignalOrder:
    """The tasks of a shard by signal, one group after another; the pass of a task counts its earlier groups.

    Args:
        plan: The plan of the tasks.
        groups: Number of groups; None for no limit.

    Attributes:
        number: 0, as there is only one.
        signal: The estimates by which a task is chosen.
        free: Number of tasks that can be taken.
        left: Number of unfinished tasks.
    """

    number = 0

    def __init__(self, plan: SamplingPlan, groups: int | None):
        self.signal = TaskSignal(plan.share)
        self._plan = plan
        self._tasks: array[int] = plan.order(0)
        self._mine = frozenset(self._tasks)
        self._passes: Counter[int] = Counter()
        self._open: dict[tuple[int, int], int] = {}  # unfinished repeats of the groups that were begun
        self._free: list[TaskKey] = []
        self._begun = 0
        self.free = self.left = math.inf if groups is None else groups * plan.repeats

    def take(self) -> TaskKey | None:
        """Takes the next task: of a group that was begun, or the one with the most signal."""
        if not self.free:
            return None
        if not self._free:
            # Each choice has random numbers of its own: a run that is continued goes on as it would have.
            random = Random(f"{self._plan.seed}/{self._plan.shard}/{self._begun}")  # noqa: S311 - an order, no secret
            busy = {index for _, index in self._open}
            self._begin(self.signal.choose(self._tasks, busy, random))
        return self._take(self._free[-1])

    def take_index(self, index: int) -> TaskKey | None:
        """Takes a certain task; None after the last group."""
        if not any(key[1] == index for key in self._free):
            if self.free <= len(self._free):
                return None
            self._begin(index)
        return self._take(next(key for key in reversed(self._free) if key[1] == index))

    def take_key(self, key: TaskKey) -> bool:
        """Takes one repeat of a task, whose group may begin. Returns whether it was free."""
        if key[0] == self._passes[key[1]] and self.free > len(self._free):
            self._begin(key[1])
        return key in self._free and bool(self._take(key))

    def has(self, index: int) -> bool:
        """Whether the task is in this shard."""
        return index in self._mine

    def finish(self, key: TaskKey) -> None:
        """Marks a task as finished."""
        self.left -= 1
        self._open[key[:2]] -= 1
        if not self._open[key[:2]]:
            del self._open[key[:2]]

    def give_back(self, key: TaskKey) -> None:
        """Returns a task, which is taken next."""
        self.free += 1
        self._free.append(key)

    def _begin(self, index: int) -> None:
        number, repeats = self._passes[index], self._plan.repeats
        self._passes[index] += 1
        self._begun += 1
        self._open[number, index] = repeats
        self._free += [(number, index, repeat) for repeat in reversed(range(repeats))]

    def _take(self, key: TaskKey) -> TaskKey:
        self._free.remove(key)
        self.free -= 1
        return key
