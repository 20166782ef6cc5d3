"""The replies and events of protocol v2, as types.

The server writes them without going through these classes; the tests hold what it writes against them.
`docs/protocol.md` and `docs/protocol.schema.json` are made from them, so each field says what it means.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from .messages import MAX_ID

__all__ = [
    "EVENTS",
    "REPLIES",
    "Attached",
    "CancelDone",
    "Draining",
    "Failure",
    "Fault",
    "Hashes",
    "Hello",
    "Limits",
    "Nothing",
    "Opened",
    "Outcome",
    "Reply",
    "Results",
    "SchemaTold",
    "SessionLost",
    "Slot",
    "StateTold",
    "TasksTold",
]


class Fault(Struct):
    """What an error says."""

    message: Annotated[str, Meta(description="What happened and what to do next, for a human")]
    code: Annotated[str, Meta(description="The v1 code of the error")]
    error: Annotated[str, Meta(description="Name of the error, see the table of errors")]
    blame: Literal["client", "environment", "infrastructure"]
    retryable: Annotated[bool, Meta(description="Whether the same call may succeed later without a change")]
    retry_after_s: Annotated[float, Meta(description="Seconds to wait before a retry")] | UnsetType = UNSET
    data: Annotated[dict[str, Any], Meta(description="Further facts; `errors` of a validation")] | UnsetType = UNSET


class Reply(Struct, kw_only=True):
    """What all replies to a request that succeeded share."""

    id: Annotated[int, Meta(ge=1, le=MAX_ID, description="Id of the request")]
    ok: Annotated[bool, Meta(description="true")]


class Failure(Struct):
    """The reply to a request that failed."""

    id: Annotated[int, Meta(ge=1, description="Id of the request; null if the frame had no usable one")] | None
    error: Fault


class Slot(Struct):
    """How full the server is."""

    active_sessions: int
    max_sessions: int


class Opened(Reply):
    """The reply to open and fork."""

    session: Annotated[str, Meta(description="Id of the session")]
    token: Annotated[str, Meta(description="What `attach` needs; a secret")]
    seq: Annotated[int, Meta(ge=0, description="Last completed call, 0 for a new session")]
    slot: Slot


class Attached(Reply):
    """The reply to attach."""

    session: Annotated[str, Meta(description="Id of the session")]
    state: Annotated[str, Meta(description="What the session is doing: starting, live, executing")]
    seq: Annotated[int, Meta(ge=0, description="Last completed call")]
    last: (
        Annotated[dict[str, Any], Meta(description="The reply to that call, `ok` or `error` and all, without `id`")]
        | UnsetType
    ) = UNSET


class Outcome(Reply):
    """The reply to reset, step and call."""

    observation: Annotated[dict[str, Any], Meta(description="Every field of the observation but reward and done")]
    reward: Annotated[bool | int | float | None, Meta(description="null: no reward was given, which is not 0")]
    done: Annotated[bool, Meta(description="The episode is over, for whichever reason")]
    terminated: Annotated[bool, Meta(description="It reached an end of its own")]
    truncated: Annotated[bool, Meta(description="It was cut short, by a time limit for one")]
    metadata: (
        Annotated[dict[str, Any], Meta(description="The observation's metadata and `seedable`, if there are any")]
        | UnsetType
    ) = UNSET


class StateTold(Reply):
    """The reply to state."""

    state: Annotated[dict[str, Any], Meta(description="The fields of the environment's state")]


class TasksTold(Reply):
    """The reply to tasks."""

    result: Annotated[Any, Meta(description="A list of splits or tasks, a number, or a task; JSON values")]


class Results(Reply):
    """A reply to batch. There are as many as it takes; the last says `more: false`."""

    results: Annotated[
        list[dict[str, Any]],
        Meta(
            description="For each call that is ready: `call`, its place in `calls`; `session`, if it has one; "
            "and its reply, `ok` or `error` and all, without `id`"
        ),
    ]
    more: Annotated[bool, Meta(description="Whether calls are left for a later frame")]


class McpAnswered(Reply):
    """The reply to mcp."""

    reply: Annotated[
        dict[str, Any],
        Meta(description="As JSON-RPC has it: `result`, or `error` with `code`, `message` and `data`"),
    ]


class CancelDone(Reply):
    """The reply to cancel."""

    cancelled: Annotated[bool, Meta(description="Whether there was something to give up")]


class Nothing(Reply):
    """The reply to restore, close and heartbeat."""


class SchemaTold(Reply):
    """The reply to schema."""

    schemas: Annotated[
        dict[str, Any],
        Meta(
            description="JSON Schema of `action`, `observation` and `state`, without words and defaults; "
            "null for one that is not known"
        ),
    ]


class Limits(Struct):
    """What the server allows."""

    max_message_bytes: int
    max_sessions: Annotated[int, Meta(description="Sessions of the whole server")]
    max_in_flight: Annotated[int, Meta(description="Calls of one session that may wait for their turn")]
    max_connection_in_flight: Annotated[int, Meta(description="Calls of one connection without a reply")]
    max_batch: Annotated[int, Meta(description="Calls in a batch")]


class Hashes(Struct):
    """A hash of what `schema` would answer for each part; null where it would be null."""

    action: str | None
    observation: str | None
    state: str | None


class Hello(Struct, tag_field="event", tag="hello"):
    """The server's first frame."""

    protocol: Annotated[int, Meta(description="2")]
    server: Annotated[str, Meta(description="Version of the server")]
    environment: Annotated[str, Meta(description="Name of the environment")]
    limits: Limits
    heartbeat_s: Annotated[float, Meta(description="Seconds between heartbeats, if they are wanted")] | None
    resume_window_s: Annotated[
        float, Meta(description="Seconds a session outlives its connection, for its client to come back")
    ]
    capabilities: Annotated[list[str], Meta(description="What else the server can do")]
    worker: Annotated[str, Meta(description="Key of the worker process, to connect to it again")] | None
    schema: Hashes | UnsetType = UNSET


class Draining(Struct, tag_field="event", tag="draining"):
    """The server stops: it opens no new sessions."""

    grace_s: Annotated[float, Meta(description="Seconds until it closes what is still open")]


class SessionLost(Struct, tag_field="event", tag="session_lost"):
    """A session of this connection is gone, or another connection has it."""

    session: Annotated[str, Meta(description="Id of the session")]
    reason: Annotated[str, Meta(description="Why, for a human")]
    error: Fault


REPLIES: dict[str, type[Reply]] = {
    "open": Opened,
    "attach": Attached,
    "reset": Outcome,
    "step": Outcome,
    "state": StateTold,
    "call": Outcome,
    "mcp": McpAnswered,
    "fork": Opened,
    "restore": Nothing,
    "tasks": TasksTold,
    "batch": Results,
    "cancel": CancelDone,
    "close": Nothing,
    "heartbeat": Nothing,
    "schema": SchemaTold,
}
EVENTS: dict[str, type[Struct]] = {"hello": Hello, "draining": Draining, "session_lost": SessionLost}
