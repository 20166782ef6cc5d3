"""All environments of a vector: who plays, who waits, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..errors import OpenEnvError, UsageError
from .deadline import LATE_S
from .loss import lost, overdue
from .seat import AutoresetMode, Outcome, Seat
from .wave import Carrier, Wave

__all__ = ["Ensemble"]


class Ensemble:
    """Makes waves of calls and takes their replies (`wave.Owner`).

    Args:
        num_envs: How many environments.
        mode: What follows the end of an episode.
        timeout_s: Seconds for each call; None waits forever.
        wait_s: Seconds more for those that have to wait for a free slot.

    Attributes:
        seats: The environments, in order.
        carrier: The way to the server; None while there is none.
        ready: Outcomes that nobody has taken yet, by number of the environment, first finished first.
    """

    def __init__(self, num_envs: int, mode: AutoresetMode, timeout_s: float | None, wait_s: float | None = None):
        self.seats = [Seat(index) for index in range(num_envs)]
        self.carrier: Carrier | None = None
        self.ready: dict[int, Outcome] = {}
        self._mode: AutoresetMode = mode
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._repeating = mode == "same_step"
        self._finals: list[Seat] = []
        self._underway = 0
        self._receiver: tuple[int, asyncio.Future[None]] | None = None

    def reset(self, seats: Sequence[Seat], arguments: Sequence[dict[str, Any]]) -> Wave:
        """Starts episodes. Raises `UsageError` for an environment with a call on its way."""
        self._refuse_busy(seats)
        for seat, given in zip(seats, arguments, strict=True):
            seat.start_over()
            seat.ask("reset", given)
        return self._launch(seats, Wave("reset", {}, False))

    def step(self, seats: Sequence[Seat], actions: Sequence[Any], *, first_finished: bool) -> Wave:
        """Takes a step, or what stands for it where no episode runs. Raises as `reset` does.

        Args:
            seats: Whose.
            actions: As the wire has them.
            first_finished: The outcomes go to `ready`, each as soon as it is there.
        """
        self._refuse_busy(seats)
        busy: list[Seat] = []
        wave = Wave("step", self.ready if first_finished else {}, first_finished)
        for seat, action in zip(seats, actions, strict=True):
            if seat.playing:
                seat.kind, seat.contents = "step", action
                busy.append(seat)
                continue
            answer = seat.idle_answer(self._mode)
            seat.start_over()
            if answer is None:
                seat.ask("reset", {})
                busy.append(seat)
            else:
                wave.outcomes[seat.index] = answer
        return self._launch(busy, wave)

    async def finished(self, wave: Wave) -> None:
        """Waits for the last outcome of a wave; a caller who is cancelled withdraws all that is left of it."""
        try:
            await wave.over
        except asyncio.CancelledError:
            self._withdraw(wave)
            raise

    async def received(self, least: int, timeout_s: float | None) -> list[tuple[int, Outcome]]:
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

    def scatter(self, error: OpenEnvError) -> None:
        """The way to the server is gone, with every session. Those whose episode it ends are told."""
        self.carrier = None
        for seat in self.seats:
            concerned = seat.playing or seat.pending is not None
            seat.vacate()
            if concerned:
                self.lose(seat, lost(error))
        self.flush()

    def forget(self) -> None:
        """Drops outcomes that nobody has taken, but those that somebody waits for."""
        self.ready = {}

    async def rest(self) -> None:
        """Its client was closed."""

    # What the carrier calls.

    def settle(self, seat: Seat, wave: Wave, reply: dict[str, Any] | OpenEnvError) -> None:
        if seat.pending is not wave:  # too late: nobody is told, but an episode that is over is over
            if isinstance(reply, dict) and reply.get("done") and reply.get("session") == seat.session:
                seat.playing = False
            return
        outcome = seat.take(reply, self._repeating)
        if outcome is None:
            self._finals.append(seat)
        else:
            wave.add(seat, outcome)
            self._underway -= wave.first_finished

    def lose(self, seat: Seat, error: OpenEnvError) -> None:
        if seat.pending is not None:
            self.settle(seat, seat.pending, error)
        else:
            seat.news = error

    def flush(self) -> None:
        if self._finals:
            finals, self._finals = self._finals, []
            for seat in finals:
                seat.ask("reset", {})
            for wave in {seat.pending for seat in finals if seat.pending is not None}:
                self._carry([seat for seat in finals if seat.pending is wave], wave)
        if self._receiver is not None:
            least, enough = self._receiver
            if len(self.ready) >= least and not enough.done() and not enough.get_loop().is_closed():
                enough.set_result(None)

    def _launch(self, seats: Sequence[Seat], wave: Wave) -> Wave:
        if not seats:
            wave.finish()
            self.flush()
            return wave
        for seat in seats:
            seat.pending = wave
        wave.left = len(seats)
        if wave.first_finished:
            self._underway += wave.left
        if self._timeout_s is not None:
            loop = asyncio.get_running_loop()
            wave.due = loop.time() + self._timeout_s
            if self._wait_s and any(seat.session is None for seat in seats):
                wave.due += self._wait_s
            wave.send_by = wave.due - min(0.5, 0.1 * self._timeout_s)  # what is in time is heard in time
            wave.timer = loop.call_at(wave.due + LATE_S, self._expire, wave, seats)
        self._carry(seats, wave)
        return wave

    def _carry(self, seats: Sequence[Seat], wave: Wave) -> None:
        assert self.carrier is not None, "connect first"
        self.carrier.carry(seats, wave)

    def _expire(self, wave: Wave, seats: Sequence[Seat]) -> None:
        late = f"no reply to {wave.kind} within {self._timeout_s:g} s (message_timeout_s)"
        for seat in seats:
            if seat.pending is wave:
                link = None if seat.road is None else seat.road.link
                self.settle(seat, wave, overdue(f"environment {seat.index}: {late}", link))
        self.flush()

    def _withdraw(self, wave: Wave) -> None:
        wave.withdrawn = True
        for withdraw in wave.withdrawals:
            withdraw()
        for seat in self.seats:
            if seat.pending is wave:
                seat.pending = None
        wave.finish()

    def _refuse_busy(self, seats: Sequence[Seat]) -> None:
        busy = [seat.index for seat in seats if seat.pending is not None]
        if self.ready:
            busy += [seat.index for seat in seats if seat.index in self.ready]
        if busy:
            raise UsageError(f"environments {busy[:8]} have calls on their way or results waiting: recv() them first")
