"""One environment of a vector, and what is known of its episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..errors import EnvironmentCrashed, OpenEnvError, ResetRequired
from .session import Kind

if TYPE_CHECKING:
    from .road import Road
    from .wave import Wave

__all__ = ["AutoresetMode", "Finale", "Outcome", "Seat"]

AutoresetMode = Literal["disabled", "next_step", "same_step"]
Payload = dict[str, Any]
# Errors with which a session goes on, but not its episode.
_EPISODE_OVER = (ResetRequired, EnvironmentCrashed)


class Finale(NamedTuple):
    """The end of one episode and the beginning of the next, in one step.

    Attributes:
        last: Reply to the step that ended the episode.
        first: Reply to the reset after it.
    """

    last: Payload
    first: Payload


Outcome = Payload | Finale | OpenEnvError


class Seat:
    """The record of one environment.

    Attributes:
        index: Its number in the vector.
        session: Id of its session; None if it has none, or has a v1 connection.
        token: What the session is attached with.
        road: What carries its session; None if it has none.
        opened: The server has said that the session is there.
        seq: Number of the last call of the session.
        step: Its step as the wire has it, filled in anew for each one.
        call: The call of the session that has no reply yet, as the wire has it; None if there is none.
        wave: What that call was made for; perhaps nobody waits for it any more.
        held: What it was asked for while it had no reply, or no connection; None if nothing.
        kind: What it was last asked to do: `reset` or `step`.
        contents: The arguments of that reset, or the action of that step.
        playing: An episode runs, and nothing has to be told before its next step.
        pending: Calls that it takes part in; None if nothing is awaited.
        news: What happened to it while nobody asked; told with the next step.
    """

    __slots__ = (
        "_last",
        "call",
        "contents",
        "held",
        "index",
        "kind",
        "news",
        "opened",
        "pending",
        "playing",
        "road",
        "seq",
        "session",
        "step",
        "token",
        "wave",
    )

    def __init__(self, index: int):
        self.index = index
        self.session: str | None = None
        self.token = ""
        self.road: Road | None = None
        self.opened = False
        self.seq = 0
        self.step: Payload = {}
        self.call: Payload | None = None
        self.wave: Wave | None = None
        self.held: Wave | None = None
        self.kind: Kind = "reset"
        self.contents: Any = None
        self.playing = False
        self.pending: Wave | None = None
        self.news: OpenEnvError | None = None
        self._last: Payload | None = None

    def settle_in(self, road: Road, session: str, token: str) -> None:
        """Takes a new session."""
        self.road, self.session, self.token = road, session, token
        self.opened, self.seq = False, 0
        self.step = {"op": "step", "session": session, "seq": 0, "action": None}

    def vacate(self) -> None:
        """Its session is gone, and the episode with it."""
        self.road = self.session = self.call = self.wave = self.held = None
        self.playing = False

    def start_over(self) -> None:
        """A reset is asked for: what was not told by now is of no interest."""
        self.playing = False
        self.news = self._last = None

    def idle_answer(self, mode: AutoresetMode) -> OpenEnvError | None:
        """What a step gets while no episode runs; None if it is a reset."""
        if self.news is not None:
            return self.news
        if mode == "disabled":
            return ResetRequired(
                f"environment {self.index} has no running episode: call reset(env_ids=[{self.index}]) first"
            )
        return None

    def ask(self, kind: Kind, contents: Any) -> None:
        """Gives it something to do."""
        self.kind = kind
        self.contents = contents

    def take(self, reply: Payload | OpenEnvError, repeat: bool) -> Outcome | None:
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
            return Finale(last, reply)
        if repeat and not self.playing and self.kind == "step":
            self._last = reply
            return None
        return reply
