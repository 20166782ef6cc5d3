"""The state of a vector: one slot for each environment, and the batches of calls that have no result yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ..errors import EnvironmentCrashed, OpenEnvError, ResetRequired, UsageError
from .connection import LATE_S, CallKind, Payload, call_timeout, session_lost
from .session import ClientSessionState

if TYPE_CHECKING:
    from .vector_sessions import VectorSessions


AutoresetMode = Literal["disabled", "next_step", "same_step"]

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


class EnvSlot(ClientSessionState):
    """The record of one environment.

    Attributes:
        index: Its number in the vector.
        group: The sessions that its session is one of; None if it has none, or has a v1 connection.
        step: Its step as the wire has it, filled in anew for each one.
        call: The call of the session that has no reply yet, as the wire has it; None if there is none.
        batch: The batch of that call, which may have been cancelled.
        held: The batch of the next call, which waits for that reply or for a connection; None if there is none.
        kind: Its last call: `reset` or `step`.
        contents: The arguments of that reset, or the action of that step.
        playing: An episode runs, and no error is to be reported before its next step.
        pending: The batch that awaits its outcome; None if there is none.
        news: An error between two calls; the result of the next step.
    """

    __slots__ = (
        "_last",
        "batch",
        "call",
        "contents",
        "group",
        "held",
        "index",
        "kind",
        "news",
        "pending",
        "playing",
        "step",
    )

    def __init__(self, index: int):
        super().__init__()
        self.index = index
        self.group: VectorSessions | None = None
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

    def assign_session(self, group: VectorSessions, session: str, token: str) -> None:
        """Takes a new session."""
        self.group, self.session, self.token = group, session, token
        self.opened, self.seq = False, 0
        self.step = {"op": "step", "session": session, "seq": 0, "action": None}

    def drop_session(self) -> None:
        """Takes the end of its session, and of the episode with it."""
        self.group = self.session = self.call = self.batch = self.held = None
        self.playing = False

    def start_over(self) -> None:
        """Begins a reset: forgets the last episode and its errors."""
        self.playing = False
        self.news = self._last = None

    def reply_when_idle(self, mode: AutoresetMode) -> OpenEnvError | None:
        """The error of a step while no episode runs; None if the step becomes a reset."""
        if self.news is not None:
            return self.news
        if mode == "disabled":
            return ResetRequired(
                f"environment {self.index} has no running episode: call reset(env_ids=[{self.index}]) first"
            )
        return None

    def ask(self, kind: CallKind, contents: Any) -> None:
        """Sets its next call."""
        self.kind = kind
        self.contents = contents

    def take(self, reply: Payload | OpenEnvError, repeat: bool) -> EnvOutcome | None:
        """Takes the reply to its call.

        Args:
            reply: The reply, or the error.
            repeat: The next episode begins with the last step of one.

        Returns:
            The outcome; None when a reset has to follow first.
        """
        last, self._last = self._last, None
        if isinstance(reply, OpenEnvError):
            if isinstance(reply, _EPISODE_OVER):
                self.playing = False
            if last is None:
                return reply
            # The last reward must not be lost with the reset after it: the next step reports that failure.
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
        kind: The caller's method, for messages.
        outcomes: Takes the results, by number of the environment, in the order in which they come.
        first_finished: Each result is taken as soon as it comes, not all together.

    Attributes:
        left: Calls without an outcome.
        over: Done when there are none.
        timer: Goes off at the deadline.
        due: Its deadline by the loop's clock; None for none.
        send_by: When the server must send the replies that are ready; None for when all are.
        withdrawals: Ask the server to stop the work.
        withdrawn: Its caller was cancelled.
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

    def finish(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        # After the end of its event loop, the caller does not wait any more.
        if not self.over.done() and not self.over.get_loop().is_closed():
            self.over.set_result(None)


class BatchCarrier(Protocol):
    """The connections to the server."""

    def carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        """Sends the calls of slots; the replies go to `VectorState.settle`, perhaps before this returns."""

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
        carrier: The connections to the server; None while there are none.
        ready: Outcomes that were not taken yet, by number of the environment, first finished first.
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
        """Takes a step, or begins an episode where none runs. Raises as `reset` does.

        Args:
            slots: The environments.
            actions: The action of each, as the wire has it.
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
        """Waits for the last outcome of a batch; if the caller is cancelled, so is the rest of the batch."""
        try:
            await batch.over
        except asyncio.CancelledError:
            batch.withdrawn = True
            for withdraw in batch.withdrawals:
                withdraw()
            for slot in self.slots:
                if slot.pending is batch:
                    slot.pending = None
            batch.finish()
            raise

    async def received(self, least: int, timeout_s: float | None) -> list[tuple[int, EnvOutcome]]:
        """Takes the outcomes that are ready, as soon as there are `least` of them or the time is over.

        Raises:
            UsageError: Fewer are on their way, or another caller waits already.
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
                if self._receiver is mine:  # else the event loop of this call was closed, and another call waits
                    self._receiver = None
        taken = list(ready.items())
        ready.clear()
        return taken

    def lose_all(self, error: OpenEnvError) -> None:
        """Takes the loss of every session. If that ends an episode, the environment gets `SessionLost`."""
        self.carrier = None
        for slot in self.slots:
            concerned = slot.playing or slot.pending is not None
            slot.drop_session()
            if concerned:
                self.lose(slot, session_lost(error))
        self.flush()

    def forget(self) -> None:
        """Drops outcomes that were not taken yet."""
        self.ready = {}

    async def rest(self) -> None:
        """Called when its client was closed."""

    # What the carrier calls.

    def settle(self, slot: EnvSlot, batch: PendingBatch, reply: dict[str, Any] | OpenEnvError) -> None:
        """Takes the reply to the call of a slot; drops it if it is not awaited any more."""
        if slot.pending is not batch:  # too late: it has no result, but it may have ended the episode
            if isinstance(reply, dict) and reply.get("done") and reply.get("session") == slot.session:
                slot.playing = False
            return
        outcome = slot.take(reply, self._repeating)
        if outcome is None:
            self._finals.append(slot)
        else:
            slot.pending = None
            batch.outcomes[slot.index] = outcome
            batch.left -= 1
            if not batch.left:
                batch.finish()
            self._underway -= batch.first_finished

    def lose(self, slot: EnvSlot, error: OpenEnvError) -> None:
        """Takes the loss of the session of a slot."""
        if slot.pending is not None:
            self.settle(slot, slot.pending, error)
        else:
            slot.news = error

    def flush(self) -> None:
        """Goes on after some replies: sends the resets that follow, and wakes the caller of `received`."""
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
                link = None if slot.group is None else slot.group.link
                self.settle(slot, batch, call_timeout(f"environment {slot.index}: {late}", link))
        self.flush()

    def _refuse_busy(self, slots: Sequence[EnvSlot]) -> None:
        busy = [slot.index for slot in slots if slot.pending is not None]
        if self.ready:
            busy += [slot.index for slot in slots if slot.index in self.ready]
        if busy:
            raise UsageError(f"environments {busy[:8]} have calls on their way or results waiting: recv() them first")
