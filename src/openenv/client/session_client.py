"""The base of the clients of one session: how they connect, fork and close, asynchronous and synchronous."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Generator, Mapping, Sequence
from functools import partial, wraps
from os import PathLike
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from .._exceptions import add_cleanup_note, undo_async_on_error, undo_on_error
from ..errors import InvalidArgument, UsageError
from ..recording import check_folder
from ..settings import ClientSettings
from . import websocket
from .base import BaseClient, key_of, managed_server_of
from .endpoints import headers_of
from .tasks import SyncTasks, Tasks, tasks_of

__all__ = ["SessionClient", "SyncSessionClient"]


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


class SessionClient(BaseClient, LaunchMixin):
    """A client of one session. A subclass has the calls; its arguments are those of `EnvClient`."""

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
            app = launch().app_in_process(env, self._environment_types())
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

    @classmethod
    def _environment_types(cls) -> tuple[Any, ...]:
        """The types of action, observation and state that the class declares, if it does."""
        return ()

    @classmethod
    def _checked_types(cls) -> tuple[Any, Any, Any]:
        """Those to compare with the server's; None for one that is not compared."""
        return None, None, None

    # Existing code calls these without await: they block without a running event loop, and inside `with`.

    def connect(self) -> Awaitable[Self]:
        """Connects now instead of with the first call.

        Raises:
            ConnectionFailed: No server answers, or not in time (`ConnectTimeout`).
            SchemaMismatch: With `strict`: the types of this class do not fit the server's.
        """
        return self._offered(self._connect_async())

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

    def restore(self, source: SessionClient | SyncSessionClient[Any]) -> Awaitable[None]:
        """Replaces this session's state with a copy of another session's.

        Args:
            source: A fork of this client's session, the one that it was forked from, or another fork of that, on the
                same worker process. Its calls should have ended; the server waits for one that has arrived.

        Raises:
            NotForkable: The state of that environment cannot be copied.
            UsageError: `source` has no session, is this client, or is on another server or worker process.
            SessionLost, ConnectionFailed, StepTimeout: As for `step`.
        """
        other = source.async_client if isinstance(source, SyncSessionClient) else source
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


ClientT = TypeVar("ClientT", bound=SessionClient)


class SyncSessionClient(LaunchMixin, Generic[ClientT]):
    """A client of one session for code that does not await. It takes an asynchronous client, or the arguments of one.

    Raises:
        InvalidArgument: As for the asynchronous client; or other arguments are given with `async_client`.
    """

    _async_class: ClassVar[type[SessionClient]]

    def __init__(self, *args: Any, **options: Any) -> None:
        client = options.pop("async_client", args[0] if args else None)
        if not isinstance(client, SessionClient):
            client = self._async_class(*args, **options)
        elif options:
            raise InvalidArgument(f"{', '.join(options)}: the client that is given has arguments of its own")
        self._client = cast("ClientT", client)

    @property
    def async_client(self) -> ClientT:
        """The wrapped client."""
        return self._client

    def connect(self) -> Self:
        """See `SessionClient.connect`."""
        self._client.waited(self._client.connect)
        return self

    def close(self) -> None:
        """See `SessionClient.close`."""
        self._client.waited(self._client.close)

    def disconnect(self) -> None:
        """See `SessionClient.disconnect`."""
        self._client.waited(self._client.disconnect)

    def new_session(self) -> Self:
        """See `SessionClient.new_session`."""
        return type(self)(self._client.waited(self._client.new_session))

    def fork(self, wait_s: float | None = None) -> Self:
        """See `SessionClient.fork`."""
        return type(self)(self._client.waited(self._client.fork, wait_s))

    def restore(self, source: SessionClient | SyncSessionClient[Any]) -> None:
        """See `SessionClient.restore`."""
        self._client.waited(self._client.restore, source)

    def tasks(self, split: str | None = None) -> SyncTasks:
        """See `SessionClient.tasks`; its methods block."""
        return SyncTasks(self._client.waited(self._client.tasks, split))

    @property
    def base_url(self) -> str | None:
        """See `SessionClient.base_url`."""
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
        with undo_on_error(self.close):  # as in `SessionClient.__aenter__`
            return self.connect()

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        with add_cleanup_note(error):
            self.close()
