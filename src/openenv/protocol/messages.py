"""The messages of protocol v2 as types; docs/protocol.md and its JSON Schema are generated from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, get_args

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ..errors import OpenEnvError

MAX_ID = 2**63 - 1
_DAY_S = 86_400

Id = Annotated[int, Meta(ge=1, le=MAX_ID, description="Number of the request, larger than the one before")]
NewSession = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_.-]{1,64}\Z",
        description="Id for the session: 1 to 64 characters of A-Z a-z 0-9 _ . -; the server makes one if absent",
    ),
]
Session = Annotated[str, Meta(description="Id of the session")]
Token = Annotated[str, Meta(description="The token in the answer of `open`")]
NewToken = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_.-]{16,128}\Z",
        description="Secret of the session, for `attach`: 16 to 128 characters of A-Z a-z 0-9 _ . -; the server "
        "makes one if absent. A client that chooses it can attach even if the reply to `open` was lost",
    ),
]
Seq = Annotated[int, Meta(ge=1, le=MAX_ID, description="Number of the call in its session, from 1")]
Seconds = Annotated[float, Meta(ge=0, le=_DAY_S)]
Deadline = Annotated[float, Meta(gt=0, le=_DAY_S, description="Seconds that the call may take, including its wait")]


Copied = Annotated[
    int,
    Meta(ge=0, le=MAX_ID, description="Arrays in shared memory that the client has copied on this connection so far"),
]


class Op(Struct, tag_field="op", forbid_unknown_fields=True, kw_only=True, gc=False):
    """The fields that all requests share. A call of a batch has neither: `id` is 0."""

    id: Id = 0
    copied: Copied = 0


class OpenOp(Op, tag="open"):
    """Opens a session: a new environment, and a slot of the server."""

    session: NewSession | None = None
    token: NewToken | None = None
    wait_s: Annotated[Seconds, Meta(description="Seconds to wait for a free slot")] | None = None
    options: Annotated[
        dict[str, Any],
        Meta(
            description="Absent for a session of one episode. If `hello` has `batch`: `batch` (true: the session "
            "owns all episodes) and perhaps `autoreset` (`disabled`, `next_step` or `same_step`)"
        ),
    ] = {}


class AttachOp(Op, tag="attach"):
    """Moves a session to this connection from the one that has or had it."""

    session: Session
    token: Token


class ResetOp(Op, tag="reset"):
    """Starts an episode."""

    session: Session
    seq: Seq
    kwargs: Annotated[dict[str, Any], Meta(description="Arguments of the environment's reset")] = {}
    deadline_s: Deadline | None = None


class StepOp(Op, tag="step"):
    """Executes one step.

    The action stays encoded until its class is known.
    """

    session: Session
    seq: Seq
    action: Annotated[Raw, Meta(description="The action, as the environment's action class declares it")]
    deadline_s: Deadline | None = None


class StateOp(Op, tag="state"):
    """Asks for the environment's state."""

    session: Session


class CloseOp(Op, tag="close"):
    """Ends a session; succeeds if it has already ended."""

    session: Session


class ForkOp(Op, tag="fork"):
    """Opens a new session with a copy of this one's state, taken when the call has its turn."""

    session: Session
    new: NewSession | None = None
    token: NewToken | None = None
    wait_s: Annotated[Seconds, Meta(description="Seconds to wait for a slot; later calls wait too")] | None = None


class RestoreOp(Op, tag="restore"):
    """Gives the session a copy of another one's state, taken when the call has its turn there."""

    session: Session
    seq: Seq
    source: Annotated[str, Meta(description="Id of the other session, on the same worker")]
    token: Annotated[str, Meta(description="Its token, if another connection has it")] | None = None
    deadline_s: Deadline | None = None


Index = Annotated[int, Meta(ge=-(2**63), le=MAX_ID)]


class TasksOp(Op, tag="tasks"):
    """Asks for the training and test tasks."""

    session: Session
    method: Annotated[
        Literal["list_splits", "list_tasks", "num_tasks", "get_task", "get_task_range"],
        Meta(description="The method to call"),
    ]
    split: Annotated[str, Meta(description="Name of the split, for all but `list_splits`")] | None = None
    index: Annotated[Index, Meta(description="Index of a task, from 0, for `get_task`")] | None = None
    start: Annotated[Index, Meta(description="Index of the first task, for `get_task_range`")] | None = None
    stop: Annotated[Index, Meta(description="Index after the last task, for `get_task_range`")] | None = None


class CallToolOp(Op, tag="call"):
    """Calls a tool: a shorthand for a step with a tool action."""

    session: Session
    seq: Seq
    tool: Annotated[str, Meta(description="Name of the tool")]
    arguments: Annotated[dict[str, Any], Meta(description="Arguments of the tool, by name")] = {}
    deadline_s: Deadline | None = None


class McpOp(Op, tag="mcp"):
    """Lists the tools, or calls one as `/mcp` does, without a step or a reward."""

    session: Session
    seq: Seq
    method: Annotated[Literal["tools/list", "tools/call"], Meta(description="Method of the MCP specification")]
    params: Annotated[dict[str, Any], Meta(description="For `tools/call`: `name` of the tool, and `arguments`")] = {}
    deadline_s: Deadline | None = None


BatchableOp = OpenOp | ResetOp | StepOp | StateOp | CallToolOp | McpOp | ForkOp | RestoreOp | CloseOp


class CancelOp(Op, tag="cancel"):
    """Cancels a request."""

    target: Annotated[int, Meta(ge=1, le=MAX_ID, description="Id of the request to cancel")]


class HeartbeatOp(Op, tag="heartbeat"):
    """Shows that the client is alive."""


class SchemaOp(Op, tag="schema"):
    """Asks for the environment's schemas."""


class SharedMemoryOp(Op, tag="shared_memory"):
    """Asks for memory for the arrays of this connection, and then for its use."""

    token: Annotated[str, Meta(description="The first 32 bytes of the memory in `hello`, or of that in the reply")]


class BatchOp(Op, tag="batch"):
    """Many calls of many sessions in one frame."""

    calls: Annotated[list[BatchableOp], Meta(min_length=1, description="The calls, each with `op` and without `id`")]
    min_ready: (
        Annotated[int, Meta(ge=1, description="Send a frame each time that this many results are ready")] | None
    ) = None
    wait_s: Annotated[Seconds, Meta(description="Seconds after which the ready results are sent")] | None = None
    deadline_s: (
        Annotated[
            float,
            Meta(gt=0, le=_DAY_S, description="The default `deadline_s` of resets and steps in the batch"),
        ]
        | None
    ) = None


Message = (
    OpenOp
    | AttachOp
    | ResetOp
    | StepOp
    | StateOp
    | CallToolOp
    | McpOp
    | ForkOp
    | RestoreOp
    | TasksOp
    | BatchOp
    | CancelOp
    | CloseOp
    | HeartbeatOp
    | SchemaOp
    | SharedMemoryOp
)

# The types of requests, and of the calls of a batch, by the name of the operation.
OPS: dict[str, type[Op]] = {op.__struct_config__.tag: op for op in get_args(Message)}
CALLS: dict[str, type[Op]] = {op.__struct_config__.tag: op for op in get_args(BatchableOp)}


class RefusedOp(NamedTuple):
    """A frame, or a call of a batch, that is not a valid request.

    Attributes:
        id: The id of the request, for the answer; None for a frame without a usable id, 0 within a batch.
        error: The error of the request.
        session: The session of a call of a batch, if it names one.
    """

    id: int | None
    error: OpenEnvError
    session: str | None = None


class ErrorFacts(Struct):
    """The facts of an error."""

    message: Annotated[str, Meta(description="The cause and the next step, for people")]
    code: Annotated[str, Meta(description="The v1 code of the error")]
    error: Annotated[str, Meta(description="Name of the error, see the table of errors")]
    blame: Literal["client", "environment", "infrastructure"]
    retryable: Annotated[bool, Meta(description="Whether the same call may succeed later without a change")]
    retry_after_s: Annotated[float, Meta(description="Seconds to wait before a retry")] | UnsetType = UNSET
    data: Annotated[dict[str, Any], Meta(description="Further facts, as `errors` of a validation")] | UnsetType = (
        UNSET
    )


class SuccessReply(Struct, kw_only=True):
    """The fields that all replies to a successful request share."""

    id: Annotated[int, Meta(ge=1, le=MAX_ID, description="Id of the request")]
    ok: Annotated[bool, Meta(description="true")]


class FailureReply(Struct):
    """The reply to a request that failed."""

    id: Annotated[int, Meta(ge=1, description="Id of the request; null if the frame had no usable one")] | None
    error: ErrorFacts


class SlotUsage(Struct):
    """How full the server is."""

    active_sessions: int
    max_sessions: int


class OpenReply(SuccessReply):
    """The reply to open and fork."""

    session: Annotated[str, Meta(description="Id of the session")]
    token: Annotated[str, Meta(description="Secret for `attach`")]
    seq: Annotated[int, Meta(ge=0, description="Last completed call, 0 for a new session")]
    slot: SlotUsage


class AttachReply(SuccessReply):
    """The reply to attach."""

    session: Annotated[str, Meta(description="Id of the session")]
    state: Annotated[str, Meta(description="What the session is doing: starting, live, executing")]
    seq: Annotated[int, Meta(ge=0, description="Last completed call")]
    last: Annotated[dict[str, Any], Meta(description="The whole reply to that call, without `id`")] | UnsetType = (
        UNSET
    )


class OutcomeReply(SuccessReply):
    """The reply to reset, step and call."""

    observation: Annotated[dict[str, Any], Meta(description="Every field of the observation except reward and done")]
    reward: Annotated[bool | int | float | None, Meta(description="null: no reward, which differs from 0")]
    done: Annotated[bool, Meta(description="Whether the episode is over, for any reason")]
    terminated: Annotated[bool, Meta(description="Whether the episode reached its own end")]
    truncated: Annotated[bool, Meta(description="Whether the episode was cut short, for example by a time limit")]
    metadata: (
        Annotated[dict[str, Any], Meta(description="The observation's metadata and `seedable`, if not empty")]
        | UnsetType
    ) = UNSET


class StateReply(SuccessReply):
    """The reply to state."""

    state: Annotated[dict[str, Any], Meta(description="The fields of the environment's state")]


class TasksReply(SuccessReply):
    """The reply to tasks."""

    result: Annotated[Any, Meta(description="A list of splits or tasks, a number, or a task; JSON values")]


class BatchReply(SuccessReply):
    """A reply to batch. A batch may get several; the last has `more: false`."""

    results: Annotated[
        list[dict[str, Any]],
        Meta(
            description="For each ready call: `call`, its index in `calls`; `session`, if it has one; "
            "and the fields of its reply, including `ok` or `error`, without `id`"
        ),
    ]
    more: Annotated[bool, Meta(description="Whether later frames have further calls")]


class McpReply(SuccessReply):
    """The reply to mcp."""

    reply: Annotated[
        dict[str, Any],
        Meta(description="`result` of JSON-RPC, or `error` with `code`, `message` and `data`"),
    ]


class CancelReply(SuccessReply):
    """The reply to cancel."""

    cancelled: Annotated[bool, Meta(description="Whether a call was cancelled")]


class EmptyReply(SuccessReply):
    """The reply to restore, close and heartbeat."""


class SchemaReply(SuccessReply):
    """The reply to schema."""

    schemas: Annotated[
        dict[str, Any],
        Meta(
            description="JSON Schema of `action`, `observation` and `state`, without descriptions and defaults; "
            "null for an unknown type"
        ),
    ]


class SharedMemoryReply(SuccessReply):
    """The reply to shared_memory."""

    descriptor: Annotated[
        int | None, Meta(description="Descriptor of the memory; null if it is in use now, or if there is none")
    ]


class ServerLimits(Struct):
    """The limits of the server."""

    max_message_bytes: int
    max_sessions: Annotated[int, Meta(description="Most sessions of the whole server")]
    max_in_flight: Annotated[int, Meta(description="Most waiting calls of one session")]
    max_connection_in_flight: Annotated[int, Meta(description="Most calls of one connection without a reply")]
    max_batch: Annotated[int, Meta(description="Most calls in a batch")]


class SchemaHashes(Struct):
    """A hash of each part of the reply to `schema`; null where that is null."""

    action: str | None
    observation: str | None
    state: str | None


class BatchFacts(Struct):
    """An environment that plays many episodes at once, which one session may own."""

    num_envs: Annotated[int, Meta(description="The number of episodes")]
    action_fields: Annotated[list[str], Meta(description="Names of the fields of actions, without `metadata`")]
    autoreset: Annotated[
        str,
        Meta(
            description="What a step does with an episode that has ended, unless the owner chooses another mode: "
            "`disabled` (nothing), `next_step` or `same_step`"
        ),
    ]
    autoresets: Annotated[list[str], Meta(description="The modes that an owner can choose")]


class SharedMemoryOffer(Struct):
    """Memory that shows a client whether it runs on the server's host."""

    process: Annotated[int, Meta(description="Id of the server's process")]
    descriptor: Annotated[int, Meta(description="Descriptor of the memory in that process")]
    digest: Annotated[str, Meta(description="SHA-256 of the first 32 bytes of the memory, in hexadecimal")]


class HelloEvent(Struct, tag_field="event", tag="hello"):
    """The server's first frame."""

    protocol: Annotated[int, Meta(description="2")]
    server: Annotated[str, Meta(description="Version of the server")]
    environment: Annotated[str, Meta(description="Name of the environment")]
    limits: ServerLimits
    heartbeat_s: Annotated[float, Meta(description="Seconds between heartbeats; null if none are required")] | None
    resume_window_s: Annotated[
        float, Meta(description="Seconds that a session outlives its connection, so that its client can resume it")
    ]
    capabilities: Annotated[list[str], Meta(description="Names of optional features of the server")]
    worker: (
        Annotated[str, Meta(description="Key of the worker process, with which a client connects to it again")] | None
    )
    schema: SchemaHashes | UnsetType = UNSET
    batch: BatchFacts | UnsetType = UNSET
    shared_memory: SharedMemoryOffer | UnsetType = UNSET


class DrainingEvent(Struct, tag_field="event", tag="draining"):
    """The server is stopping: it opens no new sessions."""

    grace_s: Annotated[float, Meta(description="Seconds until it closes the open sessions")]


class SessionLostEvent(Struct, tag_field="event", tag="session_lost"):
    """A session of this connection has ended, or another connection has attached to it."""

    session: Annotated[str, Meta(description="Id of the session")]
    reason: Annotated[str, Meta(description="The reason, for people")]
    error: ErrorFacts


REPLIES: dict[str, type[SuccessReply]] = {
    "open": OpenReply,
    "attach": AttachReply,
    "reset": OutcomeReply,
    "step": OutcomeReply,
    "state": StateReply,
    "call": OutcomeReply,
    "mcp": McpReply,
    "fork": OpenReply,
    "restore": EmptyReply,
    "tasks": TasksReply,
    "batch": BatchReply,
    "cancel": CancelReply,
    "close": EmptyReply,
    "heartbeat": EmptyReply,
    "schema": SchemaReply,
    "shared_memory": SharedMemoryReply,
}
EVENTS: dict[str, type[Struct]] = {"hello": HelloEvent, "draining": DrainingEvent, "session_lost": SessionLostEvent}
