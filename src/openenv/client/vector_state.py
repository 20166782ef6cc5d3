"""The state of a vector: one slot for each environment, and the batches of calls that have no result yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ..errors import EnvironmentCrashed, OpenEnvError, ResetRequired, UsageError
from .connection import LATE_S, CallKind, call_timeout, session_lost

if TYPE_CHECKING:
    from .resumable_connection import ResumableConnection


AutoresetMode = Literal["disabled", "next_step", "same_step"]
Payload = dict[str, Any]
# Errors with which a session goes on, but not its episode.
_EPISODE_OVER = (ResetRequired, EnvironmentCrashed)


class EpisodeTurnover(NamedTuple):
    """The end of one episode and the beginning of the next, in one step.

    Attributes:
        last: Reply to the step that ended the episode.
        first: Reply to the reset after it.
    """

    last: Payload
    first: Payload


EnvOutcome = Payload | EpisodeTurnover | OpenEnvError


class EnvSlot:
    """The record of one environment.

    Attributes:
        index: Its number in the vector.
        session: Id of its session; None if it has none, or has a v1 connection.
        token: What the session is attached with.
        connection: What carries its session; None if it has none.
        opened: The server has said that the session is there.
        seq: Number of the last call of the session.
        step: Its step as the wire has it, filled in anew for each one.
        call: The call of the session that has no reply yet, as the wire has it; None if there is none.
        batch: What that call was made for; perhaps nobody waits for it any more.
        held: What it was asked for while it had no reply, or no connection; None if nothing.
        kind: What it was last asked to do: `reset` or `step`.
        contents: The arguments of that reset, or the action of that step.
        playing: An episode runs, and nothing has to be told before its next step.
        pending: Calls that it takes part in; None if nothing is awaited.
        news: What happened to it while nobody asked; told with the next step.
    """

    __slots__ = (
        "_last",
        "batch",
        "call",
        "connection",
        "contents",
        "held",
        "index",
        "kind",
        "news",
        "opened",
        "pending",
        "playing",
        "seq",
        "session",
        "step",
        "token",
    )

    def __init__(self, index: int):
        self.index = index
        self.session: str | None = None
        self.token = ""
        self.connection: ResumableConnection | None = None
        self.opened = False
        self.seq = 0
        self.step: Payload = {}
        self.call: Payload | None = None
        self.batch: PendingBatch | None = None
        self.held: PendingBatch | None = None
        self.kind: CallKind = "reset"
        self.contents: Any = None
        self.playing = False
        self.pending: PendingBatch | None = None
        self.news: OpenEnvError | None = None
        self._last: Payload | None = None

    def assign_session(self, connection: ResumableConnection, session: str, token: str) -> None:
        """Takes a new session."""
        self.connection, self.session, self.token = connection, session, token
        self.opened, self.seq = False, 0
        self.step = {"op": "step", "session": session, "seq": 0, "action": None}

    def drop_session(self) -> None:
        """Its session is gone, and the episode with it."""
        self.connection = self.session = self.call = self.batch = self.held = None
        self.playing = False

    def start_over(self) -> None:
        """A reset is asked for: what was not told by now is of no interest."""
        self.playing = False
        self.news = self._last = None

    def reply_when_idle(self, mode: AutoresetMode) -> OpenEnvError | None:
        """What a step gets while no episode runs; None if it is a reset."""
        if self.news is not None:
            return self.news
        if mode == "disabled":
            return ResetRequired(
                f"environment {self.index} has no running episode: call reset(env_ids=[{self.index}]) first"
            )
        return None

    def ask(self, kind: CallKind, contents: Any) -> None:
        """Gives it something to do."""
        self.kind = kind
        self.contents = contents

    def take(self, reply: Payload | OpenEnvError, repeat: bool) -> EnvOutcome | None:
        """Takes the reply to its call.

        Args:
            reply: To the step or reset it was asked for.
            repeat: After the last step of an episode the next one begins at once.

        Returns:
            What to tell; None when a reset has to follow first.
        """
        last, self._last = self._last, None
        if isinstance(reply, OpenEnvError):
            if isinstance(reply, _EPISODE_OVER):
                self.playing = False
            if last is None:
                return reply
            # The last reward must not be lost with the reset after it: that failure is told by the next step.
            self.news = reply
            return last
        self.playing = not reply.get("done")
        if last is not None:
            return EpisodeTurnover(last, reply)
        if repeat and not self.playing and self.kind == "step":
            self._last = reply
            return None
        return reply


class PendingBatch:
    """Calls with one deadline.

    Args:
        kind: What the caller asked for, for messages.
        outcomes: Where the results go, by number of the environment, in the order in which they come.
        first_finished: Somebody waits for the first of them, not for all.

    Attributes:
        left: Calls without an outcome.
        over: Done when there are none.
        timer: Goes off at the deadline.
        due: When its time is over, by the loop's clock; None for never.
        send_by: When the server shall send what is ready; None for as long as it takes.
        withdrawals: Ask the server to stop the work.
        withdrawn: Its caller has left.
    """

    def __init__(self, kind: str, outcomes: dict[int, EnvOutcome], first_finished: bool):
        self.kind = kind
        self.outcomes = outcomes
        self.first_finished = first_finished
        self.left = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.due: float | None = None
        self.send_by: float | None = None
        self.withdrawals: list[Callable[[], None]] = []
        self.withdrawn = False

    def add(self, slot: EnvSlot, outcome: EnvOutcome) -> None:
        """One of them is done."""
        slot.pending = None
        self.outcomes[slot.index] = outcome
        self.left -= 1
        if not self.left:
            self.finish()

    def finish(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        # Who waited on an event loop that is closed cannot be told.
        if not self.over.done() and not self.over.get_loop().is_closed():
            self.over.set_result(None)


class BatchOwner(Protocol):
    """Who makes rounds, and hears of their calls."""

    def settle(self, slot: EnvSlot, batch: PendingBatch, reply: dict[str, Any] | OpenEnvError) -> None:
        """The call of a slot has its reply; one that is no longer awaited is dropped."""

    def lose(self, slot: EnvSlot, error: OpenEnvError) -> None:
        """The session of a slot is gone."""

    def flush(self) -> None:
        """That was all for now."""


class BatchCarrier(Protocol):
    """The way that calls take to the server."""

    def carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        """Sends what slots were asked to do; the replies go to the owner, perhaps before this returns."""

    async def aclose(self) -> None:
        """Ends all sessions and connections, within a bounded time."""


class VectorState:
    """Makes batches of calls and takes their replies.

    Args:
        num_envs: How many environments.
        mode: What follows the end of an episode.
        timeout_s: Seconds for each call; None waits forever.
        wait_s: Seconds more for those that have to wait for a free slot.

    Attributes:
        slots: The environments, in order.
        carrier: The way to the server; None while there is none.
        ready: Outcomes that nobody has taken yet, by number of the environment, first finished first.
    """

    def __init__(self, num_envs: int, mode: AutoresetMode, timeout_s: float | None, wait_s: float | None = None):
        self.slots = [EnvSlot(index) for index in range(num_envs)]
        self.carrier: BatchCarrier | None = None
        self.ready: dict[int, EnvOutcome] = {}
        self._mode: AutoresetMode = mode
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._repeating = mode == "same_step"
        self._finals: list[EnvSlot] = []
        self._underway = 0
        self._receiver: tuple[int, asyncio.Future[None]] | None = None

    def reset(self, slots: Sequence[EnvSlot], arguments: Sequence[dict[str, Any]]) -> PendingBatch:
        """Starts episodes. Raises `UsageError` for an environment with a call on its way."""
        self._refuse_busy(slots)
        for slot, given in zip(slots, arguments, strict=True):
            slot.start_over()
            slot.ask("reset", given)
        return self._launch(slots, PendingBatch("reset", {}, False))

    def step(self, slots: Sequence[EnvSlot], actions: Sequence[Any], *, first_finished: bool) -> PendingBatch:
        """Takes a step, or what stands for it where no episode runs. Raises as `reset` does.

        Args:
            slots: Whose.
            actions: As the wire has them.
            first_finished: The outcomes go to `ready`, each as soon as it is there.
        """
        self._refuse_busy(slots)
        busy: list[EnvSlot] = []
        batch = PendingBatch("step", self.ready if first_finished else {}, first_finished)
        for slot, action in zip(slots, actions, strict=True):
            if slot.playing:
                slot.kind, slot.contents = "step", action
                busy.append(slot)
                continue
            answer = slot.reply_when_idle(self._mode)
            slot.start_over()
            if answer is None:
                slot.ask("reset", {})
                busy.append(slot)
            else:
                batch.outcomes[slot.index] = answer
        return self._launch(busy, batch)

    async def finished(self, batch: PendingBatch) -> None:
        """Waits for the last outcome of a batch; a caller who is cancelled withdraws all that is left of it."""
        try:
            await batch.over
        except asyncio.CancelledError:
            self._withdraw(batch)
            raise

    async def received(self, least: int, timeout_s: float | None) -> list[tuple[int, EnvOutcome]]:
        """Takes what is ready, when that are so many outcomes or the time is over.

        Raises:
            UsageError: There are not so many on their way, or somebody else waits already.
        """
        if self._receiver is not None and self._receiver[1].get_loop() is asyncio.get_running_loop():
            raise UsageError("recv() is being awaited already: one receiver at a time")
        if least > len(self.ready) + self._underway:
            raise UsageError(
                f"min_ready={least}, but {len(self.ready)} results are ready and {self._underway} are on "
                "their way: send() first"
            )
        ready = self.ready
        if len(ready) < least:
            enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            mine = self._receiver = (least, enough)
            try:
                await asyncio.wait([enough], timeout=timeout_s)
            finally:
                if self._receiver is mine:  # else this one is of an event loop that is gone, and just found
                    self._receiver = None
        taken = list(ready.items())
        ready.clear()
        return taken

    def lose_all(self, error: OpenEnvError) -> None:
        """The way to the server is gone, with every session. Those whose episode it ends are told."""
        self.carrier = None
        for slot in self.slots:
            concerned = slot.playing or slot.pending is not None
            slot.drop_session()
            if concerned:
                self.lose(slot, session_lost(error))
        self.flush()

    def forget(self) -> None:
        """Drops outcomes that nobody has taken, but those that somebody waits for."""
        self.ready = {}

    async def rest(self) -> None:
        """Its client was closed."""

    # What the carrier calls.

    def settle(self, slot: EnvSlot, batch: PendingBatch, reply: dict[str, Any] | OpenEnvError) -> None:
        if slot.pending is not batch:  # too late: nobody is told, but an episode that is over is over
            if isinstance(reply, dict) and reply.get("done") and reply.get("session") == slot.session:
                slot.playing = False
            return
        outcome = slot.take(reply, self._repeating)
        if outcome is None:
            self._finals.append(slot)
        else:
            batch.add(slot, outcome)
            self._underway -= batch.first_finished

    def lose(self, slot: EnvSlot, error: OpenEnvError) -> None:
        if slot.pending is not None:
            self.settle(slot, slot.pending, error)
        else:
            slot.news = error

    def flush(self) -> None:
        if self._finals:
            finals, self._finals = self._finals, []
            for slot in finals:
                slot.ask("reset", {})
            for batch in {slot.pending for slot in finals if slot.pending is not None}:
                self._carry([slot for slot in finals if slot.pending is batch], batch)
        if self._receiver is not None:
            least, enough = self._receiver
            if len(self.ready) >= least and not enough.done() and not enough.get_loop().is_closed():
                enough.set_result(None)

    def _launch(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> PendingBatch:
        if not slots:
            batch.finish()
            self.flush()
            return batch
        for slot in slots:
            slot.pending = batch
        batch.left = len(slots)
        if batch.first_finished:
            self._underway += batch.left
        if self._timeout_s is not None:
            loop = asyncio.get_running_loop()
            batch.due = loop.time() + self._timeout_s
            if self._wait_s and any(slot.session is None for slot in slots):
                batch.due += self._wait_s
            batch.send_by = batch.due - min(0.5, 0.1 * self._timeout_s)  # what is in time is heard in time
            batch.timer = loop.call_at(batch.due + LATE_S, self._expire, batch, slots)
        self._carry(slots, batch)
        return batch

    def _carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        assert self.carrier is not None, "connect first"
        self.carrier.carry(slots, batch)

    def _expire(self, batch: PendingBatch, slots: Sequence[EnvSlot]) -> None:
        late = f"no reply to {batch.kind} within {self._timeout_s:g} s (message_timeout_s)"
        for slot in slots:
            if slot.pending is batch:
                link = None if slot.connection is None else slot.connection.link
                self.settle(slot, batch, call_timeout(f"environment {slot.index}: {late}", link))
        self.flush()

    def _withdraw(self, batch: PendingBatch) -> None:
        batch.withdrawn = True
        for withdraw in batch.withdrawals:
            withdraw()
        for slot in self.slots:
            if slot.pending is batch:
                slot.pending = None
        batch.finish()

    def _refuse_busy(self, slots: Sequence[EnvSlot]) -> None:
        busy = [slot.index for slot in slots if slot.pending is not None]
        if self.ready:
            busy += [slot.index for slot in slots if slot.index in self.ready]
        if busy:
            raise UsageError(f"environments {busy[:8]} have calls on their way or results waiting: recv() them first")
