"""What is known of a transition without its values: enough to group episodes and to count."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from .. import errors
from ..errors import UnreadableRecord
from .parquet import Int64
from .restoring import restored

__all__ = ["HEAD_COLUMNS", "Head", "Line", "Transition", "Values", "transition_of"]

HEAD_COLUMNS = (
    "episode_id",
    "session_id",
    "step",
    "seed",
    "reward",
    "terminated",
    "truncated",
    "done",
    "time",
    "duration_s",
    "error",
    "environment",
    "versions",
    "schema",
    "source",
)
"""The columns of Parquet that a head is made of."""


# Up to the year 9999: a date is made of it.
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=253402300800)]


class Head(msgspec.Struct, gc=False):
    """A line of a record, but for what was sent and received. Keys as in the line; what it lacks is None."""

    step: Int64
    episode_id: str | None = None
    session_id: str | None = None
    seed: Int64 | None = None
    reward: float | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    done: bool = False
    time: Seconds = 0.0
    duration_s: Seconds = 0.0
    error: str | None = None
    environment: str | None = None
    versions: dict[str, str | None] = {}
    schema: str | None = None
    source: dict[str, Any] | None = None


class Values(msgspec.Struct, gc=False):
    """The rest of a line."""

    observation: msgspec.Raw
    arguments: dict[str, Any] | None = None
    action: Any = None
    step_arguments: dict[str, Any] | None = None


class Line(Head, gc=False, kw_only=True):
    """A line of JSON, as far as it must be read to be one."""

    observation: msgspec.Raw


class Transition(msgspec.Struct, frozen=True):
    """One reset or step, and what came of it.

    Attributes:
        step: 0 is the reset.
        seed, arguments: Of a reset: its seed, and all other arguments but the episode's id.
        action, step_arguments: Of a step: all fields of its action, and further arguments if there were any.
        observation: All fields but reward and done; None where it failed. NaN and infinity are the texts `NaN`,
            `Infinity` and `-Infinity`.
        reward: None: there was none.
        terminated, truncated: How the episode ended; None where nobody said so.
        done: It is over.
        time: Unix seconds at which it was asked for.
        duration_s: Seconds that it took.
        error: `ClassName: message` of what came in place of an observation; None: nothing did.
        source: Session, episode and step that a fork or a restored session goes on from; None for all other lines.
    """

    step: int
    seed: int | None
    arguments: dict[str, Any] | None
    action: Any
    step_arguments: dict[str, Any] | None
    observation: Any
    reward: float | None
    terminated: bool | None
    truncated: bool | None
    done: bool
    time: float
    duration_s: float
    error: str | None
    source: dict[str, Any] | None

    @property
    def error_class(self) -> str | None:
        """Name of the error's class in `openenv.errors`; empty where the record says none, None without an error."""
        if self.error is None:
            return None
        name = self.error.partition(":")[0]
        return name if isinstance(getattr(errors, name, None), type) else ""

    def facts(self) -> dict[str, Any]:
        """As a line of JSON has it, without what is absent."""
        optional = ("arguments", "action", "step_arguments", "source")
        facts = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.step:
            del facts["seed"]
        return {name: value for name, value in facts.items() if value is not None or name not in optional}


def transition_of(head: Head, values: Values, arrays: str | None) -> Transition:
    """A whole transition.

    Args:
        head: Of its line.
        values: Of its line.
        arrays: Folder of the arrays that it names; None: they stay names.

    Raises:
        UnreadableRecord: A value is no JSON.
        MissingArray: An array is not there, or is not what it was.
    """
    try:
        observation = msgspec.json.decode(values.observation)
    except msgspec.DecodeError as error:
        raise UnreadableRecord(f"the observation of step {head.step} is no JSON: {error}") from None
    action, arguments = values.action, values.arguments
    if arrays is not None:
        observation, action, arguments = (restored(each, arrays) for each in (observation, action, arguments))
    return Transition(
        head.step,
        head.seed,
        arguments,
        action,
        values.step_arguments,
        observation,
        head.reward,
        head.terminated,
        head.truncated,
        head.done,
        head.time,
        head.duration_s,
        head.error,
        head.source,
    )
