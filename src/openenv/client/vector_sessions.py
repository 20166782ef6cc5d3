"""The sessions of a vector: one slot for each environment, batches of calls, and the sessions that carry them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ..errors import (
    EnvironmentCrashed,
    InvalidAction,
    MessageTooLarge,
    OpenEnvError,
    ProtocolViolation,
    ResetRequired,
    SessionLost,
    UsageError,
)
from ..protocol.buffers import ArrayRows, ReadBuffers
from ..protocol.client import Request, error_of
from .connection import (
    LATE_S,
    Callbacks,
    CallKind,
    ClientConnectionV2,
    Dial,
    Payload,
    call_timeout,
    deadline_of,
    session_lost,
)
from .session import ClientSessionState, SessionGroup, new_secret

if TYPE_CHECKING:
    from .recorded import VectorRecord

AutoresetMode = Literal["disabled", "next_step", "same_step"]

# The protocol's limit.
MOST_WAIT_S = 86_400.0
_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
# Errors that end the episode but not the session.
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


@dataclass(slots=True, eq=False, repr=False)
class EnvSlot(ClientSessionState):
    """The record of one environment.

    Attributes:
        index: Its number in the vector.
        group: The group of its session; None without a session, or with a v1 connection.
        step: Its step in wire form, refilled for each step.
        call: The session's call without a reply, in wire form; None if there is none.
        batch: The batch of that call, which may have been cancelled.
        held: The batch of the next call, which waits for that reply or for a connection; None if there is none.
        kind: Its last call: `reset` or `step`.
        contents: The arguments of that reset, or the action of that step.
        row: The place of its result in that call.
        playing: An episode runs, and no error is to be reported before its next step.
        last: Reply to the step that ended an episode, while the reset after it has no reply.
        pending: The batch that awaits its outcome; None if there is none.
        news: An error between two calls; the result of the next step.
    """

    index: int = 0
    group: VectorSessions | None = None
    step: Payload = field(default_factory=dict)
    call: Payload | None = None
    batch: PendingBatch | None = None
    held: PendingBatch | None = None
    kind: CallKind = "reset"
    contents: Any = None
    row: int = 0
    playing: bool = False
    last: Payload | None = None
    pending: PendingBatch | None = None
    news: OpenEnvError | None = None

    def assign_session(self, group: VectorSessions, session: str, token: str) -> None:
        """Takes a new session."""
        self.group, self.session, self.token = group, session, token
        self.opened, self.seq = False, 0
        self.step = {"op": "step", "session": session, "seq": 0, "action": None}

    def drop_session(self) -> None:
        """Takes the end of its session, and of the episode with it."""
        self.group = self.session = self.call = self.batch = self.held = None
        self.playing = False

    def begin_reset(self, arguments: dict[str, Any]) -> None:
        """Makes a reset its next call: forgets the last episode and its errors."""
        self.playing = False
        self.news = self.last = None
        self.kind, self.contents = "reset", arguments

    def take(self, reply: Payload | OpenEnvError, repeat: bool) -> EnvOutcome | None:
        """Takes the reply to its call.

        Args:
            reply: The reply, or the error.
            repeat: A reset follows, for the step has ended an episode.

        Returns:
            The outcome; None when a reset has to follow first.
        """
        last, self.last = self.last, None
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
        if repeat:
            self.last = reply
            return None
        return reply


@dataclass(slots=True, eq=False, repr=False)
class PendingBatch:
    """Calls with one deadline.

    Attributes:
        kind: The caller's method, for messages.
        outcomes: Takes the results, by number of the environment, in the order in which they come.
        first_finished: Each result is taken as soon as it comes, not all together.
        left: Calls without an outcome.
        over: Done when there are none.
        timer: Goes off at the deadline.
        due: Its deadline by the loop's clock; None for none.
        send_by: When the server must send the replies that are ready; None: when all are.
        withdrawals: Ask the server to stop the work.
        withdrawn: Its caller was cancelled.
        rows: Takes the arrays of observations; None: each is an array by itself.
    """

    kind: str
    outcomes: dict[int, EnvOutcome]
    first_finished: bool
    left: int = 0
    over: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    timer: asyncio.TimerHandle | None = None
    due: float | None = None
    send_by: float | None = None
    withdrawals: list[Callable[[], None]] = field(default_factory=list)
    withdrawn: bool = False
    rows: ArrayRows | None = None

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
        wait_s: Extra seconds for those that wait for a free slot.
        record: Records the calls and their replies; None: they are not recorded.
        buffers: Memory of the arrays of which those of the observations are rows; None: each is an array by itself.

    Attributes:
        slots: The environments, in order.
        carrier: The connections to the server; None while there are none.
        ready: Outcomes that were not taken yet, by number of the environment, first finished first.
    """

    def __init__(
        self,
        num_envs: int,
        mode: AutoresetMode,
        timeout_s: float | None,
        wait_s: float | None,
        record: VectorRecord | None,
        buffers: ReadBuffers | None = None,
    ):
        self.slots = [EnvSlot(index=index) for index in range(num_envs)]
        self.carrier: BatchCarrier | None = None
        self.ready: dict[int, EnvOutcome] = {}
        self.buffers = buffers
        self._forms: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self._mode: AutoresetMode = mode
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._record = record
        self._finals: list[EnvSlot] = []
        self._underway = 0
        self._receiver: tuple[int, asyncio.Future[None]] | None = None

    def reset(
        self, slots: Sequence[EnvSlot], arguments: Sequence[dict[str, Any]], *, first_finished: bool
    ) -> PendingBatch:
        """Starts episodes.

        Args:
            slots: The environments.
            arguments: The arguments of each reset.
            first_finished: The outcomes go to `ready`, each as soon as it is there.

        Raises:
            UsageError: An environment has a call in flight, or a result that was not taken.
        """
        self._refuse_busy(slots)
        for slot, given in zip(slots, arguments, strict=True):
            slot.begin_reset(given)
        return self._launch(slots, self._new_batch("reset", slots, first_finished))

    def step(self, slots: Sequence[EnvSlot], actions: Sequence[Any], *, first_finished: bool) -> PendingBatch:
        """Takes a step, or begins an episode where none runs. Raises as `reset` does.

        Args:
            slots: The environments.
            actions: The action of each, in wire form.
            first_finished: As for `reset`.
        """
        self._refuse_busy(slots)
        busy: list[EnvSlot] = []
        batch = self._new_batch("step", slots, first_finished)
        for slot, action in zip(slots, actions, strict=True):
            if slot.playing:
                slot.kind, slot.contents = "step", action
                busy.append(slot)
                continue
            if slot.news is not None:
                batch.outcomes[slot.index] = slot.news
            elif self._mode == "disabled":
                batch.outcomes[slot.index] = ResetRequired(
                    f"environment {slot.index} has no running episode: call reset(env_ids=[{slot.index}]) first"
                )
            else:
                busy.append(slot)
            slot.begin_reset({})
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

    async def fork(self, source: EnvSlot, targets: Sequence[EnvSlot]) -> list[OpenEnvError | None]:
        """Gives environments copies of the session of another one. See `VectorEnvClient.fork`."""
        self._refuse_busy([source, *targets])
        if source.group is None or not source.playing or self._record is not None:
            raise UsageError(
                f"environment {source.index} cannot be copied: it needs an episode that runs, a server with protocol "
                "v2, and a client without record="
            )
        forks = (source.group.fork(source, target, self._timeout_s) for target in targets)
        return list(await asyncio.gather(*forks))

    async def received(self, least: int, timeout_s: float | None) -> list[tuple[int, EnvOutcome]]:
        """Takes the outcomes that are ready, as soon as there are `least` of them or the time is over.

        Raises:
            UsageError: Fewer are in flight, or another caller already waits.
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
        """Drops every session. If that ends an episode, the environment gets `SessionLost`."""
        self.carrier = None
        for slot in self.slots:
            concerned = slot.playing or slot.pending is not None
            slot.drop_session()
            if concerned:
                self.lose(slot, session_lost(error))
        self.flush()

    # Called by the carrier.

    def resets_after(self, slot: EnvSlot, reply: Payload | OpenEnvError) -> bool:
        """Whether a reset follows the reply to the call of a slot, in the same batch."""
        ends = isinstance(reply, dict) and bool(reply.get("done"))
        return ends and self._mode == "same_step" and slot.kind == "step"

    def settle(self, slot: EnvSlot, batch: PendingBatch, reply: dict[str, Any] | OpenEnvError) -> None:
        """Takes the reply to the call of a slot; drops it if it is not awaited any more."""
        if slot.pending is not batch:  # too late: it has no result, but it may have ended the episode
            if isinstance(reply, dict) and reply.get("done") and reply.get("session") == slot.session:
                slot.playing = False
            return
        if self._record is not None:
            self._record.settled(slot, reply)
        outcome = slot.take(reply, self.resets_after(slot, reply))
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
        """Takes the loss of a slot's session."""
        if slot.pending is not None:
            self.settle(slot, slot.pending, error)
        else:
            slot.news = error

    def flush(self) -> None:
        """Goes on after some replies: sends the resets that follow, and wakes the caller of `received`."""
        if self._finals:
            finals, self._finals = self._finals, []
            for slot in finals:
                slot.kind, slot.contents = "reset", {}
            for batch in {slot.pending for slot in finals if slot.pending is not None}:
                self._carry([slot for slot in finals if slot.pending is batch], batch)
        if self._receiver is not None:
            least, enough = self._receiver
            if len(self.ready) >= least and not enough.done() and not enough.get_loop().is_closed():
                enough.set_result(None)

    def _new_batch(self, kind: CallKind, slots: Sequence[EnvSlot], first_finished: bool) -> PendingBatch:
        batch = PendingBatch(kind, self.ready if first_finished else {}, first_finished)
        # The results of a part that are taken one by one would each keep the memory of all of that part.
        if self.buffers is not None and (not first_finished or len(slots) == len(self.slots)):
            batch.rows = ArrayRows(len(slots), self.buffers, self._forms)
            for row, slot in enumerate(slots):
                slot.row = row
        return batch

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
            batch.send_by = batch.due - min(0.5, 0.1 * self._timeout_s)  # replies in time then arrive in time
            batch.timer = loop.call_at(batch.due + LATE_S, self._expire, batch, slots)
        self._carry(slots, batch)
        return batch

    def _carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        assert self.carrier is not None, "connect first"
        if self._record is not None:
            self._record.asked(slots)
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


class PendingOpen(NamedTuple):
    """The call of a batch that opens the session of a slot."""

    slot: EnvSlot
    session: str


BatchEntry = EnvSlot | PendingOpen | None
"""The slot of a call of a batch; None once it has its reply."""


class VectorSessions(SessionGroup[EnvSlot]):
    """The sessions of some environments of a vector, on one connection. Their calls are sent in batches.

    Args:
        link: The connection, greeted by the server.
        dial: Opens another connection.
        patience_s: Seconds for connecting.
        wait_s: Seconds that the server may let a session wait for a free slot; None leaves that to the server.
        owner: Takes the replies.
    """

    def __init__(
        self, link: ClientConnectionV2, dial: Dial, patience_s: float, wait_s: float | None, owner: VectorState
    ):
        self._owner = owner
        self._held: list[EnvSlot] = []  # slots that may continue with their next call
        self._waiting: deque[tuple[EnvSlot, PendingBatch]] = deque()  # slots that wait for a session
        super().__init__(link, dial, patience_s, wait_s)

    @property
    def usable(self) -> bool:
        """Whether sessions can be opened here."""
        return self.link.error is None and not self.link.draining

    def carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        """Sends the calls of slots. Those that have no session here get one first; one elsewhere is closed."""
        calls: list[Payload] = []
        entries: list[BatchEntry] = []
        away = self.link.error is not None
        for slot in slots:
            if slot.group is not self:
                if slot.group is not None:
                    slot.group.dismiss(slot)
                if self._room <= 0:
                    self._waiting.append((slot, batch))
                    continue
                session = new_secret()
                slot.assign_session(self, session, new_secret())
                self._sessions[session] = slot
                self._add_opening(slot, calls, entries)
            elif away or slot.call is not None:
                slot.held = batch
                continue
            seq = slot.seq = slot.seq + 1
            if slot.kind == "step":
                call = slot.step
                call["seq"] = seq
                call["action"] = slot.contents
            else:
                call = {"op": "reset", "session": slot.session, "seq": seq, "kwargs": slot.contents}
            slot.call = call
            slot.batch = batch
            calls.append(call)
            entries.append(slot)
        self._send(calls, entries, batch)
        if self.error is not None:  # the link has ended for good before some slots had sessions here
            self._end_calls(slots, self.error)

    def dismiss(self, slot: EnvSlot) -> None:
        """Ends the session of a slot, which gets one on another connection."""
        self.link.post("close", {"session": slot.session})
        self._leave(slot)

    async def fork(self, source: EnvSlot, target: EnvSlot, timeout_s: float | None) -> OpenEnvError | None:
        """Gives a slot a copy of another one's session. The session that it had is closed first.

        Returns:
            None; or why the slot has no session now: the server cannot copy it, is full, or did not answer.
        """
        link, session, token = self.link, new_secret(), new_secret()
        try:
            async with asyncio.timeout(timeout_s):
                if target.group is not None:
                    closing = target.group.link.request("close", {"session": target.session})
                    target.group._leave(target)
                    await closing
                await link.request("fork", {"session": source.session, "new": session, "token": token, "wait_s": 0.0})
            if link.error is not None:
                raise link.error
        except BaseException as error:
            link.post("close", {"session": session})
            if isinstance(error, OpenEnvError):
                return error
            if not isinstance(error, TimeoutError):
                raise
            late = f"environment {target.index}: no reply to fork within {timeout_s:g} s (message_timeout_s)"
            return call_timeout(late, link)
        target.assign_session(self, session, token)
        target.begin_reset({})
        target.opened = target.playing = True
        self._sessions[session] = target
        return None

    # Batches.

    @property
    def _room(self) -> int:
        """How many more sessions may be opened now: the server opens as many at a time as a batch has calls."""
        return self._max_batch - self._opens_pending

    def _add_opening(self, slot: EnvSlot, calls: list[Payload], entries: list[BatchEntry]) -> None:
        self._opens_pending += 1
        calls.append({"op": "open", **self._opening(slot)})
        entries.append(PendingOpen(slot, str(slot.session)))

    def _send(self, calls: list[Payload], entries: list[BatchEntry], batch: PendingBatch) -> None:
        """Sends calls, in as few frames as possible. When the link has ended, or ends, no call gets a reply."""
        most, count = self._max_batch, len(calls)
        if count > most:
            self._send_parts(calls, entries, batch, most)
            return
        if not calls or self.link.error is not None:
            return
        fields: Payload = {"calls": calls}
        now = self.loop.time()
        if batch.first_finished:
            fields["min_ready"] = 1
        elif batch.send_by is not None:
            fields["wait_s"] = min(MOST_WAIT_S, max(0.0, batch.send_by - now))
        if batch.due is not None:
            fields["deadline_s"] = deadline_of(batch.due, now)
        try:
            answered, refused = partial(self._answered, entries, batch), partial(self._refused, entries, batch)
            request = self.link.ask("batch", fields, Callbacks(answered, refused))
        except (MessageTooLarge, ValueError) as error:
            if count == 1:
                self._refused(entries, batch, error if isinstance(error, OpenEnvError) else InvalidAction(str(error)))
                return
            # The halves are sent separately, until each call that cannot be sent is alone.
            self._send_parts(calls, entries, batch, (count + 1) // 2)
        else:
            batch.withdrawals.append(partial(self._withdraw, self.link, request, entries))
            if batch.withdrawn:
                self._withdraw(self.link, request, entries)

    def _send_parts(self, calls: list[Payload], entries: list[BatchEntry], batch: PendingBatch, most: int) -> None:
        for begin in range(0, len(calls), most):
            self._send(calls[begin : begin + most], entries[begin : begin + most], batch)

    def _withdraw(self, link: ClientConnectionV2, request: Request, entries: list[BatchEntry]) -> None:
        """Has the server stop the work of a batch. Its replies still come, and name the sessions to close."""
        link.post("cancel", {"target": request.id})
        for entry in entries:
            if not isinstance(entry, PendingOpen) or entry.slot.session != entry.session:
                continue
            if self.link.error is not None:
                self._unwanted[entry.session] = entry.slot.token
            elif entry.slot.opened:
                self.link.post("close", {"session": entry.session})
            self._leave(entry.slot)

    # The replies to batches.

    def _answered(self, entries: list[BatchEntry], batch: PendingBatch, payload: Payload, more: bool) -> None:
        """Takes one frame of replies to a batch."""
        settle = self._owner.settle
        has_arrays = batch.rows is not None or self.link.has_borrowed
        try:
            for item in payload["results"]:
                place = item["call"]
                entry = entries[place]
                if entry is None or place < 0:
                    raise IndexError(place)
                entries[place] = None
                reply = self._take_arrays(entry, batch, item) if has_arrays else item
                if type(entry) is not EnvSlot:
                    self._take_opening(entry, batch, item)
                    continue
                if item["session"] == entry.session:  # else the slot has another one by now
                    entry.call = entry.batch = None
                    if entry.held is not None:
                        self._held.append(entry)
                if "error" in item:
                    self._fail(entry, batch, item)
                else:
                    settle(entry, batch, reply)
        except _MALFORMED:
            self.link.end(ProtocolViolation(f"the server sent a reply that is not one of a batch: {payload!r:.200}"))
        if not more and entries.count(None) < len(entries) and self.link.error is None:
            self._miss(entries, batch)
        self._flush()

    def _take_arrays(self, entry: BatchEntry, batch: PendingBatch, reply: Payload) -> Payload | ProtocolViolation:
        """Copies the arrays of a reply out of the memory of its frame. Returns the reply, or the error in it."""
        observation = reply.get("observation")
        if (
            batch.rows is not None
            and type(entry) is EnvSlot
            and entry.pending is batch
            and type(observation) is dict
            and not self._owner.resets_after(entry, reply)  # else the row is that of the next episode
        ):
            try:
                batch.rows.take(entry.row, observation)
            except ProtocolViolation as error:
                return error
        self.link.own(reply)
        return reply

    def _refused(self, entries: list[BatchEntry], batch: PendingBatch, error: OpenEnvError) -> None:
        """Takes the error of a whole batch."""
        if self.link.error is not None:
            return  # not an answer: `_on_end` decides about its calls
        for entry in entries:
            if isinstance(entry, PendingOpen):
                self._opens_pending -= 1
                self._leave(entry.slot)
            elif entry is not None:
                entry.seq -= 1
                entry.call = entry.batch = None
                self._owner.settle(entry, batch, error)
        self._flush()

    def _take_opening(self, opening: PendingOpen, batch: PendingBatch, item: Payload) -> None:
        self._opens_pending -= 1
        if "error" in item:  # also fails the next call, which is answered too late
            self._fail(opening.slot, batch, item, gone=True)
        elif self._sessions.get(opening.session) is opening.slot:
            opening.slot.opened = True
        else:  # no longer wanted
            self.link.post("close", {"session": opening.session})

    def _fail(self, slot: EnvSlot, batch: PendingBatch, item: Payload, gone: bool = False) -> None:
        """Takes the error of a call. `gone`: the session has ended with it."""
        error = error_of(item["error"])
        if not gone and self._is_end(slot, error):
            error, gone = session_lost(error), True
        held = slot.held
        if gone and item["session"] == slot.session:
            self._leave(slot)
            if held is not None:
                self._owner.settle(slot, held, error)
        self._owner.settle(slot, batch, error)

    def _miss(self, entries: list[BatchEntry], batch: PendingBatch) -> None:
        """Ends the link, since the last reply to a batch left calls out."""
        count = len(entries) - entries.count(None)
        violation = ProtocolViolation(
            f"the server left out the replies to {count} of the {len(entries)} calls of a batch, so it is "
            "unknown whether they were executed: call reset() to begin anew"
        )
        for entry in entries:
            if isinstance(entry, EnvSlot):
                self._owner.settle(entry, batch, violation)
        self.link.end(violation)

    def _leave(self, slot: EnvSlot) -> None:
        if slot.session is not None and self._sessions.pop(slot.session, None) is slot:
            slot.drop_session()

    # Calls that had to wait.

    def _flush(self) -> None:
        """Sends calls that had to wait for replies, and lets the owner go on."""
        if self._held:
            held, self._held = self._held, []
            shares: dict[PendingBatch, list[EnvSlot]] = {}
            for slot in held:
                batch = slot.held
                if slot.group is self and batch is not None and slot.call is None and self.link.error is None:
                    slot.held = None
                    if slot.pending is batch:  # else it has given up
                        shares.setdefault(batch, []).append(slot)
            for batch, slots in shares.items():
                self.carry(slots, batch)
        if self._waiting:
            self._admit()
        self._owner.flush()

    def _admit(self) -> None:
        """Goes on with slots that had to wait until the sessions of others were opened."""
        while self._waiting and self._room > 0 and self.link.error is None:
            batch = self._waiting[0][1]
            slots: list[EnvSlot] = []
            while self._waiting and self._waiting[0][1] is batch and len(slots) < self._room:
                slot, _ = self._waiting.popleft()
                if slot.pending is batch:  # else it has given up
                    slots.append(slot)
            self.carry(slots, batch)

    # From one connection to the next.

    def _take_link(self, link: ClientConnectionV2) -> None:
        super()._take_link(link)
        if self._owner.buffers is not None:
            link.borrow_arrays()
        self._max_batch = link.limit("max_batch") or 1
        self._opens_pending = 0

    def _take_last(self, state: EnvSlot, reply: Payload) -> None:
        batch = state.batch
        if batch is None:
            return
        state.call = state.batch = None
        if "error" in reply:
            self._fail(state, batch, reply)
        else:
            self._owner.settle(state, batch, self._take_arrays(state, batch, reply))

    def _repeat(self, states: Sequence[EnvSlot]) -> None:
        again: dict[PendingBatch, list[EnvSlot]] = {}
        for slot in states:
            self._held.append(slot)
            if slot.call is not None and slot.batch is not None:
                again.setdefault(slot.batch, []).append(slot)
        for batch, slots in again.items():
            calls: list[Payload] = []
            entries: list[BatchEntry] = []
            for slot in slots:
                assert slot.call is not None
                if not slot.opened:
                    self._add_opening(slot, calls, entries)
                calls.append(slot.call)
                entries.append(slot)
            self._send(calls, entries, batch)
        self._flush()

    def _on_event(self, name: str, fields: Payload) -> None:
        super()._on_event(name, fields)
        self._owner.flush()

    def _lose(self, state: EnvSlot, error: OpenEnvError) -> None:
        self._leave(state)
        self._owner.lose(state, error)

    def _end_calls(self, states: Sequence[EnvSlot], error: OpenEnvError) -> None:
        lost = error if isinstance(error, SessionLost) else session_lost(error)
        for slot in states:
            if slot.group is self:
                slot.drop_session()
                self._owner.lose(slot, lost)
        waiting, self._waiting = self._waiting, deque()
        for slot, batch in waiting:
            self._owner.settle(slot, batch, lost)
        self._owner.flush()
