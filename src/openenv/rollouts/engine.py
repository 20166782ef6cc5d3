"""The engine: plays groups of rollouts, many at a time, and yields them as they finish."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from .._backoff import FIRST_PAUSE_S, LONGEST_PAUSE_S, Backoff, jittered_pause
from ..environment import Environment
from ..errors import (
    CapacityError,
    ContextOverflow,
    EnvironmentCrashed,
    JournalFailed,
    ModelFailed,
    ModelUnavailable,
    OpenEnvError,
)
from ..evals.sampler import TaskSampler
from .chat_view import ChatView
from .groups import LiveGroup, PendingRollout, RolloutBudget, RolloutOptions, RolloutProgress, TaskFeed, TaskSource
from .journal import GroupBegun, RecordedGroup, RolloutJournal
from .model import Model, Sampling
from .play import Diverged, Player, Stale, outcome_of
from .records import Rollout, RolloutFailure, RolloutGroup, RolloutOutcome
from .sessions import ForkedSession, SessionPool

if TYPE_CHECKING:
    from ..chat import Chat
    from .tokens import Tokenizer

__all__ = ["RolloutRun", "rollouts"]

# Seconds for which a slot rests that the server has no session for.
_REST_S = 5.0
# Statuses with which an endpoint refuses a request, and would refuse it again.
_REFUSALS = frozenset({400, 401, 403, 404, 405, 422})
# Other failures of the model before its first answer, after which the run ends.
_MOST_USELESS = 32
# Seconds to wait for a session if the run has none.
_PATIENCE_S = 120.0


def rollouts(
    env: str | Sequence[str] | type[Environment[Any, Any, Any]] | Any,
    model: Model,
    tasks: TaskSource,
    *,
    group_size: int = 1,
    sessions: int = 64,
    requests: int = 64,
    budget: RolloutBudget = RolloutBudget(),  # noqa: B008 - it is frozen
    sampling: Sampling = Sampling(),  # noqa: B008
    tokenizer: Tokenizer | None = None,
    on_break: Literal["split", "fail"] = "split",
    retries: int = 2,
    folder: str | os.PathLike[str] | None = None,
    keep: Callable[[RolloutGroup], bool] | None = None,
    fork: Callable[[Rollout], int] | None = None,
    ahead: int | None = None,
    policy_version: Callable[[], int] | None = None,
    max_staleness: int | None = None,
    on_stale: Literal["restart", "drop"] = "restart",
    chat: Chat | None = None,
    connections: int | None = None,
    metadata: dict[str, Any] | None = None,
    **client_options: Any,
) -> RolloutRun:
    """Plays groups of rollouts and yields them, first finished first::

        async for group in rollouts("http://localhost:8000", model, tasks, group_size=8):
            train(group.rollouts)

    The loop may be left at any time; all sessions end then. To take batches, and to cancel a group, enter the run::

        async with rollouts(...) as run:
            while batch := await run.batch(16):
                train(batch)

    Args:
        env: URL of the server, or URLs of equivalent servers; or an `Environment` class, or an app of `create_app`,
            to play in this process.
        model: The model. The caller closes it.
        tasks: Tasks, or seeds; an iterable, an asynchronous one, or a `TaskSampler`. A task without a seed gets one.
        group_size: Rollouts of each task, all with the same seed.
        sessions: Most rollouts at the same time. It shrinks if the server has fewer sessions.
        requests: Most calls of the model at the same time.
        budget: How far each rollout may go.
        sampling: How the model samples.
        tokenizer: As in `TokenHistory`.
        on_break: As in `TokenHistory`.
        retries: Most repeats of an attempt that failed because of the infrastructure, and of a call of a model that
            is unavailable. A repeat has the same seed, and repeats the answers that the model has given; if the
            environment then gives other results, the rollout begins from scratch. A rollout that has no repeats left
            is replaced by another one of its task and seed, at most `retries` times for each place of a group; after
            that it is in `failed` of the group.
        folder: Where the run is recorded. If the folder has an interrupted run, that goes on, with the same `tasks`;
            groups that the consumer has taken do not come again. None: nothing is recorded.
        keep: Called with a group after each of its rollouts. False drops the group and cancels its other rollouts.
        fork: Called with a rollout after each turn after which it goes on. Returns how many forks join its group, for
            best-of-N and trees: they begin with the same turns and go on by themselves. The server copies the session
            for each, and keeps up to `sessions` copies until they are played. Where it cannot, a session of the fork
            repeats the steps; if the results then differ, the fork fails. `progress.forks` counts both.
        ahead: Most finished groups that wait for the consumer; no other group begins then. None for as many as
            `sessions` can play at the same time.
        policy_version: Returns the version of the policy; called before each call of the model.
        max_staleness: Most versions that the policy may be ahead of a turn when the consumer takes its group.
        on_stale: What happens to a rollout that is too old: another one of its task is played, or it is dropped.
        chat: The chat view; None takes that of the environment.
        connections: Connections that the sessions share; None: one for each 512, and one for each server.
        metadata: Facts of the caller, for each rollout.
        client_options: Arguments of `GenericEnvClient`, such as `api_key` and `message_timeout_s`.

    Returns:
        The run. Its loop raises what is a mistake of the caller, and what no rollout can survive: `ConnectionFailed`,
        `Unauthorized`, `UsageError` for an environment without a chat view, `ModelFailed` if the endpoint refuses the
        first requests, `JournalFailed`, `JournalInUse`, `JournalMismatch`.

    Raises:
        InvalidArgument: A number is out of its range.
    """
    options = RolloutOptions(
        group_size=group_size,
        sessions=sessions,
        requests=requests,
        budget=budget,
        sampling=sampling,
        tokenizer=tokenizer,
        on_break=on_break,
        retries=retries,
        folder=folder,
        keep=keep,
        fork=fork,
        ahead=ahead,
        policy_version=policy_version,
        max_staleness=max_staleness,
        on_stale=on_stale,
        chat=chat,
        connections=connections,
        metadata=metadata or {},
    )
    is_url = isinstance(env, str) or (isinstance(env, Sequence) and all(isinstance(url, str) for url in env))
    place = "base_url" if is_url else "env" if isinstance(env, type | partial) else "app"
    return RolloutRun(model, tasks, options, {place: env, **client_options})


class RolloutRun:
    """A run of `rollouts`, which makes it: an asynchronous iterable of groups, and an asynchronous context manager.

    Inside `async with`, the run lives on after a loop is left, and stragglers go to the next batch.

    Args:
        model: The model.
        tasks: The tasks.
        options: The options.
        client_options: Arguments of `GenericEnvClient`.

    Attributes:
        progress: What it has done.
        journal: Its record; None without a folder, and before it began.
    """

    def __init__(self, model: Model, tasks: TaskSource, options: RolloutOptions, client_options: dict[str, Any]):
        self.progress = RolloutProgress()
        self.journal: RolloutJournal | None = None
        self._model = model
        self._options = options
        self._source = tasks
        self._pool = SessionPool(
            options.sessions, options.connections, options.sessions * (options.fork is not None), **client_options
        )
        self._live: dict[str, LiveGroup] = {}
        self._pending: deque[PendingRollout] = deque()
        self._finished: deque[LiveGroup] = deque()
        self._taken: list[LiveGroup] = []
        self._exhausted = self._asking = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()  # for `_dispatch`
        self._news = asyncio.Event()  # for the consumer
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = self._entered = self._closed = False
        self._useless = 0  # failures of a model that has never answered
        self._player: Player
        self._feed: TaskFeed
        self._numbers: Iterator[int]

    async def __aenter__(self) -> Self:
        self._entered = True
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[RolloutGroup]:
        try:
            while batch := await self.batch(1):
                yield batch[0]
        finally:
            if not self._entered:
                await self.aclose()

    async def batch(self, size: int) -> list[RolloutGroup]:
        """Takes the first groups that finish; the others go on, and are in a later batch.

        By the next call, or after the last group, the groups of this one count as used: they do not come again when
        the run is resumed. A call that is cancelled takes none.

        Args:
            size: Number of groups.

        Returns:
            The groups; fewer at the end of the tasks, and none after it.

        Raises:
            OpenEnvError: As for `rollouts`.
        """
        await self._begin()
        taken, self._taken = self._taken, []
        for live in taken:
            self._end(live)
        batch: list[LiveGroup] = []
        try:
            while len(batch) < size:
                if self._error is not None:
                    raise self._error
                if self._finished:
                    live = self._finished.popleft()
                    self._changed.set()
                    if self._is_current(live):
                        batch.append(live)
                    continue
                if self._closed or (self._exhausted and not self._live):
                    break
                self._news.clear()
                await self._news.wait()
        except BaseException:
            self._finished.extendleft(reversed(batch))
            raise
        self._taken = batch
        return [live.group for live in batch]

    async def cancel(self, group: str) -> None:
        """Cancels the rollouts of a group, which is dropped. A group that finished, or is unknown, is left alone.

        Args:
            group: Id of the group.
        """
        live = self._live.get(group)
        if live is not None:
            self._drop(live)
            await asyncio.gather(*live.playing.values(), return_exceptions=True)

    async def aclose(self) -> None:
        """Cancels all rollouts and ends all sessions. With a folder, they go on when the run is resumed."""
        if self._closed:
            return
        self._closed = True
        self._news.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._begun:
            await self._pool.__aexit__(None, None, None)
        if self.journal is not None:
            self.journal.close()

    # The beginning.

    async def _begin(self) -> None:
        if self._begun or self._closed:
            return
        self._begun = True
        try:
            await self._pool.__aenter__()
            options, run_id = self._options, secrets.token_hex(6)
            view = await ChatView.from_server(self._pool.client, options.chat)
            if options.folder is not None:
                self.journal = RolloutJournal(options.folder, run_id, view.environment, self._model.name)
                run_id = self.journal.run_id
            requests = asyncio.Semaphore(options.requests)
            self._player = Player(
                self._pool, self._model, view, options, self.journal, run_id, requests, self.progress, self._fork
            )
            recorded = {} if self.journal is None else self.journal.groups
            self._feed = TaskFeed(self._source, recorded.values())
            self._numbers = itertools.count(len(recorded))
        except BaseException:
            self._begun = False
            await self._pool.__aexit__(None, None, None)
            raise
        self._start(self._dispatch())

    # Feeding.

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._error is None:
            self._error = error
        self._news.set()

    async def _dispatch(self) -> None:
        """Gives each free slot a rollout."""
        while True:
            slot = await self._pool.take()
            while not self._pending:
                full = len(self._finished) >= self._options.most_waiting
                if not (self._exhausted or self._asking or full):
                    self._asking = True
                    self._start(self._begin_next())
                self._changed.clear()
                await self._changed.wait()
            member = self._pending.popleft()
            if member.fork is not None:
                self._pool.exchange(slot, member.fork.slot)
                slot = member.fork.slot
            if member.live.over:
                self._pool.give_back(slot)
            else:
                task = member.live.playing[member.number] = self._start(self._play(member, slot))
                task.add_done_callback(partial(self._release, member, slot))

    def _release(self, member: PendingRollout, slot: int, task: asyncio.Task[None]) -> None:
        """Gives back the slot of a rollout that was cancelled before `_play` began."""
        if member.live.playing.get(member.number) is task:
            del member.live.playing[member.number]
            self._pool.give_back(slot)

    async def _begin_next(self) -> None:
        """Begins the group of the next task. Rollouts are played while the task is awaited."""
        found = await self._feed.next()
        self._asking = False
        self._changed.set()
        if found is None:
            self._exhausted = True
            self._news.set()
            return
        task, source, recorded = found
        if recorded is None:  # else it goes on with the group of an interrupted run
            size = self._options.group_size
            recorded = RecordedGroup(GroupBegun(f"{next(self._numbers):06d}", task, [*range(size)], numbered=size))
            if self.journal is not None:
                self.journal.group(recorded.begun)
        begun = recorded.begun
        group, members = begun.group, begun.members
        live = LiveGroup(RolloutGroup(group, task, []), members, begun.numbered, begun.forks, source)
        self._live[group] = live
        for number in members:
            if live.over:  # `keep` has dropped it
                break
            rollout_id = f"{group}-{number}"
            finished = recorded.finished.get(rollout_id)
            if finished is not None:
                self._add(live, finished)
            else:
                turns, restarts = recorded.turns.get(rollout_id, []), recorded.restarts.get(rollout_id, 0)
                self._pending.append(PendingRollout(live, number, turns, restarts))

    # Playing.

    async def _play(self, member: PendingRollout, slot: int) -> None:
        live = member.live
        group, rollout_id = live.group, f"{live.group.group}-{member.number}"
        forked_from, forked_at = live.forks.get(rollout_id, (None, 0))
        rollout = Rollout(
            rollout_id=rollout_id,
            task=group.task,
            group=group.group,
            member=member.number,
            outcome=RolloutOutcome.INFRASTRUCTURE,
            turns=member.turns,
            environment=self._player.view.environment,
            contract=self._player.view.contract,
            model=self._model.name,
            tools=self._player.view.tools,
            forked_from=forked_from,
            forked_at=forked_at,
            metadata=dict(self._options.metadata),
        )
        pause = 0.0
        try:
            finished = await self._attempt(rollout, member, slot)
        except CapacityError as full:
            # The server has fewer sessions than this run has slots: the others go on, and this slot rests.
            if not self._pool.has_sessions:
                raise
            pause = max(full.retry_after_s or 0.0, _REST_S)
            finished, member.turns = False, rollout.turns
            self._pending.appendleft(member)
            self._changed.set()
        finally:
            live.playing.pop(member.number, None)
            asyncio.get_running_loop().call_later(pause, self._pool.give_back, slot)
        if finished and not live.over:
            if self.journal is not None:
                self.journal.finish(rollout)
            self.progress.add(rollout)
            self._add(live, rollout)

    async def _attempt(self, rollout: Rollout, member: PendingRollout, slot: int) -> bool:
        """Plays a rollout, again after faults of the infrastructure. False: it is too old, and dropped."""
        backoff, waited_s = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), 0.0
        while True:
            error: OpenEnvError
            fork, member.fork = member.fork, None
            try:
                rollout.outcome = await self._player.play(rollout, slot, member.restarts, fork)
                break
            except (Diverged, Stale) as void:
                if not self._restart(rollout, member, isinstance(void, Stale)):
                    return False
                continue
            except CapacityError as full:
                if self._pool.has_sessions or waited_s > _PATIENCE_S:
                    raise
                error = full
            except OpenEnvError as failure:
                if not self._retry(rollout, member, failure):
                    break
                error = failure
            pause = max(jittered_pause(backoff.grow()), error.retry_after_s or 0.0)
            waited_s += pause
            await asyncio.sleep(pause)
        _sum_up(rollout)
        return True

    async def _fork(self, rollout: Rollout, count: int, start: ForkedSession) -> None:
        """Adds forks of a rollout to its group. Without a copied session, a fork repeats the turns."""
        if not count:
            return
        live, turns = self._live[rollout.group], list(rollout.turns)
        members: list[PendingRollout] = []
        for _ in range(count):
            number = live.new_member()
            rollout_id = f"{rollout.group}-{number}"
            live.forks[rollout_id] = (rollout.rollout_id, len(turns))
            if self.journal is not None:
                self.journal.group(live.begun)
                self.journal.turns(rollout_id, turns)
            members.append(PendingRollout(live, number, turns))
        try:
            slots, errors = await self._pool.fork(start.slot, count)
            waiting = count - len(slots) - len(errors)
            self.progress.forks.update(["copied"] * len(slots) + [CapacityError.__name__] * waiting)
            self.progress.forks.update(type(error).__name__ for error in errors)
            for member, slot in zip(members, slots, strict=False):
                member.fork = ForkedSession(slot, start.episode_id, start.messages[:], start.history.copy())
        finally:
            self._pending.extendleft(members)
            self._changed.set()

    def _restart(self, rollout: Rollout, member: PendingRollout, stale: bool) -> bool:
        """Begins a rollout from scratch: its answers so far are void. False: it is dropped instead."""
        self.progress.stale += stale
        if stale and self._options.on_stale == "drop":
            self._remove(member.live, [member.number])
            return False
        if self.journal is not None:
            self.journal.restart(rollout.rollout_id)
        member.live.forks.pop(rollout.rollout_id, None)
        member.restarts += 1
        rollout.attempts += 1
        rollout.turns, rollout.forked_from, rollout.forked_at = [], None, 0
        return True

    def _retry(self, rollout: Rollout, member: PendingRollout, error: OpenEnvError) -> bool:
        """Whether a rollout is played again after an error. If not, it has failed."""
        if not _may_succeed(error) or member.failures == self._options.retries:
            outcome = None if isinstance(error, JournalFailed) else outcome_of(error)
            # A mistake of the caller, or what ends each rollout.
            if outcome is None or (isinstance(error, ModelFailed) and self._is_useless(error)):
                raise error
            rollout.outcome = outcome
            if not outcome.has_return:
                rollout.failure = RolloutFailure(type(error).__name__, str(error), error.blame)
            return False
        member.failures += 1
        self.progress.retries += 1
        rollout.attempts += 1
        return True

    def _is_useless(self, error: ModelFailed) -> bool:
        """Whether an endpoint that has never answered will not answer either: its URL, key or model is wrong."""
        if self.progress.answers:
            return False
        self._useless += 1
        final = isinstance(error, ContextOverflow | ModelUnavailable) or error.status in _REFUSALS
        return final or self._useless == _MOST_USELESS

    # Groups.

    def _add(self, live: LiveGroup, rollout: Rollout) -> None:
        """Adds a finished rollout to its group, which may be complete then."""
        group = live.group
        if rollout.outcome.has_return:
            group.rollouts.append(rollout)
            if self._options.keep is not None and not self._options.keep(group):
                self._drop(live)
                return
        elif (
            rollout.outcome is RolloutOutcome.INFRASTRUCTURE
            and live.replaced < self._options.retries * self._options.group_size
        ):
            self._remove(live, [rollout.member], replace=True)
            return
        else:
            group.failed.append(rollout)
        self._complete(live)

    def _complete(self, live: LiveGroup) -> None:
        """Passes a group on if all its rollouts are there."""
        group = live.group
        done = {rollout.member for rollout in (*group.rollouts, *group.failed)}
        if live.over or not done.issuperset(live.members):
            return
        if not live.members:
            self._drop(live)
            return
        group.rollouts.sort(key=lambda rollout: rollout.member)
        live.over = True
        del self._live[group.group]
        self._finished.append(live)
        self.progress.groups += 1
        self._news.set()

    def _drop(self, live: LiveGroup) -> None:
        """Ends a group that the consumer does not get."""
        live.over = True
        self._live.pop(live.group.group, None)
        for task in live.playing.values():
            if task is not asyncio.current_task():
                task.cancel()
        self.progress.dropped += 1
        self._end(live)
        self._news.set()

    def _end(self, live: LiveGroup) -> None:
        """Records the end of a group."""
        if live.source is not None:
            sampler, group = self._source, live.group
            index = group.task.index
            if isinstance(sampler, TaskSampler) and sampler.by_signal and index is not None:
                tokens = sum(each.usage.prompt_tokens + each.usage.completion_tokens for each in group.rollouts)
                rewards = [reward for reward in group.rewards if reward is not None]
                sampler.update({index: rewards}, {index: max(1, tokens)})
            live.source.finish()
        if self.journal is not None:
            self.journal.end(live.group.group)

    def _is_current(self, live: LiveGroup) -> bool:
        """Whether a finished group may go to the consumer. Rollouts that are too old are dropped or played anew."""
        version = self._options.version()
        stale = [rollout for rollout in live.group.rollouts if self._options.is_stale(rollout, version)]
        if not stale:
            return True
        self.progress.stale += len(stale)
        self.progress.groups -= 1
        live.over = False
        self._live[live.group.group] = live
        live.group.rollouts = [rollout for rollout in live.group.rollouts if rollout not in stale]
        self._remove(live, [rollout.member for rollout in stale], replace=self._options.on_stale == "restart")
        return False

    def _remove(self, live: LiveGroup, numbers: list[int], replace: bool = False) -> None:
        """Takes rollouts out of a group; others take their places if `replace`."""
        live.members = [number for number in live.members if number not in numbers]
        fresh = [live.new_member() for _ in range(len(numbers) * replace)]
        if self.journal is not None:
            self.journal.group(live.begun)
        self._pending.extendleft(PendingRollout(live, number) for number in fresh)
        self._changed.set()
        self._complete(live)


def _sum_up(rollout: Rollout) -> None:
    """Sums up the steps of a finished rollout. Only an outcome with a return gets one."""
    steps = [step for turn in rollout.turns for step in turn.steps]
    if rollout.outcome.has_return:
        given = [step.reward for step in steps if step.reward is not None]
        rollout.reward = math.fsum(given) if given else None
        for step in steps:
            for name, score in step.rubric.items():
                rollout.rubric[name] = rollout.rubric.get(name, 0.0) + score
    elif rollout.failure is None:
        blame = "infrastructure" if rollout.outcome is RolloutOutcome.OUT_OF_TIME else "client"
        rollout.failure = RolloutFailure(rollout.outcome.value, _WHY[rollout.outcome], blame)


_WHY = {
    RolloutOutcome.OUT_OF_TIME: "it did not end within budget.seconds",
    RolloutOutcome.REFUSED: "the model refused to answer, or its endpoint filtered the answer",
}


def _may_succeed(error: OpenEnvError) -> bool:
    """Whether another attempt may succeed: the infrastructure failed, not the environment's code or the model."""
    if isinstance(error, EnvironmentCrashed):
        return error.signal is not None  # killed from outside
    return error.blame == "infrastructure" and not isinstance(error, ModelFailed | JournalFailed)
