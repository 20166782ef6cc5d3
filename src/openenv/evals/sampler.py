"""Distribute tasks to sessions: each task once per epoch, even after a crash."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import NoReturn, Self

from ..errors import InvalidArgument, TaskTaken, UsageError
from .sampler_journal import GroupResult, SamplingPlan, TaskJournal, TaskKey
from .task_signal import SignalOrder

__all__ = ["Epoch", "SampledTask", "TaskSampler"]


_FREE, _TAKEN, _DONE, _FOREIGN = range(4)


class Epoch:
    """One pass over the tasks.

    Args:
        plan: The plan of the tasks.
        number: Number of the pass, from 0.

    Attributes:
        number: Number of the pass.
        free: Number of tasks that can be taken.
        left: Number of unfinished tasks.
    """

    def __init__(self, plan: SamplingPlan, number: int):
        self.number = number
        self._repeats = plan.repeats
        self._order: array[int] = plan.order(number)
        # The state of each repeat of each task in the split, one byte each, by index.
        self._standing = bytearray([_FOREIGN]) * (plan.size * plan.repeats)
        for index in self._order:
            self._standing[index * plan.repeats : (index + 1) * plan.repeats] = bytes(plan.repeats)
        self.free = self.left = len(self._order) * plan.repeats
        self._upcoming = (
            place for index in self._order for place in range(index * plan.repeats, (index + 1) * plan.repeats)
        )
        self._returned: list[int] = []

    def take(self) -> TaskKey | None:
        """Takes the next task: first the returned ones, then in order. None if there is none."""
        while self.free:
            place = self._returned.pop() if self._returned else next(self._upcoming)
            if self._standing[place] == _FREE:
                self._set(place, _TAKEN)
                return (self.number, *divmod(place, self._repeats))
        return None

    def take_index(self, index: int) -> TaskKey | None:
        """Takes a task by its index; None if all repeats are taken or finished."""
        keys = ((self.number, index, repeat) for repeat in range(self._repeats))
        return next((key for key in keys if self.take_key(key)), None)

    def take_key(self, key: TaskKey) -> bool:
        """Takes one repeat of a task. Returns whether it was free."""
        free = self._standing[self._place(key)] == _FREE
        if free:
            self._set(self._place(key), _TAKEN)
        return free

    def has(self, index: int) -> bool:
        """Whether the task is in this shard in this epoch."""
        return self._standing[index * self._repeats] != _FOREIGN

    def finish(self, key: TaskKey) -> None:
        """Marks a task as finished."""
        self._set(self._place(key), _DONE)

    def give_back(self, key: TaskKey) -> None:
        """Returns a task, which is taken next."""
        self._set(self._place(key), _FREE)
        self._returned.append(self._place(key))

    def _place(self, key: TaskKey) -> int:
        return key[1] * self._repeats + key[2]

    def _set(self, place: int, standing: int) -> None:
        before, self._standing[place] = self._standing[place], standing
        self.free += (standing == _FREE) - (before == _FREE)
        self.left += (before == _DONE) - (standing == _DONE)


@dataclass(eq=False, repr=False, slots=True)
class SampledTask:
    """A task that no other session gets. Its `with` block finishes it, or gives it back if the block raises::

        for task in sampler:
            with task:
                result = await env.reset(split=task.split, index=task.index, seed=task.seed)
                ...

    Attributes:
        split: Name of the split.
        index: Index in the split, for `reset(split=, index=)`.
        epoch: Number of the pass over the tasks, from 0; by signal, of the task's earlier groups.
        repeat: Number of the repeat in this epoch, from 0.
        seed: Seed of the episode: the same for all repeats of a task in an epoch, and another one in each epoch.
    """

    _sampler: TaskSampler
    split: str
    index: int
    epoch: int
    repeat: int
    seed: int

    def __repr__(self) -> str:
        return f"<task {self.index} of {self.split!r}, epoch {self.epoch}, repeat {self.repeat}>"

    def finish(self) -> None:
        """Finishes the task: it does not come again in this epoch, even after a crash.

        Raises:
            TaskTaken: The task was already finished or given back.
        """
        self._sampler.finish(self)

    def give_back(self) -> None:
        """Gives the task back: the next call of `take` returns it.

        Raises:
            TaskTaken: The task was already finished or given back.
        """
        self._sampler.give_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if not self._sampler.is_taken(self):  # the block has finished it or given it back
            return
        if kind is None:
            self.finish()
        else:
            self.give_back()


class TaskSampler:
    """Distributes the tasks of a split: a session gets a task that is neither taken nor finished in this epoch::

        sampler = TaskSampler(env.tasks("train"), split="train", seed=1, journal="train.journal")
        for task in sampler:
            with task:  # finished at the end of the block, given back if it raises
                result = await env.reset(split=task.split, index=task.index, seed=task.seed)
                ...

    The sessions of a process share one sampler: threads and coroutines may loop over it at the same time. Each of
    several trainer processes makes its own sampler, with the same values except `shard`: together they have every
    task once per epoch. It never waits: if all remaining tasks are taken, a loop ends, and a task that is given back
    later goes to the next call of `take`. A new epoch begins when all tasks of the last one are taken.

    With a journal it continues where it stopped, even after a crash: finished tasks do not come again, and unfinished
    ones come first. Each event is with the operating system before the call returns, so a crash of the process loses
    nothing; with `sync` it is on the disk, and a crash of the machine loses nothing.

    Args:
        tasks: Number of tasks in the split, or an object with a length.
        split: Name of the split.
        seed: Seed of the order, which differs in each epoch, and is the same in all shards and after a restart.
        shuffle: Whether the order is random; otherwise tasks come by index.
        epochs: Number of epochs; None for no limit.
        repeats: How often a task comes per epoch, in a row: the group of GRPO. All repeats are in one shard.
        shard: Number of this process's shard, from 0.
        shards: Number of shards.
        by_signal: Whether tasks with more signal per cost come more often, by the results that `update` gets. An
            epoch is then as many groups as there are tasks, and a task has the same shard in all of them.
        journal: The file of this shard; None to keep no journal.
        sync: Whether each event is synced to the disk (milliseconds each).

    Raises:
        InvalidArgument: A value is out of its range, or the journal cannot be opened.
        JournalInUse: Another sampler, in this process or another, has the journal open.
        JournalMismatch: The journal has other values, or the file is not a journal.
    """

    def __init__(
        self,
        tasks: int | Sized,
        *,
        split: str = "train",
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = 1,
        repeats: int = 1,
        shard: int = 0,
        shards: int = 1,
        by_signal: bool = False,
        journal: str | os.PathLike[str] | None = None,
        sync: bool = False,
    ):
        size = len(tasks) if isinstance(tasks, Sized) else tasks
        self._plan = SamplingPlan(split, size, seed, shuffle, repeats, shard, shards, by_signal)
        if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1):
            raise InvalidArgument(f"epochs must be a whole number of at least 1, or None: {epochs!r}")
        self._most = epochs
        self._pid = os.getpid()
        self._lock = Lock()
        self._epochs: dict[int, Epoch | SignalOrder] = {}
        self._begun = 0
        self._by_signal: SignalOrder | None = None
        if by_signal:
            self._by_signal = SignalOrder(self._plan, None if epochs is None else epochs * self._plan.share)
            self._epochs[0] = self._by_signal
        self._held: dict[TaskKey, SampledTask] = {}
        self._journal = None if journal is None else TaskJournal(Path(journal), self._plan, sync)
        if self._journal is not None:
            try:
                self._resume(self._journal)
            except BaseException:
                self._journal.close()
                raise

    def __iter__(self) -> Iterator[SampledTask]:
        """Takes one task after another, until none is available."""
        while (task := self.take()) is not None:
            yield task

    def take(self, index: int | None = None) -> SampledTask | None:
        """Takes a task.

        Args:
            index: Index of the task; None for the next one.

        Returns:
            The task; None if all are taken or finished.

        Raises:
            TaskTaken: The task with that index is taken or finished in this epoch.
            InvalidArgument: The index is not in the split, or not in this shard in this epoch.
            UsageError: The sampler was closed, or belongs to another process.
        """
        with self._here():
            self._check()
            # The oldest epoch with a free task, or else the next epoch; None after the last one.
            epoch = next((each for each in self._epochs.values() if each.free), None)
            if epoch is None and self._by_signal is None and (self._most is None or self._begun < self._most):
                epoch = self._next()
            if index is not None:
                return self._taken(self._by_index(epoch, index))
            key = None if epoch is None else epoch.take()
            return None if key is None else self._taken(key)

    def update(self, rewards: Mapping[int, Sequence[float]], costs: Mapping[int, float] | None = None) -> None:
        """Takes the results of groups, with `by_signal`: tasks whose groups vary more for their cost come more often.

        A task is chosen by a draw from the estimate of its signal, so that all tasks come now and then. Estimates
        fade as the policy learns. The journal has them, too.

        Args:
            rewards: By index of the task, the returns of the rollouts of its group, in any range.
            costs: By index of the task, what the group cost, in any one unit; None if all cost the same.

        Raises:
            InvalidArgument: A reward or cost is out of its range, or a task is not in this shard or has no cost.
            UsageError: The sampler has no `by_signal`, was closed, or belongs to another process.
        """
        with self._here():
            self._check()
            order = self._by_signal
            if order is None:
                raise UsageError("this TaskSampler ignores rewards: make it with by_signal=True")
            if costs is not None and costs.keys() != rewards.keys():
                raise InvalidArgument("costs must have the tasks that rewards has, no more and no fewer")
            results = [
                GroupResult(index, tuple(group), 1.0 if costs is None else costs[index])
                for index, group in rewards.items()
            ]
            for result in results:
                if not order.has(result.index):
                    raise InvalidArgument(
                        f"task {result.index!r} is not in shard {self._plan.shard} of split {self._plan.split!r}"
                    )
                result.check()
            for result in results:
                if self._journal is not None:
                    self._journal.write_result(result)
                order.signal.update(result)

    def finish(self, task: SampledTask) -> None:
        """Finishes a task. See `SampledTask.finish`."""
        with self._here():
            key = self._key_of(task, "finished")
            self._note("finished", key)
            del self._held[key]
            self._finish(key)

    def give_back(self, task: SampledTask) -> None:
        """Gives a task back. See `SampledTask.give_back`."""
        with self._here():
            key = self._key_of(task, "given back")
            self._note("returned", key)
            del self._held[key]
            self._epoch_of(key).give_back(key)

    def is_taken(self, task: SampledTask) -> bool:
        """Whether the task is still taken: neither finished nor given back."""
        return self._held.get((task.epoch, task.index, task.repeat)) is task

    @property
    def has_journal(self) -> bool:
        """Whether finished tasks do not come again after a restart."""
        return self._journal is not None

    @property
    def by_signal(self) -> bool:
        """Whether `update` tells which tasks come more often."""
        return self._by_signal is not None

    @property
    def left(self) -> int | None:
        """Number of unfinished tasks in all epochs; None without a limit of epochs."""
        with self._here():
            if self._most is None:
                return None
            further = (
                0 if self._by_signal else max(0, self._most - self._begun) * self._plan.share * self._plan.repeats
            )
            return int(further + sum(epoch.left for epoch in self._epochs.values()))

    def close(self) -> None:
        """Closes the journal; unfinished tasks come first when it is opened again."""
        if self._is_elsewhere:  # the journal belongs to the parent
            return
        with self._lock:
            self._pid = -1
            if self._journal is not None:
                self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> NoReturn:
        raise UsageError(
            "a TaskSampler stays in its process, or tasks would come twice: make one in each, with shard= and shards="
        )

    @property
    def _is_elsewhere(self) -> bool:
        """Whether this is a copy in a forked child."""
        return self._pid not in {-1, os.getpid()}

    def _here(self) -> Lock:
        """The lock. Raises in a forked child, where a thread of the parent may hold it for ever."""
        if self._is_elsewhere:
            self._check()
        return self._lock

    # Called with the lock held.

    def _check(self) -> None:
        if self._pid == -1:
            raise UsageError("this TaskSampler was closed: make another one")
        if self._pid != os.getpid():
            raise UsageError(
                f"this TaskSampler belongs to process {self._pid}, and tasks would come twice: make one in each "
                "process, with shard= and shards="
            )

    def _epoch_of(self, key: TaskKey) -> Epoch | SignalOrder:
        return self._by_signal or self._epochs[key[0]]

    def _next(self) -> Epoch:
        epoch = self._epochs[self._begun] = Epoch(self._plan, self._begun)
        self._begun += 1
        return epoch

    def _by_index(self, epoch: Epoch | SignalOrder | None, index: int) -> TaskKey:
        plan = self._plan
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < plan.size:
            raise InvalidArgument(f"split {plan.split!r} has no task {index!r}: there are 0 to {plan.size - 1}")
        facts = {"split": plan.split, "index": index}
        if epoch is None:
            raise TaskTaken(f"task {index} is taken or done, as all tasks of the last epoch are", data=facts)
        if not epoch.has(index):
            raise InvalidArgument(
                f"task {index} is another shard's in epoch {epoch.number} (shard {plan.shard} here)"
            )
        key = epoch.take_index(index)
        if key is None:
            raise TaskTaken(
                f"task {index} is taken or done in epoch {epoch.number}: every index comes once in an epoch "
                f"(repeats={plan.repeats}); take() gives the next free one",
                data={**facts, "epoch": epoch.number},
            )
        return key

    def _taken(self, key: TaskKey) -> SampledTask:
        try:
            self._note("taken", key)
        except BaseException:
            self._epoch_of(key).give_back(key)
            raise
        epoch, index, repeat = key
        seed = self._plan.seed_of(epoch, index)
        task = self._held[key] = SampledTask(self, self._plan.split, index, epoch, repeat, seed)
        return task

    def _key_of(self, task: SampledTask, what: str) -> TaskKey:
        self._check()
        if not self.is_taken(task):
            raise TaskTaken(f"{task!r} cannot be {what}: it was finished or given back before")
        return task.epoch, task.index, task.repeat

    def _finish(self, key: TaskKey) -> None:
        epoch = self._epoch_of(key)
        epoch.finish(key)
        if not epoch.left:
            del self._epochs[epoch.number]

    def _note(self, event: str, key: TaskKey) -> None:
        if self._journal is not None:
            self._journal.write(event, key)

    # Called after a restart.

    def _resume(self, journal: TaskJournal) -> None:
        taken: set[TaskKey] = set()
        for number, event, key in journal.recorded():
            if isinstance(key, GroupResult):
                if self._by_signal is None or not self._by_signal.has(key.index):
                    raise journal.damaged(number, f"has a group of task {key.index}, which is not this shard's")
                self._by_signal.signal.update(key)
            elif fault := self._replay(event, key, taken):
                raise journal.damaged(number, f"says that task {key[1]} of epoch {key[0]} was {fault}")
        for key in sorted(taken, reverse=True):
            self._note("returned", key)
            self._epoch_of(key).give_back(key)

    def _replay(self, event: str, key: TaskKey, taken: set[TaskKey]) -> str | None:
        """Replays an event of the journal. Returns the error text, or None."""
        number, index, repeat = key
        epoch = None
        if index < self._plan.size and repeat < self._plan.repeats:
            epoch = self._by_signal or (self._next() if number == self._begun else self._epochs.get(number))
        if epoch is None or not epoch.has(index):
            return f"{event}, which is not this shard's, or before its turn, or done"
        if event == "taken":
            if not epoch.take_key(key):
                return "taken twice"
            taken.add(key)
            return None
        if key not in taken:
            return f"{event} without being taken first"
        taken.remove(key)
        if event == "finished":
            self._finish(key)
        else:
            epoch.give_back(key)
        return None
