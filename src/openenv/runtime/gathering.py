"""Single sessions that share an instance of a batched environment: their calls are gathered into one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from ..errors import EnvironmentFailed, InvalidAction, InvalidArgument, NotForkable, ResetRequired, StepFailed
from ..types import State
from .batch import CheckedBatch
from .columns import BatchSpec
from .executor import Done, Executor, Operation, attempt, describe_error, load, save, step
from .outcome import BatchOutcome, EpisodeOutcome
from .profile import EnvironmentProfile, reset_batch, step_batch_with


class _InstanceState(Enum):
    NEW = "new"
    STARTING = "starting"
    MADE = "made"
    FAILED = "failed"


# The outcome of a part of a gathered call, or the error that it raised.
PartOutcome = BatchOutcome | BaseException | None


class GatheredCalls(NamedTuple):
    """The calls that are executed together.

    Attributes:
        resets: The episodes to start, each with its seed.
        steps: The episodes that step.
        actions: The columns of their actions.
    """

    resets: dict[int, int | None]
    steps: list[int]
    actions: dict[str, Any]


def run_gathered(batch: CheckedBatch, calls: GatheredCalls) -> tuple[PartOutcome, PartOutcome]:
    """The operation that executes gathered calls.

    Returns:
        The outcomes of the resets and of the steps. The next call does not change them.
    """
    count = batch.spec.num_envs
    started: PartOutcome = None
    stepped: PartOutcome = None
    if calls.resets:
        mask = np.zeros(count, np.bool_)
        mask[list(calls.resets)] = True
        seeds = [calls.resets.get(index) for index in range(count)]
        batch.episode_steps[mask] = 0
        started = _attempt(lambda: batch.reset(seeds, mask, {}))
    if calls.steps:
        mask = np.zeros(count, np.bool_)
        mask[calls.steps] = True
        batch.episode_steps += mask
        stepped = _attempt(lambda: batch.step(calls.actions, mask))
    return started, stepped


def _attempt(call: Callable[[], BatchOutcome]) -> PartOutcome:
    outcome, error = attempt(lambda _, __: call(), None, None)
    if error is None:
        result: BatchOutcome = outcome
        result.detach()
        return result
    # An error about the action of one session is none of the other sessions' own.
    if isinstance(error, EnvironmentFailed):
        return error
    failed = StepFailed(describe_error(error))
    failed.__cause__ = error
    return failed


class SharedBatch:
    """An instance of a batched environment, shared by sessions: each plays one of its episodes.

    A call waits until all sessions that take part have called, or until the window is over. A session that misses a
    window takes no part from then on, until it calls again.

    Args:
        spec: The fields.
        profile: How sessions call the environment.
        executor: Runs the instance.
        window_s: Seconds that the first call waits for the others at most.
        on_empty: Called when the last session has left, and the instance closes.

    Attributes:
        stuck: Whether a call has not returned in time, so that no session may enter until it does.
        resets, steps: The slots with a call that waits.
    """

    def __init__(
        self,
        spec: BatchSpec,
        profile: EnvironmentProfile,
        executor: Executor,
        window_s: float,
        on_empty: Callable[[SharedBatch], None],
    ):
        self.spec, self.profile = spec, profile
        self.stuck = False
        self._executor, self._window_s, self._on_empty = executor, window_s, on_empty
        self._slots: list[SlotExecutor | None] = [None] * spec.num_envs
        self._free = deque(range(spec.num_envs))
        # The callbacks of sessions that wait for the constructor.
        self._entering: list[Done] = []
        self._state = _InstanceState.NEW
        self.resets: list[SlotExecutor] = []
        self.steps: list[SlotExecutor] = []
        self._others: deque[tuple[Operation, Any, Done]] = deque()
        self._taking_part = 0
        self._timer: asyncio.TimerHandle | None = None
        self._busy = self._looking = False

    @property
    def has_room(self) -> bool:
        """Whether a session may enter."""
        return bool(self._free) and not self.stuck

    def enter(self, slot: SlotExecutor, factory: Callable[[], Any], done: Done) -> None:
        """Gives a session an episode, and makes the instance for the first one.

        Args:
            slot: The session's executor.
            factory: Makes the environment.
            done: Gets the profile, or the error of the constructor.
        """
        slot.index = self._free.popleft()
        self._slots[slot.index] = slot
        slot.takes_part = True
        self._taking_part += 1
        if self._state is _InstanceState.MADE:
            done(self.profile, None)  # the session may submit a call that has waited
            return
        self._entering.append(done)
        if self._state is _InstanceState.NEW:
            self._state = _InstanceState.STARTING
            self._executor.start(lambda: CheckedBatch(self.spec, factory()), self._on_made)

    def leave(self, slot: SlotExecutor, done: Done) -> None:
        """Frees the episode of a session without a call in flight; closes the instance after the last one."""
        self._slots[slot.index] = None
        self._free.append(slot.index)
        self._taking_part -= slot.takes_part
        if len(self._free) < self.spec.num_envs:
            done(None, None)
            self._look()
            return
        self._on_empty(self)
        self._executor.close(done)

    def add(self, slot: SlotExecutor, calls: list[SlotExecutor]) -> None:
        """Takes a call that waits in a slot.

        Args:
            slot: The slot.
            calls: `resets` or `steps`.
        """
        calls.append(slot)
        if not slot.takes_part:
            slot.takes_part = True
            self._taking_part += 1
        # `_look`, without a call for all but the first and the last one.
        if self._timer is None or len(self.resets) + len(self.steps) >= self._taking_part:
            self._look()

    def add_other(self, operation: Operation, argument: Any, done: Done) -> None:
        """Runs another operation on the instance, between the gathered calls."""
        self._others.append((operation, argument, done))
        self._look()

    def remove(self, slot: SlotExecutor) -> bool:
        """Takes the call of a slot back. False: it does not wait, or it executes."""
        for calls in (self.resets, self.steps):
            if slot in calls:
                calls.remove(slot)
                return True
        return False

    def waits(self, slot: SlotExecutor) -> bool:
        """Whether a call of the slot waits for the others."""
        return slot in self.resets or slot in self.steps

    def abandon(self) -> None:
        """A call has not returned in time: no session enters before it does."""
        self.stuck = self._busy or self._state is _InstanceState.STARTING

    def _look(self) -> None:
        """Begins what can run now, and otherwise the wait for more calls."""
        if self._looking:  # a call has ended before its `submit` returned: the loop below continues
            return
        self._looking = True
        try:
            while not self._busy and self._begin():
                pass
        finally:
            self._looking = False

    def _begin(self) -> bool:
        """Begins the next call. False: none is ready."""
        waiting = len(self.resets) + len(self.steps)
        if self._others:
            self._busy = True
            operation, argument, done = self._others.popleft()

            def ended(result: Any, error: BaseException | None) -> None:
                self._busy = self.stuck = False
                done(result, error)
                self._look()

            self._executor.submit(operation, argument, ended)
            return True
        if waiting and waiting >= self._taking_part:
            self._run()
            return True
        if waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._window_s, self._time_is_up)
        return False

    def _time_is_up(self) -> None:
        """Runs the calls that are there. The slots without one no longer take part."""
        self._timer = None
        if self._busy:
            return
        here = {*self.resets, *self.steps}
        for slot in self._slots:
            if slot is not None and slot not in here:
                slot.takes_part = False
        self._taking_part = len(here)
        if here:
            self._run()

    def _run(self) -> None:
        """Executes the calls that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._busy = True
        resets, self.resets = self.resets, []
        steps, self.steps = self.steps, []
        actions: dict[str, Any] = {}
        if steps:
            steps, actions = self._columns(steps)
        calls = GatheredCalls({slot.index: slot.argument for slot in resets}, [slot.index for slot in steps], actions)

        def returned(outcomes: Any, error: BaseException | None) -> None:
            started, stepped = (error, error) if error is not None else outcomes
            self.stuck = False
            _deliver(resets, started)
            _deliver(steps, stepped)
            self._busy = False
            self._look()

        self._executor.submit(run_gathered, calls, returned)

    def _columns(self, steps: list[SlotExecutor]) -> tuple[list[SlotExecutor], dict[str, Any]]:
        """The columns of the actions, and their slots: a slot gets the error if its action does not fit."""
        columns: dict[str, Any] = {}
        for field in self.spec.actions:
            values = [getattr(slot.argument, field.name) for slot in steps]
            try:
                columns[field.name] = field.filled([slot.index for slot in steps], values)
            except (TypeError, ValueError, OverflowError):
                fitting = []
                for slot, value in zip(steps, values, strict=True):
                    try:
                        field.filled([slot.index], [value])
                        fitting.append(slot)
                    except (TypeError, ValueError, OverflowError) as error:
                        slot.end(None, InvalidAction(f"field {field.name!r} of the action: {error}"))
                return self._columns(fitting) if fitting else ([], {})
        return steps, columns

    def _on_made(self, _: Any, error: BaseException | None) -> None:
        self._state = _InstanceState.MADE if error is None else _InstanceState.FAILED
        self.stuck = False
        entering, self._entering = self._entering, []
        if error is not None:
            self._on_empty(self)
        for done in entering:
            done(None if error is not None else self.profile, error)


def _deliver(slots: list[SlotExecutor], outcome: PartOutcome) -> None:
    """Ends the calls of one kind."""
    if not isinstance(outcome, BatchOutcome):
        for slot in slots:
            slot.end(None, outcome)
        return
    is_over = (outcome.terminated | outcome.truncated).tolist()
    for slot in slots:
        index = slot.index
        slot.is_playing = not is_over[index]
        # `SlotExecutor.end`, written out: this is the path of every step.
        done, slot.done = slot.done, None
        assert done is not None
        done(EpisodeOutcome(outcome, index), None)


class SlotExecutor:
    """The executor of a session that plays one episode of a shared instance.

    Args:
        batch: The instance.

    Attributes:
        index: The episode.
        takes_part: Whether the calls of others wait for one of this session.
        is_playing: Whether an episode was started and is not over.
        argument: The action of the step that waits, or the seed of the reset.
        done: Gets the result of the call; None if there is no call.
    """

    __slots__ = ("_batch", "_episode_id", "argument", "done", "index", "is_playing", "takes_part")

    def __init__(self, batch: SharedBatch):
        self._batch = batch
        self.done: Done | None = None
        self._episode_id: str | None = None
        self.index = 0
        self.takes_part = self.is_playing = False
        self.argument: Any = None

    @property
    def stoppable(self) -> bool:
        """Whether its call can be stopped: one that waits for the others, but not one that executes."""
        return self.done is None or self._batch.waits(self)

    def start(self, factory: Callable[[], Any], done: Done) -> None:
        self._batch.enter(self, factory, done)

    def submit(self, operation: Operation, argument: Any, done: Done) -> None:
        if operation is step:
            if self.is_playing:
                self.argument, self.done = argument, done
                batch = self._batch
                batch.add(self, batch.steps)
            else:
                done(None, ResetRequired("no episode is being played: reset before this step"))
        elif operation is reset_batch:
            self._reset(argument, done)
        elif operation is step_batch_with:
            self.submit(step, argument[0], done)
        elif operation is save or operation is load:
            name = self._batch.spec.name
            done(
                None,
                NotForkable(
                    f"{name} cannot be forked: this session is one episode of an instance that sessions share: "
                    "open the whole batch (BatchedEnvClient), which can"
                ),
            )
        else:
            self.done = done
            self._batch.add_other(
                lambda batch, _: operation(EpisodeView(batch, self.index, self._episode_id), argument), None, self.end
            )

    def end(self, result: Any, error: BaseException | None) -> None:
        """Ends the call."""
        done, self.done, self.argument = self.done, None, None
        assert done is not None
        done(result, error)

    def cancel(self) -> None:
        if self._batch.remove(self):
            self.end(None, asyncio.CancelledError())

    def abandon(self) -> None:
        self._batch.abandon()

    def close(self, done: Done) -> None:
        self._batch.leave(self, done)

    def _reset(self, arguments: dict[str, Any], done: Done) -> None:
        seed, episode = arguments.get("seed"), arguments.get("episode_id")
        if seed is not None and not (type(seed) is int and seed in _SEEDS):
            # The environment could refuse it, and the resets of the other sessions with it.
            done(None, InvalidArgument(f"seed is {seed!r:.50}: give an integer from 0 to 2**63 - 1"))
            return
        self._episode_id = uuid4().hex if episode is None else str(episode)
        self.argument, self.done = seed, done
        self._batch.add(self, self._batch.resets)


_SEEDS = range(2**63)


class EpisodeView:
    """What other operations use in place of an environment: one episode of an instance.

    Args:
        batch: The instance.
        index: The episode.
        episode_id: Its id; None before the first reset.
    """

    def __init__(self, batch: CheckedBatch, index: int, episode_id: str | None):
        self._batch, self._index, self._episode_id = batch, index, episode_id

    @property
    def state(self) -> Any:
        """The environment's state of the episode, or else its id and its number of steps."""
        state = self._batch.environment.state_of(self._index)
        steps = int(self._batch.episode_steps[self._index])
        return State(episode_id=self._episode_id, step_count=steps) if state is None else state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch.environment, name)
