"""The actions, observations, states and results of environments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    Strict,
    model_serializer,
    model_validator,
)

from ._imports import lazy
from .chat import Chat
from .errors import OpenEnvError

if TYPE_CHECKING:
    from .messages import *

__all__ = [
    "ActT",
    "Action",
    "BaseMessage",
    "CodeExecResult",
    "ConcurrencyConfig",
    "EnvironmentMetadata",
    "GetTaskRangeRequest",
    "GetTaskRequest",
    "HealthResponse",
    "HealthStatus",
    "ListTasksRequest",
    "NumTasksRequest",
    "ObsT",
    "Observation",
    "ResetRequest",
    "ResetResponse",
    "Scalar",
    "SchemaResponse",
    "ServerCapacityStatus",
    "ServerMode",
    "SessionInfo",
    "State",
    "StateT",
    "StepRequest",
    "StepResponse",
    "StepResult",
    "WSCloseMessage",
    "WSErrorCode",
    "WSErrorResponse",
    "WSIncomingMessage",
    "WSObservationResponse",
    "WSResetMessage",
    "WSStateMessage",
    "WSStateResponse",
    "WSStepMessage",
    "reward_mask",
]

# Loaded lazily, since few programs use them. A type checker sees the imports above.
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "openenv.messages"))

Scalar = int | float | bool
"""A single number."""

# Accepts the same values as `bool | int | float | None`. A value of exactly one of these types, as environments
# return it, is not compared with the other types, which is a fifth of the cost of an observation.
Reward = Annotated[
    Annotated[bool, Strict()]
    | Annotated[int, Strict()]
    | Annotated[float, Strict()]
    | Annotated[bool | int | float, Field(union_mode="smart")]
    | None,
    Field(union_mode="left_to_right"),
]


class _Message(BaseModel):  # noqa: PLW1641 - pydantic makes the hash of frozen models
    """A model of fields that may be arrays. Two are equal if their arrays have equal shapes and elements."""

    # NaN and infinity are sent as such: the JSON default, null, would mean a missing value.
    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, arbitrary_types_allowed=True, ser_json_inf_nan="constants"
    )

    def __eq__(self, other: object) -> bool:
        try:
            return super().__eq__(other)
        except (ValueError, RuntimeError):  # an array of several elements is neither true nor false
            return type(self) is type(other) and _equal(self.__dict__, other.__dict__)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return len(one) == len(other) and all(map(_equal, one, other))
    if hasattr(one, "shape") and hasattr(other, "shape"):
        return bool(one.shape == other.shape and (one == other).all())
    if hasattr(one, "tolist") or hasattr(other, "tolist"):  # a list may stand for an array
        one, other = (value.tolist() if hasattr(value, "tolist") else value for value in (one, other))
    return bool(one == other)


class Action(_Message):
    """What an agent does. Subclass it with the fields of your environment; unknown fields are refused."""

    metadata: dict[str, Any] = Field(default_factory=dict, description="Facts about the action, not part of it")


class Observation(_Message):
    """What an agent sees after a reset or a step.

    Attributes:
        done: Whether the episode is over.
        reward: Reward of the action that led here; None means that there is none, which is not 0.
        metadata: Facts beside the observation.

    A subclass that declares a field `truncated: bool` tells an episode cut short (a time limit) from one
    that ended by itself; clients then report it as `StepResult.truncated`.
    """

    done: bool = Field(default=False, description="Whether the episode is over")
    reward: Reward = Field(default=None, description="Reward of the last action, if there is one")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Facts beside the observation")


class State(_Message):
    """What an environment tells about its episode, apart from observations. Further fields are welcome."""

    model_config = ConfigDict(extra="allow")

    episode_id: str | None = Field(default=None, description="Name of the episode")
    step_count: int = Field(default=0, ge=0, description="Steps taken since the last reset")

    _plain_count: ClassVar[bool] = True

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        decorators = cls.__pydantic_decorators__
        cls._plain_count = (
            cls.model_fields["step_count"] == State.model_fields["step_count"]
            and not decorators.field_validators
            and not decorators.model_validators
        )

    # Every environment counts its steps, and validating that number took a tenth of a whole step (1.7 us of 14,
    # `state.step_count += 1` under timeit): a plain count is set without validation.
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "step_count" and type(value) is int and value >= 0 and self._plain_count:
            self.__dict__[name] = value
            self.__pydantic_fields_set__.add(name)
        else:
            super().__setattr__(name, value)


ActT = TypeVar("ActT", bound=Action)
ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")


@dataclass(slots=True)
class StepResult(Generic[ObsT]):
    """What a client gets back from `reset` and `step`.

    Attributes:
        observation: The environment's observation, of the client's observation type.
        reward: None means "no reward was given"; it is never a stand-in for a failure.
        done: The episode is over, for any reason.
        metadata: Facts beside the observation, None if there were none.
        truncated: The episode was cut short (a time limit) rather than finished.
        error: The failure of this session, where many sessions are stepped at once;
            observation and reward are then None. Its `blame` says who must act, its `retryable` whether the
            same call may succeed later.
        terminated: The episode reached a terminal state, in the sense of Gymnasium. Default: it is over and
            was not cut short.
    """

    observation: ObsT
    reward: bool | int | float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None
    truncated: bool = False
    error: OpenEnvError | None = None
    terminated: bool = None  # type: ignore[assignment]  # a bool after `__post_init__`

    def __post_init__(self) -> None:
        if self.terminated is None:
            self.terminated = self.done and not self.truncated


class BaseMessage(BaseModel):
    """Base of what servers and clients tell each other; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)


# Existing clients refuse fields that they do not know.
_OPTIONAL = frozenset({"seedable", "chat"})


class EnvironmentMetadata(BaseMessage):
    """What `GET /metadata` says about an environment."""

    name: str
    description: str
    readme_content: str | None = None
    version: str | None = None
    author: str | None = None
    documentation_url: str | None = None
    seedable: bool | None = None
    """False if its reset takes no seed. None, which is not sent: it takes one, or that is unknown."""
    chat: Chat | None = None
    """How it speaks with a language model. None, which is not sent: its author does not say."""

    @model_serializer(mode="wrap")
    def _serialize(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = write(self)
        return {name: value for name, value in fields.items() if value is not None or name not in _OPTIONAL}


class CodeExecResult(BaseMessage):
    """Outcome of running a piece of code: both streams and the exit code."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class ServerMode(StrEnum):
    """`production` serves no reset, step or state to agents."""

    SIMULATION = "simulation"
    PRODUCTION = "production"


class HealthStatus(StrEnum):
    """What `GET /health` says."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DEGRADED = "degraded"


class ConcurrencyConfig(BaseMessage):
    """How many sessions a server opens, and how long an idle one may stay.

    Attributes:
        max_concurrent_envs: Most sessions open at one time.
        session_timeout: Seconds without a call after which a session is closed; None keeps it.
    """

    max_concurrent_envs: int = Field(default=1, ge=1)
    session_timeout: float | None = Field(default=None, gt=0)


class ServerCapacityStatus(BaseMessage):
    """How full a server is. More sessions than there can be are refused."""

    active_sessions: int = Field(ge=0)
    max_sessions: int = Field(ge=1)

    @classmethod
    def from_counts(cls, active: int, max_sessions: int) -> Self:
        """The status of a server with these numbers of sessions."""
        return cls(active_sessions=active, max_sessions=max_sessions)

    @model_validator(mode="after")
    def check_capacity_bounds(self) -> Self:
        if self.active_sessions > self.max_sessions:
            raise ValueError(
                f"active_sessions ({self.active_sessions}) is more than max_sessions ({self.max_sessions})"
            )
        return self

    @property
    def available_slots(self) -> int:
        return self.max_sessions - self.active_sessions

    @property
    def is_at_capacity(self) -> bool:
        return self.available_slots <= 0


class SessionInfo(BaseMessage):
    """One open session. Times are seconds since the epoch."""

    session_id: str
    created_at: float
    last_activity_at: float
    step_count: int = Field(default=0, ge=0)
    environment_type: str


def reward_mask(results: Iterable[StepResult[Any]]) -> list[bool]:
    """Whether each result has a reward: no error, and a reward that is not None.

    A failed call, or a step without a reward, does not have reward 0: it says nothing about the policy, and a loss
    must leave it out. Multiply by the mask, and divide by its sum::

        results = await envs.step(actions)
        mask = torch.tensor(reward_mask(results))
        rewards = torch.tensor([float(result.reward or 0) for result in results])  # None is masked
        loss = -(log_probs * advantages(rewards, mask) * mask).sum() / mask.sum().clamp(min=1)

    For a group's mean or a baseline, use only rewards where the mask is true: a failure counted as 0 would raise the
    advantage of all others.

    Args:
        results: From `VectorEnvClient.step` or elsewhere.

    Returns:
        One bool for each, in their order.
    """
    return [result.error is None and result.reward is not None for result in results]
