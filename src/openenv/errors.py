"""Every failure an `openenv` server, client or provider can report: one tree.

Each class answers three questions, so that a trainer can decide without parsing messages: who must
act (`blame`), whether the same call may be retried (`retryable`), and the name on the wire (`code`,
the v1 error code). `RuntimeError`, `ConnectionError` and `TimeoutError` are bases where existing
programs catch these failures by those names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, cast, get_args

__all__ = [
    "AgentFailed",
    "Cancelled",
    "CapacityError",
    "ConcurrencyConfigurationError",
    "ConnectTimeout",
    "ConnectionFailed",
    "ConnectionLost",
    "ContextOverflow",
    "Draining",
    "EnvironmentCrashed",
    "EnvironmentFactoryError",
    "EnvironmentFailed",
    "FactoryFailed",
    "Forbidden",
    "Hidden",
    "ImportFailed",
    "InvalidAction",
    "InvalidArgument",
    "InvalidMessage",
    "JournalFailed",
    "JournalInUse",
    "JournalMismatch",
    "JudgeFailed",
    "LaunchFailed",
    "MessageTooLarge",
    "MissingArray",
    "MissingExtra",
    "ModelFailed",
    "ModelTimeout",
    "ModelUnavailable",
    "NotAProject",
    "NotForkable",
    "NotReady",
    "OpenEnvError",
    "PolicyFailed",
    "ProtocolViolation",
    "ProviderBusy",
    "ProviderFailed",
    "QueueTimeout",
    "ResetRequired",
    "RubricFailed",
    "SchemaMismatch",
    "SeedIgnored",
    "SequenceError",
    "ServerFull",
    "SessionCapacityError",
    "SessionCreationError",
    "SessionLost",
    "SessionNotFoundError",
    "SlowReader",
    "StepFailed",
    "StepTimeout",
    "TaskTaken",
    "TooManyCalls",
    "TooManyFailures",
    "ToolFailed",
    "Unauthorized",
    "UnknownEnvironment",
    "UnknownMessage",
    "UnknownSession",
    "UnmappableSpace",
    "UnreadableRecord",
    "UsageError",
    "from_wire",
]

Blame = Literal["client", "environment", "infrastructure"]


class OpenEnvError(Exception):
    """Base of every error in this package.

    Attributes:
        code: The v1 wire code of this class.
        blame: Who must act: the caller, the environment's author, or the operator of the machines.
        retryable: Whether the same call may succeed later without a change.
        message: What happened and what to do next, in one line where that is possible.
        retry_after_s: Seconds to wait before a retry, when the sender knows.
        data: Extra facts, safe to encode as JSON (`errors` of a validation, `active_sessions`, ...). Those that a
            subclass documents are its attributes too.
    """

    code: ClassVar[str] = "SESSION_ERROR"
    blame: Blame = "infrastructure"
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str = "", *, retry_after_s: float | None = None, data: Mapping[str, Any] | None = None
    ):
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.data: dict[str, Any] = dict(data or {})
        for name, value in self.data.items():
            kind = _ATTRIBUTES.get(name)
            if kind and (value is None or (isinstance(value, kind) and type(value) is not bool)):
                self.__dict__[name] = value

    def facts(self) -> dict[str, Any]:
        """The fields of this error on any wire, except `data`."""
        facts: dict[str, Any] = {
            "message": self.message,
            "code": self.code,
            "error": type(self).__name__,
            "blame": self.blame,
            "retryable": self.retryable,
        }
        if self.retry_after_s is not None:
            facts["retry_after_s"] = self.retry_after_s
        return facts

    def __reduce__(self) -> tuple[Any, ...]:
        # Trainers send errors between processes; constructors of subclasses take other arguments than `args`.
        return _rebuild, (type(self), self.__dict__)


class UsageError(OpenEnvError, RuntimeError, ValueError):
    """The caller's mistake; the same call will fail again."""

    blame = "client"


class InvalidAction(UsageError):
    """An action or frame that does not validate; `data["errors"]` lists each fault with its place."""

    code = "VALIDATION_ERROR"

    def __str__(self) -> str:
        faults = self.data.get("errors")
        return "; ".join([self.message, *map(_fault, faults if isinstance(faults, list) else ())])


def _fault(fault: Any) -> str:
    """One validation fault as text; foreign servers may send anything."""
    if not isinstance(fault, Mapping):
        return str(fault)
    place = fault.get("loc")
    where = ".".join(map(str, place)) if isinstance(place, (list, tuple)) else str(place or "")
    return f"{where or '-'}: {fault.get('msg', fault)}"


class InvalidArgument(UsageError, ValueError):
    """An invalid value of an argument or a setting."""


class InvalidMessage(UsageError):
    """A frame that cannot be read."""

    code = "INVALID_JSON"


class UnknownMessage(UsageError):
    """A message of an unknown type."""

    code = "UNKNOWN_TYPE"


class UnknownSession(UsageError):
    """No session of that id on this server.

    `blame` is INFRASTRUCTURE if the id names a worker process that has ended.
    """

    session_id: str = ""

    def __init__(self, session_id: str, message: str | None = None):
        super().__init__(message or f"no session {session_id!r} on this server", data={"session_id": session_id})

    @classmethod
    def of_ended_worker(cls, session_id: str) -> Self:
        """The error for a session whose worker process has ended."""
        error = cls(session_id, f"session {session_id[:80]!r} is gone: its worker process has ended")
        error.blame = cast("Any", "infrastructure")
        return error


class ResetRequired(UsageError):
    """A step before the first reset, or after the end of the episode."""

    code = "EXECUTION_ERROR"  # v1 clients take SESSION_ERROR for the end of the session


class SequenceError(UsageError):
    """A call number that is neither the last one nor the next one of its session."""


class Unauthorized(UsageError):
    """No key, a wrong key, or a key of a scope that does not cover the call."""


class Forbidden(Unauthorized):
    """A known key with a scope that does not cover the call."""

    code = "EXECUTION_ERROR"  # the session lives on


class Hidden(Forbidden):
    """A request that a server in production mode accepts only with a key of scope control."""


class TooManyFailures(Unauthorized):
    """Too many wrong keys came from this address; wait `retry_after_s`, then send a valid key."""


class SeedIgnored(UsageError, UserWarning):
    """A seed was given to an environment that takes none: a warning, and with `strict=True` an error."""


class SchemaMismatch(UsageError, UserWarning):
    """The types of a client do not fit those of its server: a warning, and with `strict=True` an error."""


class UnknownEnvironment(UsageError, ValueError):
    """No environment of that name is installed, and none comes with this package."""


class ImportFailed(UsageError, ImportError):
    """A module of an environment package cannot be imported; the message names the file and the import."""


class NotAProject(UsageError):
    """A folder without `openenv.yaml`; the message names the file and the folders where it was looked for."""


class UnreadableRecord(UsageError, ValueError):
    """Recorded episodes that cannot be read: a missing, foreign or damaged file; the message says where."""


class MissingArray(UnreadableRecord):
    """A record names an array that is missing or has changed."""


class MessageTooLarge(UsageError):
    """A frame over the limit; the message names its size, the limit and the setting."""


class Cancelled(UsageError):
    """The call was cancelled by its caller, and did not run or did not finish."""

    code = "EXECUTION_ERROR"  # the session lives on


class SlowReader(UsageError):
    """The client does not read its replies, so its connection was closed."""


class TaskTaken(UsageError):
    """A task that another client has, or that is done in this epoch, was taken or given back."""


class JournalInUse(UsageError):
    """The journal belongs to another running sampler; each shard needs its own journal."""


class JournalMismatch(UsageError):
    """The journal of a sampler is of another split, size, seed or shard, or is not a journal."""


class JournalFailed(OpenEnvError, OSError):
    """A run cannot be recorded: its disk is full, or its files cannot be written. It goes on when it can be."""


class PolicyFailed(UsageError):
    """The policy of an evaluation raised, or chose an invalid action; the message names the place."""


class UnmappableSpace(UsageError):
    """No Gymnasium space matches a schema; the message names the place in the schema."""


class ConcurrencyConfigurationError(UsageError):
    """More than one session was asked for an environment that does not support it."""

    environment_name: str = ""
    max_concurrent_envs: int = 0

    def __init__(self, environment_name: str, max_concurrent_envs: int, message: str | None = None):
        super().__init__(
            message
            or f"{environment_name} does not support concurrent sessions, but {max_concurrent_envs} were asked for: "
            "set SUPPORTS_CONCURRENT_SESSIONS = True on the class if its instances share nothing, "
            "or serve it with --isolation process, or with a limit of 1",
            data={"environment_name": environment_name, "max_concurrent_envs": max_concurrent_envs},
        )


class CapacityError(OpenEnvError, RuntimeError):
    """No capacity now; retry later (after `retry_after_s`, if it is known)."""

    code = "CAPACITY_REACHED"
    retryable = True


class ServerFull(CapacityError):
    """Every session slot is taken."""

    active_sessions: int = 0
    max_sessions: int = 0

    def __init__(
        self,
        active_sessions: int,
        max_sessions: int,
        message: str | None = None,
        *,
        retry_after_s: float | None = None,
    ):
        super().__init__(
            message
            or f"the server is full: {active_sessions} of {max_sessions} sessions are open; "
            "retry later or raise --max-sessions (OPENENV_MAX_SESSIONS)",
            retry_after_s=retry_after_s,
            data={"active_sessions": active_sessions, "max_sessions": max_sessions},
        )


class QueueTimeout(ServerFull):
    """No slot came free within `queue_timeout_s`."""


class Draining(CapacityError):
    """The server is stopping and opens no new session."""


class TooManyCalls(CapacityError):
    """More calls wait for their turn than a session or connection may have; take replies before sending more."""

    code = "EXECUTION_ERROR"  # the session lives on: v1 clients take CAPACITY_REACHED for its end


class EnvironmentFailed(OpenEnvError, RuntimeError):
    """The environment's own code failed."""

    code = "EXECUTION_ERROR"
    blame: Blame = "environment"


class SessionCreationError(EnvironmentFailed):
    """A session could not be made, for a `reason`."""

    reason: str = ""

    def __init__(self, reason: str, message: str | None = None):
        super().__init__(message or f"the session could not be made: {reason}", data={"reason": reason})


class FactoryFailed(SessionCreationError):
    """The environment's constructor raised."""

    code = "FACTORY_ERROR"
    factory_name: str = ""

    def __init__(self, factory_name: str, message: str | None = None):
        super(SessionCreationError, self).__init__(
            message or f"{factory_name} could not create an environment", data={"factory_name": factory_name}
        )


class StepFailed(EnvironmentFailed):
    """`reset`, `step` or `state` raised, or returned a value that cannot be sent."""


class RubricFailed(StepFailed):
    """A rubric gave an invalid score, so the step has no reward; the message names the rubric."""


class JudgeFailed(RubricFailed):
    """A judge gave no score: it was late, could not be reached, or its answer contains none.

    Not retryable as a step: the action was executed before it was judged.
    """

    blame = "infrastructure"


class AgentFailed(EnvironmentFailed):
    """An agent program did nothing that can be scored: it never called its model, or got no answer from it."""


class NotForkable(EnvironmentFailed):
    """The state of an environment cannot be copied; the message says what its class must implement."""


class ToolFailed(EnvironmentFailed):
    """A tool gave no result; the episode continues, and the model may see the error.

    Attributes:
        tool_name: The tool.
        error_type: Why: `execution_error`, `invalid_args`, `tool_not_found`, `timeout` or `transport_error`.
    """

    tool_name: str = ""
    error_type: str = "execution_error"

    def __init__(self, tool_name: str, error_type: str, message: str):
        super().__init__(message, data={"tool_name": tool_name, "error_type": error_type})
        if error_type in {"invalid_args", "tool_not_found"}:
            self.blame = "client"


class StepTimeout(EnvironmentFailed, TimeoutError):
    """A call did not end within its deadline; it may still take effect."""

    retryable = False


class EnvironmentCrashed(EnvironmentFailed):
    """The process of an environment ended; `reset()` starts a new one.

    Attributes:
        exit_code: Its exit code, if no signal ended it.
        signal: The name of the signal that ended it.
        stderr: The end of its stderr, at most 4 KiB.
    """

    exit_code: int | None = None
    signal: str | None = None
    stderr: str = ""

    def __init__(self, message: str, *, exit_code: int | None = None, signal: str | None = None, stderr: str = ""):
        super().__init__(message, data={"exit_code": exit_code, "signal": signal, "stderr": stderr})


class ConnectionFailed(OpenEnvError, ConnectionError):
    """The network between client and server failed."""

    retryable = True


class ConnectTimeout(ConnectionFailed, TimeoutError):
    """No connection within `connect_timeout_s`."""


class ConnectionLost(ConnectionFailed):
    """The connection ended while a reply was awaited; the call may or may not have been executed."""


class ProtocolViolation(ConnectionFailed):
    """The other side sent a message that the protocol does not allow."""

    retryable = False


class SessionLost(ConnectionFailed):
    """The session is gone, and its episode with it; `reset()` starts a new one."""

    retryable = False


class ProviderFailed(OpenEnvError, RuntimeError):
    """A provider failed: the engine, cluster or service that runs servers."""


class NotReady(ProviderFailed):
    """A server did not become ready within its time."""

    retryable = True


class LaunchFailed(ProviderFailed):
    """A process, container or job did not start; the message carries the tail of its log."""


class ProviderBusy(LaunchFailed):
    """A provider cannot start a server now: too many requests, no capacity, or an internal failure."""

    retryable = True


class MissingExtra(ProviderFailed, ImportError):
    """An optional dependency is not installed; the message names the extra to install, or else the package."""

    blame = "client"

    def __init__(self, package: str, extra: str | None):
        wanted = package if extra is None else f"'openenv[{extra}]'"
        super().__init__(f"{package} is not installed: pip install {wanted}")


class ModelFailed(OpenEnvError, RuntimeError):
    """The server of a language model refused a request, or its answer cannot be read.

    Attributes:
        status: The HTTP status, if there was an answer.
    """

    status: int | None = None

    def __init__(self, message: str = "", *, status: int | None = None, retry_after_s: float | None = None):
        super().__init__(message, retry_after_s=retry_after_s, data={"status": status})


class ContextOverflow(ModelFailed):
    """The prompt, with the tokens that may follow it, does not fit into the context of a language model."""

    blame = "client"


class ModelUnavailable(ModelFailed):
    """A language model cannot answer now: no connection, too many requests, or its server's own failure."""

    retryable = True


class ModelTimeout(ModelUnavailable, TimeoutError):
    """A language model did not answer within `timeout_s`."""


SessionCapacityError = ServerFull
"""The name that existing code has for `ServerFull`."""
SessionNotFoundError = UnknownSession
"""The name that existing code has for `UnknownSession`."""
EnvironmentFactoryError = FactoryFailed
"""The name that existing code has for `FactoryFailed`."""

# The classes for codes of v1 peers that name no class.
_BY_CODE: dict[str, type[OpenEnvError]] = {
    cls.code: cls
    for cls in (InvalidMessage, UnknownMessage, InvalidAction, StepFailed, ServerFull, FactoryFailed, SessionLost)
}


def from_wire(data: Mapping[str, Any]) -> OpenEnvError:
    """Builds the error for an error frame.

    Args:
        data: The `data` object of a v1 error frame: `message`, `code`, and perhaps `error` (a class name
            of this module), `retry_after_s`, `active_sessions`, `max_sessions`, `factory_name`, `errors`. An invalid
            `retry_after_s`, and attributes of another type, are ignored.

    Returns:
        An instance of the named class, or of the class for its code. Never raises: a frame with an unknown
        code becomes a plain `OpenEnvError`.
    """
    cls = globals().get(str(data.get("error")))
    if not isinstance(cls, type) or not issubclass(cls, OpenEnvError):
        cls = _BY_CODE.get(str(data.get("code")), OpenEnvError)
    # Keep the sender's message: constructors, which may derive their own, are not called.
    extras = {key: value for key, value in data.items() if key not in _FRAME_KEYS}
    pause = data.get("retry_after_s")
    if not isinstance(pause, (int, float)) or isinstance(pause, bool) or not 0 <= pause < float("inf"):
        pause = None
    error = _blank(cls)
    OpenEnvError.__init__(error, str(data.get("message", "")), retry_after_s=pause, data=extras)
    blame = data.get("blame")
    if blame != error.blame and blame in get_args(Blame):  # instances of some classes differ in it
        error.blame = cast("Blame", blame)
    return error


def _blank(cls: type[OpenEnvError]) -> OpenEnvError:
    """Makes an error without calling its constructor. The largest of its builtin bases must allocate it."""
    return OSError.__new__(cls) if issubclass(cls, OSError) else Exception.__new__(cls)


def _rebuild(cls: type[OpenEnvError], attributes: dict[str, Any]) -> OpenEnvError:
    error = _blank(cls)
    OpenEnvError.__init__(error, attributes.get("message", ""))
    error.__dict__.update(attributes)
    return error


_FRAME_KEYS = frozenset({"message", "code", "error", "blame", "retryable", "retry_after_s"})
# Keys of `data` that are also attributes, and their types; a value of another type stays only in `data`.
_ATTRIBUTES = {
    "active_sessions": int,
    "environment_name": str,
    "error_type": str,
    "exit_code": int,
    "factory_name": str,
    "max_concurrent_envs": int,
    "max_sessions": int,
    "reason": str,
    "session_id": str,
    "signal": str,
    "status": int,
    "stderr": str,
    "tool_name": str,
}
