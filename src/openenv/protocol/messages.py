"""The requests of protocol v2, as types: decoding is validating.

Each request is a map with `op` and, outside of a batch, `id`. These classes are what `docs/protocol.md` and
`docs/protocol.schema.json` are made from, so each field says what it means.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Raw, Struct

from ..errors import OpenEnvError

__all__ = [
    "CALLS",
    "MAX_ID",
    "OPS",
    "Attach",
    "Batch",
    "Call",
    "CallTool",
    "Cancel",
    "Close",
    "Fork",
    "Heartbeat",
    "Mcp",
    "Message",
    "Open",
    "Refused",
    "Request",
    "Reset",
    "Restore",
    "Schema",
    "State",
    "Step",
    "Tasks",
]

MAX_ID = 2**63 - 1
_DAY_S = 86_400

Id = Annotated[int, Meta(ge=1, le=MAX_ID, description="Number of the request, larger than the one before")]
NewSession = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_.-]{1,64}\Z",
        description="Id for the session: 1 to 64 of A-Z a-z 0-9 _ . -; the server makes one if absent",
    ),
]
Session = Annotated[str, Meta(description="Id of the session")]
Token = Annotated[str, Meta(description="What `open` answered")]
NewToken = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_.-]{16,128}\Z",
        description="Secret for the session, to attach with: 16 to 128 of A-Z a-z 0-9 _ . -; the server makes one if "
        "absent. A client that chooses it can attach though the reply to `open` was lost",
    ),
]
Seq = Annotated[int, Meta(ge=1, le=MAX_ID, description="Number of the call in its session, from 1")]
Seconds = Annotated[float, Meta(ge=0, le=_DAY_S)]
Deadline = Annotated[float, Meta(gt=0, le=_DAY_S, description="Seconds the call may take, waiting included")]


class Request(Struct, tag_field="op", forbid_unknown_fields=True, kw_only=True, gc=False):
    """What all requests share. `id` is 0 for a call of a batch, which has none of its own."""

    id: Id = 0


class Open(Request, tag="open"):
    """Opens a session: an environment of its own, and a slot of the server."""

    session: NewSession | None = None
    token: NewToken | None = None
    wait_s: Annotated[Seconds, Meta(description="Seconds to wait for a free slot")] | None = None
    options: Annotated[dict[str, Any], Meta(description="For later versions: absent or empty")] = {}


class Attach(Request, tag="attach"):
    """Takes a session over from the connection that has it, or had it."""

    session: Session
    token: Token


class Reset(Request, tag="reset"):
    """Starts an episode."""

    session: Session
    seq: Seq
    kwargs: Annotated[dict[str, Any], Meta(description="Arguments of the environment's reset")] = {}
    deadline_s: Deadline | None = None


class Step(Request, tag="step"):
    """Takes one step.

    The action stays encoded until its class is known.
    """

    session: Session
    seq: Seq
    action: Annotated[Raw, Meta(description="The action, as the environment's action class declares it")]
    deadline_s: Deadline | None = None


class State(Request, tag="state"):
    """Asks for the environment's state."""

    session: Session


class Close(Request, tag="close"):
    """Ends a session; one that is gone already is no error."""

    session: Session


class Fork(Request, tag="fork"):
    """Opens a session that goes on from where this one is when its turn comes."""

    session: Session
    new: NewSession | None = None
    token: NewToken | None = None
    wait_s: Annotated[Seconds, Meta(description="Seconds to wait for a free slot, as do later calls")] | None = None


class Restore(Request, tag="restore"):
    """Has the session go on from where another one is when its turn comes."""

    session: Session
    seq: Seq
    source: Annotated[str, Meta(description="Id of the other session, on the same worker")]
    token: Annotated[str, Meta(description="Its token, if another connection has it")] | None = None
    deadline_s: Deadline | None = None


Index = Annotated[int, Meta(ge=-(2**63), le=MAX_ID)]


class Tasks(Request, tag="tasks"):
    """Asks what there is to train and to test on."""

    session: Session
    method: Annotated[
        Literal["list_splits", "list_tasks", "num_tasks", "get_task", "get_task_range"],
        Meta(description="What is asked"),
    ]
    split: Annotated[str, Meta(description="Name of the split, for all but `list_splits`")] | None = None
    index: Annotated[Index, Meta(description="Of a task, from 0, for `get_task`")] | None = None
    start: Annotated[Index, Meta(description="First task of `get_task_range`")] | None = None
    stop: Annotated[Index, Meta(description="The one after its last")] | None = None


class CallTool(Request, tag="call"):
    """Calls a tool: a step with that action, in short."""

    session: Session
    seq: Seq
    tool: Annotated[str, Meta(description="Name of the tool")]
    arguments: Annotated[dict[str, Any], Meta(description="What it is given, by name")] = {}
    deadline_s: Deadline | None = None


class Mcp(Request, tag="mcp"):
    """Lists the tools, or calls one as `/mcp` does: no step, and no reward."""

    session: Session
    seq: Seq
    method: Annotated[Literal["tools/list", "tools/call"], Meta(description="Method of the MCP specification")]
    params: Annotated[dict[str, Any], Meta(description="For `tools/call`: `name` of the tool, and `arguments`")] = {}
    deadline_s: Deadline | None = None


Call = Open | Reset | Step | State | Close | Fork | Restore | CallTool | Mcp


class Cancel(Request, tag="cancel"):
    """Gives a request up."""

    target: Annotated[int, Meta(ge=1, le=MAX_ID, description="Id of the request to give up")]


class Heartbeat(Request, tag="heartbeat"):
    """Shows that the client is there."""


class Schema(Request, tag="schema"):
    """Asks what the environment takes and gives."""


class Batch(Request, tag="batch"):
    """Many calls of many sessions in one frame."""

    calls: Annotated[list[Call], Meta(min_length=1, description="The calls, each with `op` and without `id`")]
    min_ready: Annotated[int, Meta(ge=1, description="Send a frame whenever so many are ready")] | None = None
    wait_s: Annotated[Seconds, Meta(description="Seconds after which what is ready is sent")] | None = None
    deadline_s: (
        Annotated[
            float,
            Meta(gt=0, le=_DAY_S, description="The `deadline_s` of its resets and steps that have none of their own"),
        ]
        | None
    ) = None


Message = (
    Open
    | Attach
    | Reset
    | Step
    | State
    | CallTool
    | Mcp
    | Fork
    | Restore
    | Tasks
    | Batch
    | Cancel
    | Close
    | Heartbeat
    | Schema
)

OPS: dict[str, type[Request]] = {
    "open": Open,
    "attach": Attach,
    "reset": Reset,
    "step": Step,
    "state": State,
    "call": CallTool,
    "mcp": Mcp,
    "fork": Fork,
    "restore": Restore,
    "tasks": Tasks,
    "batch": Batch,
    "cancel": Cancel,
    "close": Close,
    "heartbeat": Heartbeat,
    "schema": Schema,
}
CALLS: dict[str, type[Request]] = {
    "open": Open,
    "reset": Reset,
    "step": Step,
    "state": State,
    "call": CallTool,
    "mcp": Mcp,
    "fork": Fork,
    "restore": Restore,
    "close": Close,
}


class Refused(NamedTuple):
    """A frame, or a call of a batch, that is no valid request.

    Attributes:
        id: Of the request, to answer with; None for a frame that has no usable one, 0 within a batch.
        error: What is wrong with it.
        session: Of a call of a batch, if it names one.
    """

    id: int | None
    error: OpenEnvError
    session: str | None = None
