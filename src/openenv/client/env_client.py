"""The client of one session, asynchronous and synchronous, typed and generic."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import lru_cache, partial, wraps
from os import PathLike
from types import new_class
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    get_origin,
    overload,
)

from pydantic import TypeAdapter
from typing_extensions import TypeVar as TypeVarWithDefault

from .._exceptions import add_cleanup_note, undo_async_on_error, undo_on_error
from .._introspection import type_arguments
from ..errors import InvalidArgument, UsageError
from ..protocol.client import check_outcome
from ..recording import check_folder
from ..settings import ClientSettings
from ..types import ObsT, StateT, StepResult
from . import websocket
from .base import BaseClient, key_of, managed_server_of
from .endpoints import headers_of
from .payloads import MISREADINGS, check_seed, dump_action, misread_error, parse_observation, parse_state
from .tasks import SyncTasks, Tasks, tasks_of


class LaunchMixin:
    """The class methods that start a server for a client."""

    @classmethod
    def from_docker_image(cls, image: str, provider: Any = None, **kwargs: Any) -> Self:
        """Starts a container for a client; closing the client stops it.

        `SyncEnvClient` starts it before this returns. `EnvClient` does so where no event loop runs. In a running
        event loop, await what this returns, or enter it by `async with`; `.sync()` and `with` block there.

        Args:
            image: Name of the image.
            provider: A `ContainerProvider`; None takes Docker on this machine, its swarm with `replicas`.
            kwargs: Arguments of this class; `ready_timeout_s`, the seconds that the server has to become ready; all
                others (`port`, `env_vars`, ...) go to the provider.

        Raises:
            LaunchFailed: The container did not start; with the end of its log.
            NotReady: It was not ready in time.
            MissingExtra: The provider needs a package that is not installed.
        """
        return cls._launched("from_docker_image", image, provider, **kwargs)

    @classmethod
    def from_env(cls, repo_id: str, use_docker: bool = True, provider: Any = None, **kwargs: Any) -> Self:
        """A client of an environment that is published on the Hub, served on this machine. See `from_docker_image`.

        Args:
            repo_id: Its name there, `owner/name`.
            use_docker: Whether it runs in its container; False: uv installs and runs it.
            provider: Runs it; None takes Docker or uv.
            kwargs: As for `from_docker_image`; `tag` is the image's, `latest` by default.
        """
        return cls._launched("from_env", repo_id, use_docker, provider, **kwargs)

    @classmethod
    def from_hub(cls, repo_id: str, provider: Any = None, replicas: int | None = None, **kwargs: Any) -> Self:
        """A client of an environment that is published on the Hub, in its container. See `from_docker_image`.

        Args:
            repo_id: Its name there, `owner/name`.
            provider: A `ContainerProvider`; None takes Docker on this machine, its swarm with `replicas`.
            replicas: How many containers share the sessions.
            kwargs: As for `from_env`.
        """
        return cls._launched("from_hub", repo_id, provider, replicas, **kwargs)

    @classmethod
    def _launched(cls, function: str, *args: Any, **kwargs: Any) -> Self:
        """Calls a function of `openenv.providers` with this class."""
        return cast("Self", getattr(launch(), function)(cls, *args, **kwargs))


def launch() -> Any:
    """The package `openenv.providers`, imported by name since it is in a higher layer."""
    return importlib.import_module("openenv.providers")


ActT = TypeVar("ActT")
T = TypeVar("T")


class EnvClient(BaseClient, LaunchMixin, Generic[ActT, ObsT, StateT]):
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
        """Types of action, observation and state to compare; None if a subclass overrides the hook."""
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

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float | None = 60.0,
        max_message_size_mb: float = 100.0,
        websocket_ping_interval_s: float | None = 20.0,
        websocket_ping_timeout_s: float | None = 20.0,
        provider: Any = None,
        mode: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        api_key: str | None = None,
        strict: bool = False,
        wait_s: float | None = None,
        record: str | PathLike[str] | None = None,
        app: Any = None,
        env: Any = None,
    ):
        if [base_url is not None or provider is not None, app is not None, env is not None].count(True) != 1:
            raise InvalidArgument(
                f"{type(self).__name__} needs one of base_url='http://host:port', env=MyEnvironment or "
                "app=create_app(...)"
            )
        if env is not None:
            app = launch().app_in_process(env, type_arguments(type(self), EnvClient))
        settings = ClientSettings.read(mode=mode)
        self._client_mode = settings.mode
        self._set_servers(base_url)
        self._managed_server = None if provider is None else managed_server_of(provider, base_url)
        self._app = app
        self._message_timeout_s = message_timeout_s
        self._headers_with = partial(headers_of, headers or {}, api_key)
        self._options = websocket.WebSocketOptions(
            connect_timeout_s=connect_timeout_s,
            max_message_bytes=int(max_message_size_mb * 1024 * 1024),
            ping_interval_s=websocket_ping_interval_s,
            ping_timeout_s=websocket_ping_timeout_s,
            headers=self._headers_with(key_of(provider) or settings.api_key),
        )
        self._strict = strict
        self._wait_s = wait_s
        self._record = None if record is None else check_folder(record)
        self._begin()

    @property
    def base_url(self) -> str | None:
        """The server's address as given, without a trailing slash; the first of several. None for an app, or before
        its start."""
        return self._base_url

    # Existing code calls these without await: they block without a running event loop, and inside `with`.

    def connect(self) -> Awaitable[Self]:
        """Connects now instead of with the first call.

        Raises:
            ConnectionFailed: No server answers, or not in time (`ConnectTimeout`).
            SchemaMismatch: With `strict`: the types of this class do not fit the server's.
        """
        return self._offered(self._connect_async())

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

    def fork(self, wait_s: float | None = None) -> Awaitable[Self]:
        """Another client with a copy of this session: the same episode, which goes on independently.

        It takes a slot of the server and its own connection; close it separately. This session does not change;
        its calls wait until the fork exists. Needs protocol v2.

        Args:
            wait_s: Seconds that it may wait for a free slot; None leaves that to the server.

        Raises:
            NotForkable: The state of this environment cannot be copied; the message says what its class needs.
            CapacityError: No slot is free, or none came free in time.
            UsageError: The server cannot fork.
            SessionLost, ConnectionFailed: As for `step`.
        """
        return self._offered(self._fork_async(wait_s, self._message_timeout_s))

    def restore(self, source: EnvClient[ActT, ObsT, StateT] | SyncEnvClient[ActT, ObsT, StateT]) -> Awaitable[None]:
        """Replaces this session's state with a copy of another session's.

        Args:
            source: A fork of this client's session, the one that it was forked from, or another fork of that, on the
                same worker process. Its calls should have ended; the server waits for one that has arrived.

        Raises:
            NotForkable: The state of that environment cannot be copied.
            UsageError: `source` has no session, is this client, or is on another server or worker process.
            SessionLost, ConnectionFailed, StepTimeout: As for `step`.
        """
        other = source.async_client if isinstance(source, SyncEnvClient) else source
        return self._offered(self._restore_async(other, self._message_timeout_s))

    def tasks(self, split: str | None = None) -> Awaitable[Tasks]:
        """The tasks to train or test on: `len(tasks)`, `tasks[3]`, `tasks[10:20]`, `tasks.splits()`.

        `reset(split=tasks.split, index=3)` begins an episode of one, if the environment takes these arguments.

        Args:
            split: Name of the split; None takes `train`, else the first.

        Raises:
            UsageError: There is no such split, or the environment has no tasks.
            EnvironmentFailed, ConnectionFailed: As for `step`.
        """
        return self._offered(tasks_of(self, split, self._message_timeout_s))

    def close(self) -> Awaitable[None]:
        """Ends the session and the connection, those of `new_session`, and the server if a provider runs it.

        May be called repeatedly; a later `reset` connects anew, unless the server was stopped.
        """
        return self._offered(self._close())

    def disconnect(self) -> Awaitable[None]:
        """Ends only the session and the connection; a later `reset` connects anew."""
        return self._offered(self._disconnect_async())

    def new_session(self) -> Awaitable[Self]:
        """Another client of the same server, connected, with a session of its own. It is closed with this one."""
        return self._offered(self._new_session_async())

    def sync(self) -> SyncEnvClient[ActT, ObsT, StateT]:
        """This client for code that cannot await."""
        return SyncEnvClient(self)

    def __await__(self) -> Generator[Any, None, Self]:
        """Connects, as `connect` does: `env = await MyEnv(...)`."""
        return self._routed(self._connect_async()).__await__()

    async def __aenter__(self) -> Self:
        async with undo_async_on_error(self.close):  # `__aexit__` will not be called, and the server would run on
            await self.connect()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, *__: object) -> None:
        with add_cleanup_note(error):
            await self.close()

    def __enter__(self) -> Self:
        with undo_on_error(lambda: self.waited(self.close)):
            self.waited(self.connect)
        self._blocking = True
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self._blocking = False
        with add_cleanup_note(error):
            self.waited(self.close)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the connection, for a copy in another process.

        Raises:
            UsageError: It is connected, or its server belongs to this process.
        """
        name = type(self).__name__
        if self._held is not None and self._held.error is None:
            raise UsageError(f"this {name} is connected, and its session stays here: close() it before it is pickled")
        if self._managed_server is not None or self._app is not None:
            raise UsageError(
                f"the server of this {name} belongs to this process: "
                f"pickle functools.partial({name}, base_url=...) in its place"
            )
        return self._copied()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

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


class SyncEnvClient(LaunchMixin, Generic[SyncActT, SyncObsT, SyncStateT]):
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
        client = options.pop("async_client", args[0] if args else None)
        if not isinstance(client, EnvClient):
            client = self._async_class(*args, **options)
        elif options:
            raise InvalidArgument(f"{', '.join(options)}: the client that is given has arguments of its own")
        self._client: EnvClient[SyncActT, SyncObsT, SyncStateT] = client

    if not TYPE_CHECKING:

        @property
        def __orig_class__(self) -> Any:
            raise AttributeError("__orig_class__")

        @__orig_class__.setter
        def __orig_class__(self, alias: Any) -> None:
            # `typing` sets this when SyncEnvClient[A, O, S](...) has made its instance.
            if type(self._client) is GenericEnvClient:
                self._client.__class__ = _client_class("SyncEnvClient", get_args(alias))

    @property
    def async_client(self) -> EnvClient[SyncActT, SyncObsT, SyncStateT]:
        """The wrapped client."""
        return self._client

    def connect(self) -> Self:
        """See `EnvClient.connect`."""
        self._client.waited(self._client.connect)
        return self

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

    def close(self) -> None:
        """See `EnvClient.close`."""
        self._client.waited(self._client.close)

    def disconnect(self) -> None:
        """See `EnvClient.disconnect`."""
        self._client.waited(self._client.disconnect)

    def new_session(self) -> Self:
        """See `EnvClient.new_session`."""
        return type(self)(self._client.waited(self._client.new_session))

    def fork(self, wait_s: float | None = None) -> Self:
        """See `EnvClient.fork`."""
        return type(self)(self._client.waited(self._client.fork, wait_s))

    def restore(
        self, source: EnvClient[SyncActT, SyncObsT, SyncStateT] | SyncEnvClient[SyncActT, SyncObsT, SyncStateT]
    ) -> None:
        """See `EnvClient.restore`."""
        self._client.waited(self._client.restore, source)

    def tasks(self, split: str | None = None) -> SyncTasks:
        """See `EnvClient.tasks`; its methods block."""
        return SyncTasks(self._client.waited(self._client.tasks, split))

    @property
    def base_url(self) -> str | None:
        """See `EnvClient.base_url`."""
        return self._client.base_url

    @classmethod
    def _launched(cls, function: str, *args: Any, **kwargs: Any) -> Self:
        return cls(getattr(launch(), function)(cls._async_class, *args, **kwargs).sync().async_client)

    def __getattr__(self, name: str) -> Any:
        """The attributes of the client's subclass; its methods block."""
        if name == "_client" or name.startswith("__"):  # read on a copy that is still empty
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self._client, name)
        if not (inspect.ismethod(found) or inspect.iscoroutinefunction(found)):
            return found

        @wraps(found)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            return self._client.settled(found(*args, **kwargs))

        return blocking

    def __enter__(self) -> Self:
        with undo_on_error(self.close):  # as in `EnvClient.__aenter__`
            return self.connect()

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        with add_cleanup_note(error):
            self.close()
