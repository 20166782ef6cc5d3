"""The client of one session, asynchronous and synchronous, typed and generic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from os import PathLike
from types import new_class
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    overload,
)

from pydantic import TypeAdapter
from typing_extensions import TypeVar as TypeVarWithDefault

from .._introspection import type_arguments
from ..protocol.client import check_outcome
from ..types import ObsT, StateT, StepResult
from .payloads import MISREADINGS, check_seed, dump_action, misread_error, parse_observation, parse_state
from .session_client import SessionClient, SyncSessionClient

ActT = TypeVar("ActT")
T = TypeVar("T")


class EnvClient(SessionClient, Generic[ActT, ObsT, StateT]):
    """Drives one session of an environment, wherever it is served.

    It needs only the types of your environment::

        class CounterEnv(EnvClient[CounterAction, CounterObservation, State]):
            pass

        async with CounterEnv(base_url="http://localhost:8000") as env:
            result = await env.reset(seed=1)
            result = await env.step(CounterAction(by=2))

    `CounterEnv(...).sync()` is the same client for code that does not await. `from_docker_image`, `from_env` and
    `from_hub` start the server as well, and closing their client stops it.

    The first call connects. Concurrent calls are executed one after the other, in order. A lost connection is made
    again, and the call without a reply is repeated under its number, so that it is executed once: callers only notice
    a delay. When the session cannot come back (the server's `resume_window_s` or the call's own time is over, or its
    worker process has died), they get `SessionLost`, and `reset` starts a new one. With a server that cannot resume
    (protocol v1, or a window of 0), the session is lost with the connection.

    Args:
        base_url: `http(s)://` or `ws(s)://` URL of the server, or `host:port`; or a list of equivalent servers:
            each connection goes to the one with the fewest of this process, or to the next if that cannot be reached.
        connect_timeout_s: Seconds for connecting.
        message_timeout_s: Seconds for each call; None waits forever. With protocol v2, the server enforces it
            and stops the work if it can.
        max_message_size_mb: Largest message sent or accepted.
        websocket_ping_interval_s: Seconds of silence before the server is pinged; None or 0 turns it off.
        websocket_ping_timeout_s: Seconds without an answer before the connection counts as lost.
        provider: Runs the server, which stops with this client; without `base_url`, a `RuntimeProvider` that the
            first call starts.
        mode: "simulation", or "production" for a server that lets clients call tools only; None takes
            OPENENV_CLIENT_MODE, or simulation if that is not set.
        headers: HTTP headers for the handshake.
        api_key: API key for the server; None takes that of the provider or of OPENENV_API_KEY, if any.
        strict: Raise errors instead of warnings for a seed that the environment ignores (`SeedIgnored`) and for types
            that do not fit the server's (`SchemaMismatch`).
        wait_s: Seconds that the server may let a new session wait for a free slot, on top of `message_timeout_s`;
            None leaves that to the server. (Protocol v2.)
        record: Folder into which this client records its episodes (docs/recording.md); None for no records.
        app: An app made by `create_app`, to step its environment in this process without a socket.
        env: An `Environment` class, or a `functools.partial` of one: an app of it, stepped in this process.
    """

    _types: tuple[TypeAdapter[Any] | None, TypeAdapter[Any] | None] = (None, None)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        arguments = type_arguments(cls, EnvClient)
        if len(arguments) == 3:
            cls._types = (_adapter(arguments[1]), _adapter(arguments[2]))

    @classmethod
    def _checked_types(cls) -> tuple[Any, Any, Any]:
        arguments = type_arguments(cls, EnvClient)
        action = arguments[0] if len(arguments) == 3 and cls._step_payload is EnvClient._step_payload else None
        # The client may send actions of a subclass of the declared one.
        if any(isinstance(kind, type) and kind.__subclasses__() for kind in get_args(action) or (action,)):
            action = None
        observation, state = cls._types
        return (
            action,
            observation if cls._parse_result is EnvClient._parse_result else None,
            state if cls._parse_state is EnvClient._parse_state else None,
        )

    @classmethod
    def _environment_types(cls) -> tuple[Any, ...]:
        return type_arguments(cls, EnvClient)

    def reset(self, **kwargs: Any) -> Awaitable[StepResult[ObsT]]:
        """Starts an episode.

        Args:
            kwargs: `seed`, `episode_id` and other arguments of the environment's `reset`.

        Raises:
            ServerFull: No slot is free, or none came free in time (`QueueTimeout`).
            Unauthorized: The server needs a valid API key (`api_key`).
            SeedIgnored: With `strict`: the environment ignores the given seed. The episode has begun anyway.
            EnvironmentFailed: The environment could not be made (`FactoryFailed`), or raised (`StepFailed`), or
                did not answer in time (`StepTimeout`).
            ConnectionFailed: The server cannot be reached.
        """
        return self._offered(self._reset_async(kwargs))

    def step(self, action: ActT, *, timeout_s: float | None = None, **kwargs: Any) -> Awaitable[StepResult[ObsT]]:
        """Takes one step.

        Args:
            action: The action.
            timeout_s: Seconds for this call, in place of `message_timeout_s`.
            kwargs: Accepted for existing programs, and ignored: the action has all that a step needs.

        Raises:
            InvalidAction: The server does not accept the action; `error.data["errors"]` says why.
            SessionLost: The session is gone, and its episode with it.
            StepTimeout: It did not end in time. The session depends on where the environment runs: an asynchronous
                one goes on, one on a thread is lost, one in its own process needs a reset.
            EnvironmentFailed, ConnectionFailed: As for `reset`.
        """
        return self._offered(self._step_async(action, timeout_s))

    def state(self) -> Awaitable[StateT]:
        """The episode's state. Raises as `step` does."""
        return self._offered(self._state_async())

    def sync(self) -> SyncEnvClient[ActT, ObsT, StateT]:
        """This client for code that cannot await."""
        return SyncEnvClient(self)

    # Subclasses may override these.

    def _step_payload(self, action: ActT) -> dict[str, Any]:
        """The action as the `data` of a step."""
        return dump_action(action)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ObsT]:
        """A reply to reset or step as a result. A reply has an observation; existing code also passes `{}`."""
        return parse_observation(
            self._types[0], payload if "observation" in payload else {**payload, "observation": {}}
        )

    def _parse_state(self, payload: dict[str, Any]) -> StateT:
        """A reply to state as this client's state."""
        state: StateT = parse_state(self._types[1], payload)
        return state

    # The calls of the session.

    async def _reset_async(self, arguments: dict[str, Any]) -> StepResult[ObsT]:
        session = await self._open("reset", anew=True)
        payload = await session.call("reset", arguments, self._message_timeout_s)
        check_seed(self, arguments, payload)
        check_outcome(payload)
        return _read(self._parse_result, payload)

    async def _step_async(self, action: ActT, timeout_s: float | None = None) -> StepResult[ObsT]:
        session = await self._open("step")
        limit_s = self._message_timeout_s if timeout_s is None else timeout_s
        payload = await session.call("step", self._step_payload(action), limit_s)
        check_outcome(payload)
        return _read(self._parse_result, payload)

    async def _state_async(self) -> StateT:
        session = await self._open("state")
        return _read(self._parse_state, await session.call("state", None, self._message_timeout_s))


def _read(parse: Callable[[dict[str, Any]], T], payload: dict[str, Any]) -> T:
    """Parses a reply. Raises `ProtocolViolation` if the parsing of a subclass fails."""
    try:
        return parse(payload)
    except MISREADINGS as fault:
        raise misread_error(parse, fault) from fault


def _adapter(cls: Any) -> TypeAdapter[Any] | None:
    """None for types with open contents, such as `dict[str, Any]` and Any."""
    return None if cls is Any or (get_origin(cls) or cls) is dict else TypeAdapter(cls)


class GenericAction(dict[str, Any]):
    """An action by its fields: `GenericAction(message="hi")`."""

    def __repr__(self) -> str:
        return f"GenericAction({', '.join(f'{name}={value!r}' for name, value in self.items())})"


class GenericEnvClient(EnvClient[dict[str, Any], dict[str, Any], dict[str, Any]]):
    """Takes actions as mappings (or models) and returns observations and states as dicts.

    The server still validates every action; `GET /schema` has its schema.
    """


class ClientOptions(TypedDict, total=False):
    """The arguments of `EnvClient` except `base_url`."""

    connect_timeout_s: float
    message_timeout_s: float | None
    max_message_size_mb: float
    websocket_ping_interval_s: float | None
    websocket_ping_timeout_s: float | None
    provider: Any
    mode: str | None
    headers: Mapping[str, str] | None
    api_key: str | None
    strict: bool
    wait_s: float | None
    record: str | PathLike[str] | None
    app: Any
    env: Any


# The defaults are for a client without types.
SyncActT = TypeVarWithDefault("SyncActT", default=dict[str, Any])
SyncObsT = TypeVarWithDefault("SyncObsT", default=dict[str, Any])
SyncStateT = TypeVarWithDefault("SyncStateT", default=dict[str, Any])


@lru_cache
def _client_class(name: str, types: tuple[Any, ...]) -> type[EnvClient[Any, Any, Any]]:
    """The client class of an environment's types, cached because the schema check warns once per class."""
    generic: Any = EnvClient
    return new_class(name, (generic[types],))


class SyncEnvClient(
    SyncSessionClient[EnvClient[SyncActT, SyncObsT, SyncStateT]], Generic[SyncActT, SyncObsT, SyncStateT]
):
    """`EnvClient` without `await`, for any thread, also inside a running event loop::

        with SyncEnvClient(base_url="http://localhost:8000") as env:
            result = env.reset(seed=1)
            result = env.step({"by": 2})
            print(result.observation["total"])

    Actions, observations and states are then dicts. With the types of an environment they are its models; a client
    class of the environment has them already, so `CounterEnv(...).sync()` is the same::

        class SyncCounterEnv(SyncEnvClient[CounterAction, CounterObservation, State]):
            pass

    It takes the arguments of `EnvClient`, or only `async_client`, an existing client to drive. Both then share
    one session.

    Raises:
        InvalidArgument: As for `EnvClient`; or other arguments are given with `async_client`.
    """

    _async_class: ClassVar[type[EnvClient[Any, Any, Any]]] = GenericEnvClient

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        arguments = type_arguments(cls, SyncEnvClient)
        if len(arguments) == 3 and "_async_class" not in cls.__dict__:
            cls._async_class = _client_class(cls.__name__, arguments)

    @overload
    def __init__(self, async_client: EnvClient[SyncActT, SyncObsT, SyncStateT]) -> None: ...
    @overload
    def __init__(self, base_url: str | Sequence[str] | None = None, **options: Unpack[ClientOptions]) -> None: ...
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)

    if not TYPE_CHECKING:

        @property
        def __orig_class__(self) -> Any:
            raise AttributeError("__orig_class__")

        @__orig_class__.setter
        def __orig_class__(self, alias: Any) -> None:
            # `typing` sets this when SyncEnvClient[A, O, S](...) has made its instance.
            if type(self._client) is GenericEnvClient:
                self._client.__class__ = _client_class("SyncEnvClient", get_args(alias))

    def reset(self, **kwargs: Any) -> StepResult[SyncObsT]:
        """See `EnvClient.reset`."""
        return self._client.waited(self._client.reset, **kwargs)

    def step(self, action: SyncActT, *, timeout_s: float | None = None, **kwargs: Any) -> StepResult[SyncObsT]:
        """See `EnvClient.step`."""
        if timeout_s is not None:  # a subclass may not take it
            kwargs["timeout_s"] = timeout_s
        return self._client.waited(self._client.step, action, **kwargs)

    def state(self) -> SyncStateT:
        """See `EnvClient.state`."""
        return self._client.waited(self._client.state)
