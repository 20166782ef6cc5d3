"""Many environments of one server, stepped together: the clients, and the connections that they share."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar, cast, get_args, overload

from .._backoff import retry_connect
from ..errors import (
    ConnectionLost,
    InvalidAction,
    InvalidArgument,
    MissingExtra,
    OpenEnvError,
    ProtocolViolation,
    SeedIgnored,
    SessionLost,
    UsageError,
)
from ..protocol.buffers import ReadBuffers
from ..protocol.client import check_outcome
from ..protocol.values import SCALARS
from ..types import ObsT, StepResult
from .connection import CallKind, ClientConnectionV1, ClientConnectionV2, Dial, error_after_end
from .env_client import EnvClient
from .payloads import check_seed, dump_action, misread_error, parse_observation
from .portal import LoopBound
from .vector_sessions import (
    AutoresetMode,
    BatchCarrier,
    EnvOutcome,
    EnvSlot,
    EpisodeTurnover,
    PendingBatch,
    VectorSessions,
    VectorState,
)

if TYPE_CHECKING:
    from .recorded import VectorRecord

ActT = TypeVar("ActT")
Arrays = Literal["each", "batch"]


class SyncVectorEnvClient(Generic[ActT, ObsT]):
    """`VectorEnvClient` without `await`, for any thread, one at a time::

        with SyncVectorEnvClient(GenericEnvClient, base_url="http://localhost:8000", num_envs=256) as envs:
            results = envs.reset()
            results = envs.step([{"move": "left"}] * 256)

    It takes the arguments of `VectorEnvClient`, or only `client`, an existing client to drive. Both then share its
    sessions.

    Raises:
        UsageError: As for `VectorEnvClient`; or other arguments are given with `client`.
    """

    @overload
    def __init__(self, client: VectorEnvClient[ActT, ObsT]) -> None: ...
    @overload
    def __init__(
        self,
        env_cls: type[EnvClient[ActT, ObsT, Any]],
        base_url: str | Sequence[str] | None = None,
        num_envs: int = 256,
        connections: int = 1,
        autoreset_mode: AutoresetMode = "disabled",
        arrays: Arrays = "each",
        **options: Any,
    ) -> None: ...
    def __init__(self, *args: Any, **options: Any) -> None:
        client = options.pop("client", args[0] if args else None)
        if not isinstance(client, VectorEnvClient):
            client = VectorEnvClient(*args, **options)
        elif options:
            raise UsageError(f"{', '.join(options)}: the client that is given has arguments of its own")
        self._client: VectorEnvClient[ActT, ObsT] = client

    @property
    def async_client(self) -> VectorEnvClient[ActT, ObsT]:
        """The wrapped client."""
        return self._client

    @property
    def num_envs(self) -> int:
        """The number of environments."""
        return self._client.num_envs

    def connect(self) -> Self:
        """See `VectorEnvClient.connect`."""
        self._client.blocking(self._client.connect())
        return self

    def reset(
        self,
        seeds: Sequence[int | None] | None = None,
        env_ids: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> list[StepResult[ObsT]]:
        """See `VectorEnvClient.reset`."""
        return self._client.blocking(self._client.reset(seeds, env_ids, **kwargs))

    def step(self, actions: Sequence[ActT]) -> list[StepResult[ObsT]]:
        """See `VectorEnvClient.step`."""
        return self._client.blocking(self._client.step(actions))

    def send_reset(
        self,
        seeds: Sequence[int | None] | None = None,
        env_ids: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """See `VectorEnvClient.send_reset`."""
        self._client.blocking(self._client.send_reset(seeds, env_ids, **kwargs))

    def send(self, actions: Sequence[ActT], env_ids: Sequence[int] | None = None) -> None:
        """See `VectorEnvClient.send`."""
        self._client.blocking(self._client.send(actions, env_ids))

    def fork(self, env_id: int, env_ids: Sequence[int]) -> list[OpenEnvError | None]:
        """See `VectorEnvClient.fork`."""
        return self._client.blocking(self._client.fork(env_id, env_ids))

    def recv(self, min_ready: int = 1, timeout_s: float | None = None) -> list[Finished[ObsT]]:
        """See `VectorEnvClient.recv`."""
        return self._client.blocking(self._client.recv(min_ready, timeout_s))

    def close(self) -> None:
        """See `VectorEnvClient.close`."""
        self._client.blocking(self._client.close())

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *exc_info: object) -> None:
        self.close()


logger = logging.getLogger("openenv.client")


# Servers without v2 that were warned about.
_mentioned: set[str] = set()


class Finished(NamedTuple, Generic[ObsT]):
    """One result of `recv`.

    Attributes:
        env_id: Number of the environment.
        result: Result of its call.
    """

    env_id: int
    result: StepResult[ObsT]


class VectorEnvClient(LoopBound, Generic[ActT, ObsT]):
    """Drives many environments of one server over few connections: a step is one message there and one back::

        async with VectorEnvClient(GenericEnvClient, base_url="http://localhost:8000", num_envs=256) as envs:
            results = await envs.reset()
            results = await envs.step([{"move": "left"}] * 256)

    The failure of one environment is in its own result: `StepResult.error` is then set, and observation
    and reward are None (`openenv.reward_mask` tells a trainer which rewards count). An environment that lost its
    session gets `SessionLost` once, and a new session with its next reset. One that did not answer in time gets
    `StepTimeout`; its reply is dropped when it comes, and its next call is executed after the one that is late.

    A lost connection is made again, and its sessions come back with it, as for `EnvClient`: calls without a reply are
    repeated and executed once. Environments that cannot come back get `SessionLost`.

    Autoreset modes, with Gymnasium's meanings:

    - `disabled`: a step after the end of an episode gets `ResetRequired`; call `reset(env_ids=...)`.
    - `next_step`: the step after the last one of an episode ignores its action and resets. Its reward is that of
      the reset, which is usually None (Gymnasium: 0).
    - `same_step`: the last step of an episode resets too. Its observation is the first one of the new episode, its
      reward that of the step; `metadata` has the last observation as `final_observation`, and the last metadata
      as `final_metadata`. This takes a second round trip. If that reset fails, the result is that of the
      step alone, and the next step has the failure.

    In the last two modes an environment that has no episode for another reason (its session was lost, its reset
    failed) is reset by its next step too. Automatic resets take no arguments.

    With `arrays="batch"`, the arrays of the observations of one call are rows of one array for each field, and
    `BatchResult.of` returns that array::

        async with VectorEnvClient(CameraEnv, url, num_envs=16, arrays="batch") as envs:
            batch = BatchResult.of(await envs.reset())
            batch.observation["image"]  # uint8 of shape (16, 84, 84, 4); its row 3 is results[3].observation.image

    Each array is then copied once, from the frame or the shared memory into its row. The memory is used again when
    neither the array nor a row nor a view of one is left. A row of a failed environment is 0. Arrays in dicts and
    lists have rows too. The following have not, and `BatchResult.of` copies them: results of `send` and `send_reset`
    for a part of the environments, `final_observation`, arrays without dimensions, and arrays that were sent as
    lists (v1, JSON) or compressed. A field must keep the element type and shape of its first array, in all
    environments: a result in which it differs has no observation, but `ProtocolViolation` as its error, which names
    the field.

    It stays on the event loop of its first use. `sync()`, or `with`, gives the client for code without one.

    Args:
        env_cls: The client of the environment; its types and hooks are used.
        base_url: As for `EnvClient`.
        num_envs: How many environments.
        connections: How many connections share them, evenly. A server with several workers puts each connection
            on one of them.
        autoreset_mode: See above.
        arrays: `each`: an array of an observation has its own memory; `batch`: see above.
        options: Further arguments of `env_cls`: timeouts, limits, `headers`, `api_key`, `strict`, `app`.
            `message_timeout_s` holds for each step and reset of each environment.

    Raises:
        UsageError: An invalid number or mode.
        MissingExtra: `arrays="batch"`, and numpy is not installed.
    """

    def __init__(
        self,
        env_cls: type[EnvClient[ActT, ObsT, Any]],
        base_url: str | Sequence[str] | None = None,
        num_envs: int = 256,
        connections: int = 1,
        autoreset_mode: AutoresetMode = "disabled",
        arrays: Arrays = "each",
        **options: Any,
    ):
        if num_envs < 1 or not 1 <= connections <= num_envs:
            raise UsageError(
                f"num_envs={num_envs}, connections={connections}: at least one environment, "
                "and at least one for each connection"
            )
        if autoreset_mode not in get_args(AutoresetMode):
            raise UsageError(f"autoreset_mode={autoreset_mode!r}: one of {', '.join(get_args(AutoresetMode))}")
        if arrays not in get_args(Arrays):
            raise UsageError(f"arrays={arrays!r}: one of {', '.join(get_args(Arrays))}")
        if arrays == "batch" and importlib.util.find_spec("numpy") is None:
            raise MissingExtra("numpy", None)
        self.num_envs = num_envs
        self.autoreset_mode = autoreset_mode
        self._client = env_cls(base_url, **options)
        # Hooks that the class does not override are bypassed.
        cls = type(self._client)
        self._own_payload = cls._step_payload is not EnvClient._step_payload
        own_result = cls._parse_result is not EnvClient._parse_result
        self._parse: Callable[[dict[str, Any]], StepResult[ObsT]] = (
            self._client._parse_result if own_result else partial(parse_observation, self._client._types[0])
        )
        self._connections = connections
        self._record: VectorRecord | None = None
        if self._client._record is not None:
            from .recorded import VectorRecord  # noqa: PLC0415 - few clients record

            self._record = VectorRecord(self._client._record, num_envs)
        self._state = VectorState(
            num_envs,
            autoreset_mode,
            self._client._message_timeout_s,
            self._client._wait_s,
            self._record,
            ReadBuffers() if arrays == "batch" else None,
        )
        self._unbind()

    async def connect(self) -> Self:
        """Connects now instead of with the first call. The sessions are opened by `reset`.

        Raises:
            ConnectionFailed: No server answers, or not in time (`ConnectTimeout`).
            SchemaMismatch: With `strict`: the types of `env_cls` do not fit the server's.
            UsageError: It lives on another event loop.
        """
        self._check_loop()
        if self._state.carrier is None:
            connecting = self._connecting
            async with connecting:
                self._check_open(connecting)
                if self._state.carrier is None:
                    carrier = await self._new_carrier()
                    if connecting is not self._connecting:
                        await carrier.aclose()
                    self._check_open(connecting)
                    self._state.carrier = carrier
        return self

    async def reset(
        self,
        seeds: Sequence[int | None] | None = None,
        env_ids: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> list[StepResult[ObsT]]:
        """Starts an episode in each environment.

        Args:
            seeds: One for each of them, in order.
            env_ids: Which environments; None for all.
            kwargs: Other arguments of the environment's `reset`; the same for all.

        Returns:
            Their results, in the order of `env_ids`.

        Raises:
            UsageError: Some have calls in flight, or results that `recv` has not taken.
            ConnectionFailed: The first connection could not be made.
            Unauthorized: The server needs a valid API key (`api_key`).
            SeedIgnored: With `strict`: the environment ignores the given seeds. The episodes have begun anyway.
        """
        slots = self._pick(env_ids)
        arguments = _reset_arguments(slots, seeds, kwargs)
        await self.connect()
        batch = self._state.reset(slots, arguments, first_finished=False)
        await self._state.finished(batch)
        results = [self.result_of(batch.outcomes[slot.index]) for slot in slots]
        for slot, given in zip(slots, arguments, strict=True):
            check_seed(self._client, given, batch.outcomes[slot.index])
        return results

    async def step(self, actions: Sequence[ActT]) -> list[StepResult[ObsT]]:
        """Takes one step in each environment. Returns and raises as `reset` does.

        Args:
            actions: One for each environment, in order.
        """
        return list(map(self.result_of, await self.step_outcomes(actions)))

    async def step_outcomes(self, actions: Sequence[ActT]) -> list[EnvOutcome]:
        """As `step`, for adapters that make their own results: returns the replies in wire form, and the errors."""
        slots = self._state.slots
        given = self._payloads(actions, slots)
        await self.connect()
        batch = self._state.step(slots, given, first_finished=False)
        await self._state.finished(batch)
        outcomes = batch.outcomes
        return [outcomes[index] for index in range(self.num_envs)]

    def result_of(self, outcome: EnvOutcome) -> StepResult[ObsT]:
        """The result of a call; its `error` has every failure."""
        try:
            if type(outcome) is dict:
                check_outcome(outcome)
                return self._parse(outcome)
            if isinstance(outcome, EpisodeTurnover):
                for payload in outcome:
                    check_outcome(payload)
                last, first = map(self._parse, outcome)
                final = {"final_observation": last.observation, "final_metadata": last.metadata}
                return replace(last, observation=first.observation, metadata={**(first.metadata or {}), **final})
            error = cast("OpenEnvError", outcome)
        except OpenEnvError as violation:
            error = violation
        except Exception as fault:  # noqa: BLE001 - a subclass's own code, and one environment's reply
            error = misread_error(self._parse, fault)
            error.__cause__ = fault
        return StepResult(observation=cast("ObsT", None), error=error)

    async def send_reset(
        self,
        seeds: Sequence[int | None] | None = None,
        env_ids: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """Begins an episode in some environments; `recv` returns the results. It takes and raises what `reset` does.

        With `strict`, `SeedIgnored` is the error of each result with an ignored seed; its episode has begun.
        """
        slots = self._pick(env_ids)
        arguments = _reset_arguments(slots, seeds, kwargs)
        await self.connect()
        self._state.reset(slots, arguments, first_finished=True)

    async def send(self, actions: Sequence[ActT], env_ids: Sequence[int] | None = None) -> None:
        """Begins a step in some environments; `recv` returns the results. Raises as `reset` does.

        Args:
            actions: One for each of them, in order.
            env_ids: Which environments; None for all.
        """
        slots = self._pick(env_ids)
        # Copies: the caller may change an action before the result is here, and a lost connection repeats the call.
        given = [
            {name: value if type(value) in SCALARS else deepcopy(value) for name, value in action.items()}
            for action in self._payloads(actions, slots)
        ]
        await self.connect()
        self._state.step(slots, given, first_finished=True)

    async def fork(self, env_id: int, env_ids: Sequence[int]) -> list[OpenEnvError | None]:
        """Gives environments copies of the session of another one: the same episode, the same future random numbers.

        The session that an environment had is closed. The copies share the connection of the original.

        Args:
            env_id: The environment to copy.
            env_ids: The other environments.

        Returns:
            For each of `env_ids`, None, or why it has no copy, such as `NotForkable` or `ServerFull`: it has no
            session then, and needs a reset.

        Raises:
            UsageError: The environment to copy has no running episode, or no protocol v2; one has calls in flight, or
                is given twice; the client records.
        """
        source, *targets = self._pick([env_id, *env_ids])
        await self.connect()
        return await self._state.fork(source, targets)

    async def recv(self, min_ready: int = 1, timeout_s: float | None = None) -> list[Finished[ObsT]]:
        """Takes the results of calls that were begun with `send` or `send_reset`, first finished first.

        Args:
            min_ready: How many to wait for; all that are ready are returned.
            timeout_s: Seconds after which fewer, or none, are returned; None waits for as long as the calls may take.

        Raises:
            UsageError: Fewer are in flight, or another `recv` is being awaited.
        """
        outcomes = await self.recv_outcomes(min_ready, timeout_s)
        return [Finished(env_id, self.result_of(outcome)) for env_id, outcome in outcomes]

    async def recv_outcomes(self, min_ready: int = 1, timeout_s: float | None = None) -> list[tuple[int, EnvOutcome]]:
        """As `recv`, for adapters that make their own results: returns the replies in wire form, and the errors."""
        self._check_loop()
        taken = await self._state.received(min_ready, timeout_s)
        for position, (env_id, outcome) in enumerate(taken):
            slot = self._state.slots[env_id]
            if slot.kind == "reset":
                try:
                    check_seed(self._client, slot.contents, outcome)
                except SeedIgnored as ignored:
                    taken[position] = env_id, ignored
        return taken

    async def close(self) -> None:
        """Ends all sessions and connections. May be called repeatedly; a later `reset` connects anew.

        If it ended an episode, a later step of that environment gets `SessionLost`.
        """
        await self._close()

    def sync(self) -> SyncVectorEnvClient[ActT, ObsT]:
        """This client for code that cannot await."""
        return SyncVectorEnvClient(self)

    def __enter__(self) -> SyncVectorEnvClient[ActT, ObsT]:
        return self.sync().__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self.sync().close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close()

    async def _close(self) -> None:
        self._check_loop()
        # Close first: a call made meanwhile begins anew.
        carrier = self._state.carrier
        self._state.lose_all(ConnectionLost("this client was closed"))
        self._state.ready = {}
        self._loop, self._connecting = None, asyncio.Lock()
        if carrier is not None:
            await carrier.aclose()
        if self._record is not None:
            await self._record.flush()

    def _check_open(self, connecting: asyncio.Lock) -> None:
        """Raises `ConnectionLost` if the client was closed since the caller began to connect."""
        if connecting is not self._connecting:
            raise ConnectionLost("this client was closed while it was connecting: call reset() to begin anew")

    async def _new_carrier(self) -> BatchCarrier:
        dial, patience_s = self._client._dial, self._client._options.connect_timeout_s
        first = await dial()
        if isinstance(first, ClientConnectionV2):
            pooled = partial(_PooledConnection, dial, self._state, patience_s, self._client._wait_s)
            connections = ConnectionPool([pooled() for _ in range(self._connections)])
            await connections.open(first)
            return connections
        url = self._client._url or "app"
        if url not in _mentioned:
            _mentioned.add(url)
            logger.warning(
                "%s does not speak protocol v2: %d environments take a connection each, one message a step each, "
                "and the server must have as many slots; upgrade it to share %d",
                url,
                self.num_envs,
                self._connections,
            )
        return V1Pool(dial, first, self.num_envs, self._state, patience_s)

    def _cut(self, reason: str) -> None:
        self._state.lose_all(ConnectionLost(reason))

    def _check_loop(self) -> None:
        """Takes the running event loop. Raises `UsageError` if the client lives on another one."""
        running = asyncio.get_running_loop()
        if self._loop is running and self._pid == os.getpid():  # nearly every call
            return
        if self._claim(running) is not running:
            raise UsageError("this VectorEnvClient lives on another event loop: use it there, or use its sync()")

    def _pick(self, env_ids: Sequence[int] | None) -> Sequence[EnvSlot]:
        slots = self._state.slots
        if env_ids is None:
            return slots
        if len(set(env_ids)) != len(env_ids) or not all(0 <= index < self.num_envs for index in env_ids):
            raise UsageError(f"env_ids={list(env_ids)}: each environment once, from 0 to {self.num_envs - 1}")
        return [slots[index] for index in env_ids]

    def _payloads(self, actions: Sequence[ActT], slots: Sequence[EnvSlot]) -> list[dict[str, Any]]:
        """Actions in wire form. Errors of a hook pass through: they are the caller's mistake."""
        if len(actions) != len(slots):
            raise UsageError(f"{len(actions)} actions for {len(slots)} environments: one for each")
        if self._own_payload:
            return list(map(self._client._step_payload, actions))
        given: Sequence[Any] = actions
        # No copy of a dict: it is encoded before the caller continues.
        return [action if type(action) is dict else dump_action(action) for action in given]


def _reset_arguments(
    slots: Sequence[EnvSlot], seeds: Sequence[int | None] | None, kwargs: dict[str, Any]
) -> list[dict[str, Any]]:
    """The arguments of each environment's reset."""
    if seeds is None:
        return [kwargs] * len(slots)
    if len(seeds) != len(slots):
        raise UsageError(f"{len(seeds)} seeds for {len(slots)} environments: one for each")
    # numpy's integers are not those of JSON
    return [{**kwargs, "seed": seed if seed is None else index(seed)} for seed in seeds]


class ConnectionPool:
    """The v2 connections of a vector (a `BatchCarrier`); environment i takes connection i modulo their number.

    Args:
        connections: The connections, which `open` makes.
    """

    def __init__(self, connections: Sequence[_PooledConnection]):
        self._connections = connections

    async def open(self, first: ClientConnectionV2) -> None:
        """Makes all connections but the first, which is there already; if one cannot be made, none is left."""
        links = [first, *[None] * (len(self._connections) - 1)]
        try:
            opening = [connection.open(link) for connection, link in zip(self._connections, links, strict=True)]
            for failure in await asyncio.gather(*opening, return_exceptions=True):
                if failure is not None:
                    raise failure
        except BaseException:
            await self.aclose()
            await first.aclose()  # an `open` that was cancelled before it began did not take it
            raise

    def carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        connections, count = self._connections, len(self._connections)
        shares: dict[VectorSessions | _PooledConnection, list[EnvSlot]] = {}
        for slot in slots:
            group = slot.group
            target: VectorSessions | _PooledConnection
            # A reset moves to another connection if the server of this one stops soon.
            if group is None or (slot.kind == "reset" and group.leaving and slot.call is None):
                target = connections[slot.index % count].fresh
            else:
                target = group
            if target in shares:
                shares[target].append(slot)
            else:
                shares[target] = [slot]
        for target, share in shares.items():
            target.carry(share, batch)

    async def aclose(self) -> None:
        await asyncio.gather(*(connection.aclose() for connection in self._connections))


class _PooledConnection:
    """One connection, replaced after its end.

    Args:
        dial: Opens a connection.
        owner: Takes the replies.
        patience_s: Seconds for connecting.
        wait_s: Seconds that the server may let a session wait for a free slot; None leaves that to the server.
    """

    def __init__(self, dial: Dial, owner: VectorState, patience_s: float, wait_s: float | None):
        self._dial = dial
        self._owner = owner
        self._patience_s = patience_s
        self._wait_s = wait_s
        self._current: VectorSessions | None = None
        # Connections that have sessions but take no more: their server stops, or they are being made again.
        self._former: list[VectorSessions] = []
        self._connecting = asyncio.Lock()
        self._reconnecting: set[asyncio.Task[None]] = set()

    async def open(self, link: ClientConnectionV2 | None) -> None:
        try:
            self._current = await self._new_connection(link)
        except ConnectionLost:  # after the handshake: the server is there, and the network is bad
            self._current = await retry_connect(self._new_connection, self._patience_s)

    @property
    def fresh(self) -> VectorSessions | _PooledConnection:
        """Opens sessions: the current connection, or this, which first makes another one."""
        return self._current if self._current is not None and self._current.usable else self

    def carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        """Sends the calls of slots over a new connection, when it is there."""
        refill = asyncio.get_running_loop().create_task(self._refill(slots, batch))
        self._reconnecting.add(refill)
        refill.add_done_callback(self._reconnecting.discard)

    async def aclose(self) -> None:
        for refill in list(self._reconnecting):
            refill.cancel()
        closing = [each.aclose() for each in (*self._former, self._current) if each is not None]
        await asyncio.gather(*self._reconnecting, *closing, return_exceptions=True)

    async def _refill(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        """Makes a new connection for slots that have none, or one that ends soon."""
        unconnected = [slot for slot in slots if slot.group is None]
        try:
            async with self._connecting:
                if self._current is None or not self._current.usable:
                    fresh = await retry_connect(self._new_connection, self._patience_s if unconnected else 0.0)
                    self._former = [each for each in (*self._former, self._current) if each and each.error is None]
                    self._current = fresh
        except OpenEnvError as error:
            for slot in unconnected:
                self._owner.settle(slot, batch, error)
            # There is no other server: theirs serves for as long as it runs.
            for old in {slot.group for slot in slots if slot.group is not None}:
                old.carry([slot for slot in slots if slot.group is old and slot.pending is batch], batch)
            self._owner.flush()
        else:
            # Some calls may have ended meanwhile, and their slots may have other calls.
            self._current.carry([slot for slot in slots if slot.pending is batch], batch)

    async def _new_connection(self, link: ClientConnectionV2 | None = None) -> VectorSessions:
        end = link or await self._dial()
        if not isinstance(end, ClientConnectionV2):
            await end.aclose()
            raise ProtocolViolation("the server no longer speaks protocol v2: call close() and begin anew")
        try:
            await end.greeting(self._patience_s)
        except BaseException:
            await end.aclose()
            raise
        sessions = VectorSessions(end, self._dial, self._patience_s, self._wait_s, self._owner)
        if self._owner.buffers is not None:
            # It has asked for shared memory, and this reply comes after that. A lost connection is made again later.
            with contextlib.suppress(OpenEnvError, TimeoutError):
                async with asyncio.timeout(self._patience_s):
                    await end.request("heartbeat", {})
        return sessions


class V1Pool:
    """The v1 connections of a vector (a `BatchCarrier`): one for each environment, for servers without v2.

    A connection is replaced after its end.

    Args:
        dial: Opens a connection.
        first: The first connection, which is there already.
        num_envs: How many there will be.
        owner: Takes the replies.
        patience_s: Seconds for connecting.
    """

    def __init__(self, dial: Dial, first: ClientConnectionV1, num_envs: int, owner: VectorState, patience_s: float):
        self._connections: list[ClientConnectionV1 | None] = [first, *[None] * (num_envs - 1)]
        self._connecting = [asyncio.Lock() for _ in range(num_envs)]
        self._dial = dial
        self._owner = owner
        self._patience_s = patience_s
        self._calls: set[asyncio.Task[None]] = set()

    def carry(self, slots: Sequence[EnvSlot], batch: PendingBatch) -> None:
        loop = asyncio.get_running_loop()
        for slot in slots:
            # A copy, since the caller may go on before it is sent.
            call = loop.create_task(self._call(slot, slot.kind, dict(slot.contents), batch))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def aclose(self) -> None:
        for call in self._calls:  # first: one that waits for a connection would get it, and not close it
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await asyncio.gather(*(connection.aclose() for connection in self._connections if connection is not None))

    async def _call(self, slot: EnvSlot, kind: CallKind, data: dict[str, Any], batch: PendingBatch) -> None:
        reply: dict[str, Any] | OpenEnvError
        try:
            reply = await self._reply(slot.index, kind, data)
        except SessionLost as error:
            slot.drop_session()
            reply = error
        except InvalidArgument as error:
            reply = InvalidAction(error.message)
        except OpenEnvError as error:
            reply = error
        self._owner.settle(slot, batch, reply)
        self._owner.flush()

    async def _reply(self, number: int, kind: CallKind, data: Any) -> dict[str, Any]:
        """Waits for the reply. After the connection was lost, only a reset connects anew."""
        async with self._connecting[number]:
            connection = self._connections[number]
            if connection is None or (connection.error is not None and kind == "reset"):
                connection = await retry_connect(self._connect, self._patience_s)
                self._connections[number] = connection
        try:
            return await connection.call(kind, data, None)
        except OpenEnvError as error:
            if connection.error is None or isinstance(error, SessionLost):
                raise
            raise error_after_end(error, connection.served) from error

    async def _connect(self) -> ClientConnectionV1:
        end = await self._dial()
        if isinstance(end, ClientConnectionV1):
            return end
        await end.aclose()
        raise ProtocolViolation("the server spoke only protocol v1 before: call close() and begin anew to use v2")
