"""Makes the environments of sessions: a limited number concurrently, each on the right executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .._introspection import unwrap_partial
from .._processes import usable_cores, use_batch_scheduling
from ..batched import BatchedEnvironment
from ..errors import ConcurrencyConfigurationError, FactoryFailed, NotForkable, OpenEnvError, UsageError
from ..settings import ServerSettings
from .admission import ConcurrencyGate, Limits
from .executor import CopiedSnapshot, Executor, Snapshot, describe_error
from .loop import InlineExecutor, LoopExecutor
from .process import ProcessExecutor, ProcessPool
from .profile import EnvironmentProfile, Execution, class_of, profile_of
from .session import Session, SessionState
from .thread import Mailbox, ThreadExecutor

if TYPE_CHECKING:
    from .columns import BatchSpec
    from .gathering import SharedBatch

HELPER_THREADS = 16
# Processes that start concurrently, unless a limit is set: more would only delay one another.
CONSTRUCTING_A_CORE = 2


class EnvironmentMaker:
    """Makes the environments of one factory. Makes a limited number concurrently, and lets the others wait.

    Their executors share the mailbox of the loop, the helper threads and the process pool.

    Args:
        factory: Makes one environment: its class, or another callable without arguments.
        limits: The limits of environments that are being made, and of sessions.
        pool: Gives each session its own process; None if the class decides.
        batch: The fields of a `BatchedEnvironment`; None for another class.

    Raises:
        UsageError: The factory's class declares an `execution` that is unknown or unsupported for it.

    Attributes:
        factory: The factory.
        batch: The fields of a `BatchedEnvironment`; None for another class.
        gate: Limits the environments that are being made; None for no limit.
        pool: Gives each session its own process; None if environments run in this process.
    """

    def __init__(
        self, factory: Callable[[], Any], limits: Limits, pool: ProcessPool | None, batch: BatchSpec | None = None
    ):
        self.factory = factory
        self.batch = batch
        # In the order in which they were made. No session enters an instance that closes.
        self._shared: dict[SharedBatch, None] = {}
        self._limits = limits
        cls = class_of(factory)
        self._profile: EnvironmentProfile | None = None if cls is None else profile_of(cls)
        if pool is None and self._profile is not None and self._profile.execution is Execution.PROCESS:
            pool = ProcessPool(factory, ServerSettings())
        if batch is not None and pool is not None:
            raise UsageError(
                f"{self.name} is a BatchedEnvironment, which runs in the server's process: serve it without "
                "isolation and sandbox (OPENENV_ISOLATION, OPENENV_SANDBOX)"
            )
        self.pool = pool
        self._mailbox: Mailbox | None = None
        self._helpers: ThreadPoolExecutor | None = None
        making = limits.max_constructing or None
        if making is None and pool is not None:
            making = CONSTRUCTING_A_CORE * usable_cores()
        self.gate = None if making is None else ConcurrencyGate(making)

    @property
    def name(self) -> str:
        """The environment's name, for messages."""
        factory = unwrap_partial(self.factory)
        return str(getattr(factory, "__name__", type(factory).__name__))

    def replace(self, factory: Callable[[], Any]) -> None:
        """Makes environments with another factory from now on.

        Raises:
            UsageError: Environments run in separate processes, which only know the first factory.
        """
        if self.pool is not None:
            raise UsageError(
                f"{self.name} makes environments in separate processes and cannot be replaced: "
                "pass the other factory to the server's constructor"
            )
        cls = class_of(factory)
        self.factory, self._profile = factory, None if cls is None else profile_of(cls)

    def make(self, session: Session) -> None:
        """Makes the environment of a session that has a slot, now or when the limit allows it."""
        gate = self.gate
        if gate is None:
            self._make(session)
            return

        def enter() -> None:
            if session.state is SessionState.GONE:  # it was closed while it waited
                gate.leave()
            else:
                self._make(session)

        gate.enter(enter)

    def made(self, session: Session, environment: Any, error: BaseException | None) -> None:
        """The session's environment was made, or could not be."""
        self._release_permit(session)
        if error is not None:
            if isinstance(error, NotForkable):
                session.fail(error)
            else:
                session.fail(self._failure("could not create an environment", error))
            return
        try:
            profile = self._checked_profile(environment)
        except OpenEnvError as usage:
            session.fail(usage)
            return
        except Exception as trouble:  # noqa: BLE001 - the edge to foreign code: a class that will not be looked at
            made = f"made a {type(environment).__name__} with methods that cannot be read"
            session.fail(self._failure(made, trouble))
            return
        executor = session.executor
        assert executor is not None
        if isinstance(executor, ThreadExecutor) and profile.execution is not Execution.THREAD:
            # Its class is known only now: the environment moves to the executor of that class.
            try:
                executor = self._new_executor(profile.execution, session, made=executor)
            except RuntimeError as trouble:  # the system cannot start another thread
                session.fail(self._failure("could not create an environment", trouble))
                return
        session.live(executor, profile)

    def abandon(self, session: Session) -> None:
        """Abandons a session in which the constructor or another call has not returned."""
        self._release_permit(session)
        if (slot := getattr(session.executor, "abandon", None)) is not None:  # of a batch that sessions share
            slot()
        # If it blocks one of the few helper threads, the next environments get new threads.
        if isinstance(session.executor, LoopExecutor) and session.executor.uses_helper:
            self.rest()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Moves the executors to another event loop."""
        if self.pool is not None:
            self.pool.abandon()
        if self._mailbox is None:
            self._mailbox = Mailbox(loop)
        else:
            self._mailbox.move(loop)

    def rest(self) -> None:
        """After the last session, ends the helper threads."""
        if self._helpers is not None:
            self._helpers.shutdown(wait=False)
            self._helpers = None

    def _new_executor(
        self,
        execution: Execution,
        session: Session,
        snapshot: Snapshot | None = None,
        made: ThreadExecutor | None = None,
    ) -> Executor:
        """The executor of a session.

        Args:
            execution: Where the environment runs, unless there is a pool.
            session: The session.
            snapshot: The state that an environment in a process starts from.
            made: The thread that has made the environment, if it must move to another executor.

        Raises:
            RuntimeError: The system cannot start another thread.
        """
        if self.pool is not None:
            return ProcessExecutor(self.pool, snapshot)
        assert self._mailbox is not None  # made by `bind`, before anything is opened
        if execution is Execution.THREAD:
            return ThreadExecutor(self._mailbox, f"openenv-{session.id[:8]}")
        if execution is Execution.LOOP:
            self._helper_threads()
        environment = None if made is None else made.release()
        if execution is Execution.INLINE:
            return InlineExecutor(environment)
        return LoopExecutor(self._mailbox, self._helper_threads, environment)

    def _helper_threads(self) -> ThreadPoolExecutor:
        if self._helpers is None:
            helpers = ThreadPoolExecutor(HELPER_THREADS, "openenv-helper", initializer=use_batch_scheduling)
            helpers.submit(int)  # starts one thread now: later the system may be out of threads
            self._helpers = helpers
        return self._helpers

    def _make(self, session: Session) -> None:
        session.making = True
        origin, session.origin = session.origin, None
        if origin is None:
            self._start(session, self._profile)
            return
        source = origin.source

        def saved(snapshot: Any, error: BaseException | None) -> None:
            if error is None and session.state is not SessionState.GONE:
                session.continue_from(source.progress)
                self._start(session, source.profile, snapshot)
            else:
                self._release_permit(session)
                if isinstance(error, OpenEnvError):  # a session translates all others
                    session.fail(error)
                else:  # it was closed in the meantime
                    snapshot.discard()
            origin.freed()

        source.save(saved)

    def _release_permit(self, session: Session) -> None:
        """Releases the permit of a session, if its environment was being made."""
        if session.making:
            session.making = False
            if self.gate is not None:
                self.gate.leave()

    def _start(self, session: Session, profile: EnvironmentProfile | None, snapshot: Snapshot | None = None) -> None:
        if self.batch is not None:
            self._start_batched(session, self.batch, snapshot)
            return
        execution = Execution.THREAD if profile is None else profile.execution
        try:
            executor = self._new_executor(execution, session, snapshot)
        except RuntimeError as trouble:  # the system cannot start another thread
            self._release_permit(session)
            session.fail(self._failure("could not create an environment", trouble))
        else:
            if isinstance(snapshot, CopiedSnapshot):
                copy = snapshot.environment
                session.start(executor, lambda: copy)
            else:
                session.start(executor, self.factory, None if isinstance(executor, ProcessExecutor) else snapshot)

    def _start_batched(self, session: Session, spec: BatchSpec, snapshot: Snapshot | None) -> None:
        """Starts a session that owns a batch, or one that plays an episode of a batch."""
        from .batch import CheckedBatch, OwnedBatch  # noqa: PLC0415 - only batches need numpy
        from .gathering import SharedBatch, SlotExecutor  # noqa: PLC0415

        assert self._profile is not None
        profile, mode = self._profile, session.owned_batch
        try:
            if mode is not None:
                executor = self._new_executor(profile.execution, session)
                session.start(executor, lambda: OwnedBatch(CheckedBatch(spec, self.factory()), mode), snapshot)
                return
            if not spec.is_shared:
                self._release_permit(session)
                session.fail(
                    UsageError(
                        f"{spec.name} starts and steps its episodes together, so single sessions cannot share it: "
                        "open the whole batch (BatchedEnvClient, or the option batch of open)"
                    )
                )
                return
            shared = next((shared for shared in self._shared if shared.has_room), None)
            if shared is None:
                executor = self._new_executor(profile.execution, session)
                shared = SharedBatch(
                    spec, profile, executor, self._limits.gather_window_s, lambda batch: self._shared.pop(batch, None)
                )
                self._shared[shared] = None
        except RuntimeError as trouble:  # the system cannot start another thread
            self._release_permit(session)
            session.fail(self._failure("could not create an environment", trouble))
        else:
            session.ungate()
            session.start(SlotExecutor(shared), self.factory)

    def _failure(self, what: str, error: BaseException) -> FactoryFailed:
        name = self.name
        failure = FactoryFailed(name, f"{name} {what}: {describe_error(error)}")
        failure.__cause__ = error
        return failure

    def _checked_profile(self, environment: object) -> EnvironmentProfile:
        if isinstance(environment, EnvironmentProfile):  # the environment is in another process
            return environment
        if self.batch is not None:
            assert self._profile is not None
            return self._profile
        cls = type(environment)
        if not (callable(getattr(cls, "reset", None)) and callable(getattr(cls, "step", None))):
            made = f"{self.name} made a {cls.__name__}, which has no reset and step"
            raise FactoryFailed(self.name, made)
        profile = profile_of(cls)
        if isinstance(environment, BatchedEnvironment):
            raise UsageError(
                f"{self.name} made a {cls.__name__}, a BatchedEnvironment, which the server must know in advance: "
                f"annotate the return type (`-> {cls.__name__}`)"
            )
        if self._limits.max_sessions > 1 and not profile.concurrent:
            raise ConcurrencyConfigurationError(profile.name, self._limits.max_sessions)
        if profile.execution is Execution.PROCESS:
            raise UsageError(
                f"{self.name} made a {cls.__name__}, which requires a separate process, in the server's process: "
                f"annotate the return type (`-> {cls.__name__}`), or serve with --isolation process"
            )
        return profile
