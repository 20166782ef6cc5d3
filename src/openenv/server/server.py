"""The server of one environment class, for any transport: its sessions, limits, records and connections."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from .. import __version__
from .._asyncio import on_thread
from .._shared_memory import SharedSegment, digest_of
from ..batched import BatchedEnvironment
from ..environment import Environment
from ..errors import ConcurrencyConfigurationError, InvalidAction, InvalidArgument
from ..protocol.codecs import codec_of
from ..protocol.contract import Contract, contract_of
from ..protocol.json_schema import schema_of
from ..protocol.server import ActionReader, ServerProtocol, ServerProtocolV2
from ..recording import Recorder, RecordingLimits, Subject
from ..runtime.admission import Limits
from ..runtime.manager import SessionManager
from ..runtime.process import ProcessPool
from ..runtime.profile import Execution, class_of, profile_of
from ..settings import ServerSettings
from ..telemetry import tracing
from ..telemetry.metrics import METER
from ..types import ConcurrencyConfig, ServerCapacityStatus, SessionInfo, State
from .auth import ANONYMOUS, Authenticator, Principal
from .mcp_methods import action_type_of, factory_of
from .metadata import EnvironmentInfoLoader, describes_itself, description_of
from .shared_sessions import SharedSessions
from .timers import Deadlines, Keepalive, MemoryRelease
from .v1 import Channel, V1Connection
from .v2 import V2Connection

if TYPE_CHECKING:
    from ..runtime.columns import BatchSpec

_MIB = 1024 * 1024


def recorder_of(server: EnvironmentServer) -> Recorder | None:
    """The recorder of a server's sessions; None if the settings turn recording off.

    Raises:
        InvalidArgument: The folder is not writable.
    """
    settings, most = server.settings, server.settings.record_max_mb
    if settings.record is None:
        return None
    limits = RecordingLimits(
        share=settings.record_share,
        file_bytes=int(settings.record_file_mb * _MIB),
        folder_bytes=None if most is None else int(most * _MIB),
    )
    recorder = Recorder(settings.record, limits, METER)
    # Without an instance, the version is known only if the class does not override `get_metadata`.
    cls = class_of(server.env_factory)
    version = None if cls is None or describes_itself(cls) else description_of(cls).version
    server.manager.tap_factory = recorder.tap_factory(Subject(server.env_name, version, server.contract.hash))
    return recorder


def check_factory(env: Any) -> None:
    """Raises `TypeError` for an instance or a value that is not callable: each session needs its own environment."""
    if isinstance(env, Environment) or not callable(env):
        raise TypeError(
            f"env is an instance of {type(env).__name__}: pass the class or a function that makes one, "
            "because every session gets its own environment"
        )


# The limit for environments that support concurrent sessions: enough for any trainer on one machine.
DEFAULT_MAX_SESSIONS = 20_000
CAPABILITIES = ("attach", "batch", "call", "cancel", "deadline", "fork", "mcp", "resume", "tasks")


class EnvironmentServer:
    """Serves sessions of one environment class.

    Args:
        env: The environment's class, or a function that makes an instance.
        action_cls: The type that its `step` takes.
        observation_cls: The type that its `reset` and `step` return.
        max_concurrent_envs: Most concurrent sessions, the `max_sessions` of `create_app`. By default 1 for a class
            that does not declare `SUPPORTS_CONCURRENT_SESSIONS`, and `DEFAULT_MAX_SESSIONS` for one that does.
        concurrency_config: The same limit together with an idle timeout; give only one of the two arguments.
        env_name: The environment's name for clients; by default the name of the class.
        state_cls: The type of its `state`, for the schema.
        reset_observation_cls: The type that its `reset` returns, if that differs from `observation_cls`.
        settings: The settings; by default read from environment variables.

    Raises:
        TypeError: `env` is an instance.
        ValueError: Both `max_concurrent_envs` and `concurrency_config` were given, or a limit is below 1.
        ConcurrencyConfigurationError: More than one session for a class that does not support it.
        UsageError: A setting or the class's `execution` is invalid, or the folder for records is not writable.
        MissingExtra: `tracing` is set, and the extra `otel` is not installed.

    Attributes:
        env_factory: Makes an environment.
        batch: The fields of a `BatchedEnvironment`; None for another environment.
        action_type: The actions that clients may send: `action_cls`, and tool actions if there are tools.
        authenticator: Decides which requests may use the server.
        shared_sessions: The sessions that are used over HTTP.
        report: Lists the sessions of all worker processes, for `GET /sessions`; None for a single process.
        recorder: Records sessions; None if recording is off.
        connections: The open connections of v2.
        deadlines: Watches the deadlines of their calls.
        app_keepalive: Watches clients that promised a message in every period.
        memory_release: Returns memory to the system after clients that did not read.
        worker_key: The name of this process for clients that must reach it again; set by the supervisor.
        warns_about_keys: Whether this process warns about missing and short keys; of many workers, one does.
        redirect: Hands a connection that names another process to that one, given its key, a duplicate of the
            socket, and the bytes read from it. Returns False if that process does not exist. Set by the supervisor.
        serving: Whether the server as a whole takes sessions; set by the supervisor.
    """

    worker_key: str | None = None
    warns_about_keys: bool = True
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
        check_factory(env)
        if max_concurrent_envs is not None and concurrency_config is not None:
            raise ValueError("give max_concurrent_envs or concurrency_config, not both")
        if max_concurrent_envs is not None and max_concurrent_envs < 1:
            raise InvalidArgument(f"max_concurrent_envs is {max_concurrent_envs}: it must be at least 1")
        self.settings = settings or ServerSettings.read()
        if self.settings.metrics:
            METER.start()
        self._trails = tracing.start() if self.settings.tracing else None
        self.env_factory = env
        self.action_cls = action_cls
        self.observation_cls = observation_cls
        self.reset_observation_cls = reset_observation_cls or observation_cls
        self.state_cls = state_cls
        self.action_type = action_type_of(env, action_cls)
        self.protocol = ServerProtocol(self.action_type)
        limits = self._limits(max_concurrent_envs, concurrency_config)
        factory = factory_of(env, self.settings.mode)
        self.batch: BatchSpec | None = None
        cls = class_of(self.env_factory)
        if cls is not None and issubclass(cls, BatchedEnvironment):
            from ..runtime.batch import batch_spec_of  # noqa: PLC0415 - only batches need numpy

            self.batch = batch_spec_of(cls, self.action_cls, self.observation_cls)
        pool = ProcessPool(factory, self.settings) if self._isolated else None
        self.manager = SessionManager(factory, limits, pool, self.batch)
        self.env_name = env_name or self.manager.maker.name
        self.recorder = recorder_of(self)
        self._protocols: dict[str, ServerProtocolV2] = {}
        self.connections: set[V2Connection] = set()
        self.deadlines = Deadlines()
        self.authenticator = Authenticator(self.settings, time.monotonic)
        self.report: Callable[[], Awaitable[list[dict[str, Any]]]] | None = None
        self.serving: Callable[[], bool] = lambda: not self.manager.draining
        self.app_keepalive = Keepalive.of_app(self.settings.heartbeat_s)
        self.memory_release = MemoryRelease()
        self.shared_sessions = SharedSessions(self.manager, lambda: self.worker_key, self.settings.max_in_flight)

    @property
    def _env_factory(self) -> Callable[[], Any]:
        """`env_factory` under the name that existing subclasses read and replace."""
        return self.env_factory

    @_env_factory.setter
    def _env_factory(self, factory: Callable[[], Any]) -> None:
        self.manager.maker.replace(factory_of(factory, self.settings.mode))
        self.env_factory = factory
        self.__dict__.pop("about", None)

    @property
    def active_sessions(self) -> int:
        """The number of sessions that hold a slot now."""
        return self.manager.active

    @property
    def max_sessions(self) -> int:
        """Most concurrent sessions."""
        return self.manager.limits.max_sessions

    max_concurrent_envs = max_sessions
    """The same, under the name that existing code uses."""

    @property
    def is_concurrency_safe(self) -> bool:
        """Whether the environment's class says that many instances may live in one process."""
        cls = class_of(self.env_factory)
        return cls is not None and profile_of(cls).concurrent

    @property
    def concurrency_config(self) -> ConcurrencyConfig:
        limits = self.manager.limits
        return ConcurrencyConfig(max_concurrent_envs=limits.max_sessions, session_timeout=limits.idle_timeout_s)

    @cached_property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """JSON Schemas by name, and the facts of a batch: the response of `GET /schema`."""
        parts = {
            "action": self.action_cls,
            "observation": self.observation_cls,
            "state": self.state_cls,
            "reset_observation": self.reset_observation_cls,
        }
        schemas = {name: schema_of(part) or {} for name, part in parts.items()}
        return schemas if self.batch is None else {**schemas, "batch": self.batch.facts}

    @cached_property
    def contract(self) -> Contract:
        """The schema that clients compare with their own types."""
        return contract_of(self.action_cls, self.observation_cls, self.state_cls)

    @cached_property
    def memory_probe(self) -> SharedSegment | None:
        """Memory that clients on this machine can open; None if arrays travel in frames only."""
        if not self.settings.shared_memory_bytes:
            return None
        with contextlib.suppress(OSError):
            return SharedSegment(0)
        return None

    @cached_property
    def about(self) -> EnvironmentInfoLoader:
        """The metadata that the web UI shows."""
        return EnvironmentInfoLoader(self)

    @cached_property
    def read_action(self) -> Callable[[Any], Any]:
        """Makes an action from plain data; raises `InvalidAction`."""
        reader = ActionReader(self.action_type, codec_of("openenv.v2.json"))

        def read(data: Any) -> Any:
            try:
                text = to_json(data, inf_nan_mode="constants")
            except (ValueError, RecursionError) as error:  # text that is not UTF-8, unlimited nesting
                raise InvalidAction(f"the action is not valid JSON: {error}") from None
            return reader(text)

        return read

    @property
    def unready(self) -> str | None:
        """Why the server cannot open a session, even after others end; None if it can."""
        if not self.serving():
            return "the server is stopping, or its workers have not all started"
        most, stuck = self.max_sessions, self.manager.stuck
        if stuck < most:
            return None
        slots = "the one session slot is" if most == 1 else f"all {most} session slots are"
        return (
            f"{slots} held by calls that do not return, and the limit of abandoned threads is reached "
            "(max_abandoned_threads, OPENENV_MAX_ABANDONED_THREADS): restart the server; "
            "with --isolation process it can stop such calls"
        )

    def get_capacity_status(self) -> ServerCapacityStatus:
        """How full the server is."""
        return ServerCapacityStatus(active_sessions=self.active_sessions, max_sessions=self.max_sessions)

    def connect(
        self, channel: Channel, subprotocol: str | None = None, principal: Principal = ANONYMOUS
    ) -> V1Connection | V2Connection:
        """Opens a connection over any transport: WebSocket, fast path, in process.

        Args:
            channel: Sends frames to the client.
            subprotocol: The negotiated subprotocol (`openenv.protocol.codecs`); None: v1.
            principal: The client of the connection.

        Raises:
            UsageError: The server has sessions on another event loop.
        """
        if self._trails is not None:
            principal = principal._replace(trail=self._trails(principal.traceparent))
        if subprotocol is None:
            return V1Connection(self, channel, principal)
        protocol = self._protocols.get(subprotocol)
        if protocol is None:
            batch_type = struct = None
            if self.batch is not None:
                # Records need the action's class.
                batch_type, struct = self.batch.action_type, None if self.recorder else self.batch.action_struct
            protocol = ServerProtocolV2(
                self.action_type,
                codec_of(subprotocol),
                self.settings.max_batch,
                batch_type,
                struct,
                self.observation_cls,
            )
            self._protocols[subprotocol] = protocol
        connection = V2Connection(self, protocol, channel, principal)
        self.connections.add(connection)
        return connection

    def drain(self, grace_s: float) -> None:
        """Stops opening sessions, and warns the clients that their sessions end after `grace_s` seconds."""
        self.manager.drain()
        for connection in list(self.connections):
            connection.announce(grace_s)

    def get_session_info(self, session_id: str) -> SessionInfo | None:
        """When a session of this process was opened and last used; None for an unknown id."""
        session = self.manager.find(session_id)
        if session is None:
            return None
        began = time.time() - time.monotonic()
        return SessionInfo(
            session_id=session.id,
            created_at=began + session.created_at,
            last_activity_at=began + session.used_at,
            step_count=session.steps,
            environment_type=self.manager.maker.name,
        )

    async def aclose(self) -> None:
        """Closes every session and waits until their environments are closed, and their records written."""
        await self.manager.aclose()
        self.deadlines.close()
        if self.recorder is not None:
            await on_thread(self.recorder.close)

    def sessions_here(self) -> list[dict[str, Any]]:
        """Describes each session of this process: its state, its age and its client.

        Returns:
            A dict for each session: `id`, `state`, `age_s`, `idle_s` (None unless it is live), `steps`, `worker` and
            `peer`. Times are in seconds.
        """
        now = time.monotonic()
        return [
            {
                "id": session.id,
                "state": session.state.value,
                "age_s": round(now - session.created_at, 3),
                "idle_s": None if session.idle_since is None else round(now - session.idle_since, 3),
                "steps": session.steps,
                "worker": self.worker_key,
                "peer": session.peer,
            }
            for session in self.manager.sessions
        ]

    def hello(self, binary: bool) -> dict[str, Any]:
        """The content of the first frame of a v2 connection. `binary`: whether its codec is binary."""
        settings, batch, probe = self.settings, self.batch, self.memory_probe if binary else None
        facts = {
            "protocol": 2,
            "server": __version__,
            "environment": self.env_name,
            "limits": {
                "max_message_bytes": settings.max_message_bytes,
                "max_sessions": self.max_sessions,
                "max_in_flight": settings.max_in_flight,
                "max_connection_in_flight": settings.max_connection_in_flight,
                "max_batch": settings.max_batch,
            },
            "heartbeat_s": settings.heartbeat_s or None,
            "resume_window_s": settings.resume_window_s,
            "capabilities": CAPABILITIES,
            "worker": self.worker_key,
            "schema": self.contract.hashes,
        }
        if batch is not None:
            facts["batch"] = batch.facts
        if probe is not None:
            place = {"process": os.getpid(), "descriptor": probe.descriptor}
            facts["shared_memory"] = {**place, "digest": digest_of(probe.token)}
        return facts

    @property
    def _isolated(self) -> bool:
        """Whether each session has its own process."""
        cls = class_of(self.env_factory)
        declared = cls is not None and profile_of(cls).execution is Execution.PROCESS
        return declared or self.settings.isolation == "process" or self.settings.sandbox != "none"

    def _limits(self, max_concurrent_envs: int | None, config: ConcurrencyConfig | None) -> Limits:
        settings, cls = self.settings, class_of(self.env_factory)
        given = max_concurrent_envs if config is None else config.max_concurrent_envs
        concurrent = self._isolated or (None if cls is None else profile_of(cls).concurrent)
        chosen = settings.max_sessions or given or settings.max_concurrent_envs
        if chosen is not None and chosen > 1 and concurrent is False:
            assert cls is not None
            raise ConcurrencyConfigurationError(cls.__name__, chosen)
        return Limits(
            max_sessions=(DEFAULT_MAX_SESSIONS if concurrent else 1) if chosen is None else chosen,
            queue_timeout_s=settings.queue_timeout_s,
            idle_timeout_s=(config and config.session_timeout) or settings.idle_timeout_s or None,
            queue_limit=settings.queue_limit,
            max_sessions_per_key=settings.max_sessions_per_key,
            max_executing=settings.max_executing,
            max_constructing=settings.max_constructing,
            max_abandoned_threads=settings.max_abandoned_threads,
            abandon_after_s=settings.abandon_after_s,
            gather_window_s=settings.gather_window_us / 1e6,
        )
