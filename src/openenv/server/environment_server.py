"""One environment class, ready to be served over any transport."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from .. import __version__
from ..environment import Environment
from ..errors import ConcurrencyConfigurationError
from ..execution import class_of, profile_of
from ..protocol import ServerProtocol
from ..protocol.codec import codec_of
from ..protocol.server_v2 import ServerProtocolV2
from ..sessions import Limits, SessionManager
from ..settings import ServerSettings
from ..types import ConcurrencyConfig, ServerCapacityStatus, State
from .connection import Channel, Connection
from .multi_connection import MultiConnection

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["HTTPEnvServer"]

# For an environment whose instances share nothing: enough for any trainer on one machine.
DEFAULT_MAX_SESSIONS = 20_000
# What may wait for a client that does not read: a batch of large observations passes, what never ends does not.
UNSENT_MESSAGES = 16
LEAST_UNSENT_BYTES = 64 * 1024 * 1024
CAPABILITIES = ("attach", "batch", "cancel")


class HTTPEnvServer:
    """Serves sessions of one environment class.

    Args:
        env: The environment's class, or a function that makes an instance.
        action_cls: What its `step` takes.
        observation_cls: What its `reset` and `step` return.
        max_concurrent_envs: Most sessions at one time. By default 1 for a class that does not declare
            `SUPPORTS_CONCURRENT_SESSIONS`, and plenty for one that does.
        concurrency_config: The same, with the limit of idle time; one of the two.
        env_name: Name to list it by; by default the class's.
        state_cls: What its `state` is, for the schema.
        reset_observation_cls: What its `reset` returns, if that differs from `observation_cls`.
        settings: Read from the process's environment if None.

    Raises:
        TypeError: `env` is an instance.
        ValueError: Both `max_concurrent_envs` and `concurrency_config` were given.
        ConcurrencyConfigurationError: More than one session for a class that does not support it.
        UsageError: A setting, or the class's `execution`, is not valid.

    Attributes:
        worker_key: What this process is called by clients that must reach it again; set by the supervisor.
        redirect: Hands a connection that names another process to that one, given its key, a duplicate of the
            socket, and what was read from it; False if there is no such process. Set by the supervisor.
    """

    worker_key: str | None = None
    redirect: Callable[[str, socket.socket, bytes], bool] | None = None

    def __init__(
        self,
        env: Callable[[], Any],
        action_cls: Any,
        observation_cls: Any,
        max_concurrent_envs: int | None = None,
        concurrency_config: ConcurrencyConfig | None = None,
        env_name: str | None = None,
        state_cls: Any = State,
        *,
        reset_observation_cls: Any = None,
        settings: ServerSettings | None = None,
    ):
        if isinstance(env, Environment) or not callable(env):
            raise TypeError(
                f"env is an instance of {type(env).__name__}: pass the class or a function that makes one, "
                "since every session gets an environment of its own"
            )
        if max_concurrent_envs is not None and concurrency_config is not None:
            raise ValueError("give max_concurrent_envs or concurrency_config, not both")
        self.settings = settings or ServerSettings.read()
        self._env_factory = env
        self.action_cls = action_cls
        self.observation_cls = observation_cls
        self.reset_observation_cls = reset_observation_cls or observation_cls
        self.state_cls = state_cls
        self.protocol = ServerProtocol(action_cls)
        if concurrency_config is not None:
            max_concurrent_envs = concurrency_config.max_concurrent_envs
        idle = concurrency_config.session_timeout if concurrency_config else None
        limits = Limits(
            max_sessions=self._max_sessions(max_concurrent_envs),
            queue_timeout_s=self.settings.queue_timeout_s,
            idle_timeout_s=idle or self.settings.idle_timeout_s,
        )
        self.manager = SessionManager(env, limits)
        self.env_name = env_name or self.manager.factory_name
        self._protocols: dict[str, ServerProtocolV2] = {}
        self._connections: set[MultiConnection] = set()

    @property
    def env_factory(self) -> Callable[[], Any]:
        """What makes an environment; subclasses that exist already read it as `_env_factory`."""
        return self._env_factory

    @property
    def active_sessions(self) -> int:
        """Sessions that hold a slot now."""
        return self.manager.active

    @property
    def max_concurrent_envs(self) -> int:
        """Most sessions at one time."""
        return self.manager.limits.max_sessions

    @property
    def is_concurrency_safe(self) -> bool:
        """Whether the environment's class says that many instances may live in one process."""
        cls = class_of(self._env_factory)
        return cls is not None and profile_of(cls).concurrent

    @property
    def concurrency_config(self) -> ConcurrencyConfig:
        limits = self.manager.limits
        return ConcurrencyConfig(max_concurrent_envs=limits.max_sessions, session_timeout=limits.idle_timeout_s)

    @cached_property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """JSON Schemas by name: what `GET /schema` answers."""
        parts = {
            "action": self.action_cls,
            "observation": self.observation_cls,
            "state": self.state_cls,
            "reset_observation": self.reset_observation_cls,
        }
        return {name: TypeAdapter(part).json_schema() for name, part in parts.items()}

    def get_capacity_status(self) -> ServerCapacityStatus:
        """How full the server is."""
        return ServerCapacityStatus(active_sessions=self.active_sessions, max_sessions=self.max_concurrent_envs)

    @property
    def max_unsent_bytes(self) -> int:
        """Most bytes that wait for a client which does not read."""
        return max(UNSENT_MESSAGES * self.settings.max_message_bytes, LEAST_UNSENT_BYTES)

    def connect(self, channel: Channel, subprotocol: str | None = None) -> Connection | MultiConnection:
        """Opens a conversation over any transport: WebSocket, fast path, in process.

        Args:
            channel: The way to the client.
            subprotocol: What was negotiated (`openenv.protocol.negotiation`); None: v1.

        Raises:
            UsageError: The server has sessions on another event loop.
        """
        settings = self.settings
        if subprotocol is None:
            return Connection(
                self.manager, self.protocol, channel, settings.max_in_flight, settings.max_message_bytes
            )
        protocol = self._protocols.get(subprotocol)
        if protocol is None:
            protocol = ServerProtocolV2(self.action_cls, codec_of(subprotocol), settings.max_batch)
            self._protocols[subprotocol] = protocol
        ended = self._connections.discard
        connection = MultiConnection(self.manager, protocol, channel, settings, self._hello(), ended)
        self._connections.add(connection)
        return connection

    def drain(self, grace_s: float) -> None:
        """Opens no further session, and tells the clients that those they have end after `grace_s` seconds."""
        self.manager.drain()
        for connection in list(self._connections):
            connection.announce(grace_s)

    def register_routes(self, app: FastAPI) -> None:
        """Adds this server's routes to an app, which then serves this environment and no other."""
        from .routes import register

        app.state.openenv = self
        register(app)

    async def aclose(self) -> None:
        """Closes every session and waits until their environments are closed."""
        await self.manager.aclose()

    def _hello(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "protocol": 2,
            "server": __version__,
            "environment": self.env_name,
            "limits": {
                "max_message_bytes": settings.max_message_bytes,
                "max_sessions": self.max_concurrent_envs,
                "max_in_flight": settings.max_in_flight,
                "max_batch": settings.max_batch,
            },
            "heartbeat_s": settings.ping_interval_s or None,
            "resume_window_s": 0,
            "capabilities": CAPABILITIES,
            "worker": self.worker_key,
        }

    def _max_sessions(self, given: int | None) -> int:
        cls = class_of(self._env_factory)
        concurrent = None if cls is None else profile_of(cls).concurrent
        chosen = self.settings.max_sessions or given or self.settings.max_concurrent_envs
        if chosen is None:
            return DEFAULT_MAX_SESSIONS if concurrent else 1
        if chosen > 1 and concurrent is False:
            assert cls is not None
            raise ConcurrencyConfigurationError(cls.__name__, chosen)
        return chosen
