"""Models of the messages of HTTP and WebSocket v1, for programs that read or write them.

The server and client of this package do not build them for a step.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from .types import BaseMessage, HealthStatus

__all__ = [
    "GetTaskRangeRequest",
    "GetTaskRequest",
    "HealthResponse",
    "ListTasksRequest",
    "NumTasksRequest",
    "ResetRequest",
    "ResetResponse",
    "SchemaResponse",
    "StepRequest",
    "StepResponse",
    "WSCloseMessage",
    "WSErrorCode",
    "WSErrorResponse",
    "WSIncomingMessage",
    "WSObservationResponse",
    "WSResetMessage",
    "WSStateMessage",
    "WSStateResponse",
    "WSStepMessage",
]


class HealthResponse(BaseMessage):
    """Answer of `GET /health`."""

    status: HealthStatus = HealthStatus.HEALTHY


class ResetRequest(BaseModel):
    """Body of `POST /reset`; further keys go to the environment's `reset` if it takes them."""

    model_config = ConfigDict(extra="allow")

    seed: int | None = Field(default=None, ge=0)
    episode_id: str | None = Field(default=None, max_length=255)


class StepRequest(BaseModel):
    """Body of `POST /step`."""

    model_config = ConfigDict(extra="allow")

    action: dict[str, Any]
    timeout_s: float | None = Field(default=None, gt=0)
    request_id: str | None = Field(default=None, max_length=255)


class StepResponse(BaseModel):
    """Answer of `POST /step` and, by its other name, of `POST /reset`."""

    model_config = ConfigDict(extra="forbid")

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None
    truncated: bool = False


class ResetResponse(StepResponse):
    """Answer of `POST /reset`."""


class SchemaResponse(BaseMessage):
    """Answer of `GET /schema`: JSON Schemas of what the environment takes and gives.

    Attributes:
        reset_observation: What `reset` gives, if its class declares it; not sent otherwise.
        batch: `num_envs` and `autoreset` of a `BatchedEnvironment`; not sent for any other one.
    """

    action: dict[str, Any]
    observation: dict[str, Any]
    state: dict[str, Any]
    reset_observation: dict[str, Any] | None = None
    batch: dict[str, Any] | None = None

    @model_serializer(mode="wrap")
    def _serialize(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = write(self)
        return {name: part for name, part in fields.items() if part is not None}


class ListTasksRequest(BaseMessage):
    """Body of `POST /{env}/tasks`."""

    split: str


class NumTasksRequest(BaseMessage):
    """Body of `POST /{env}/num_tasks`."""

    split: str


class GetTaskRequest(BaseMessage):
    """Body of `POST /{env}/task`."""

    split: str
    index: int


class GetTaskRangeRequest(BaseMessage):
    """Body of `POST /{env}/task_range`: tasks from `start` up to `stop`, in the sense of a slice."""

    split: str
    start: int | None = None
    stop: int | None = None


class WSErrorCode(StrEnum):
    """`code` of an error frame."""

    INVALID_JSON = "INVALID_JSON"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    CAPACITY_REACHED = "CAPACITY_REACHED"
    FACTORY_ERROR = "FACTORY_ERROR"
    SESSION_ERROR = "SESSION_ERROR"


class WSResetMessage(BaseMessage):
    """A frame that starts an episode; `data` holds the arguments of `reset`."""

    type: Literal["reset"] = "reset"
    data: dict[str, Any] = Field(default_factory=dict)


class WSStepMessage(BaseMessage):
    """A frame that does an action; `data` is the action."""

    type: Literal["step"] = "step"
    data: dict[str, Any]


class WSStateMessage(BaseMessage):
    """A frame that asks for the state."""

    type: Literal["state"] = "state"


class WSCloseMessage(BaseMessage):
    """A frame that ends the session."""

    type: Literal["close"] = "close"


WSIncomingMessage = Annotated[
    WSResetMessage | WSStepMessage | WSStateMessage | WSCloseMessage, Field(discriminator="type")
]
"""What a client says over WebSocket v1."""


class WSObservationResponse(BaseModel):
    """The reply to reset and step; `data` is the observation payload."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["observation"] = "observation"
    data: dict[str, Any]


class WSStateResponse(BaseModel):
    """The reply to state."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["state"] = "state"
    data: dict[str, Any]


class WSErrorResponse(BaseModel):
    """What comes in place of a reply; `data` has a message and a `WSErrorCode`."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["error"] = "error"
    data: dict[str, Any]
