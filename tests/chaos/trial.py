"""One fault under one system: what is started for it, what was found, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .driver import Driver, Report, told
from .ledger import Ledger
from .proxy import Proxy
from .served import Served, end_marked

__all__ = ["FAULTS", "Fault", "Finding", "Trial", "fault"]

SESSIONS = 200
# For one fault under one system; the soak has its own time besides.
LIMIT_S = 120.0


@dataclass
class Finding:
    """What came of a fault under one system.

    Attributes:
        survived: What held, in a few words each.
        failed: What did not.
        late: Those of them that are about time alone.
        seconds: How long the trial took.
    """

    survived: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.failed

    @property
    def only_late(self) -> bool:
        """Whether nothing has failed but what is about time."""
        return bool(self.late) and self.failed == self.late


class Trial:
    """What a fault works with. Everything that it starts ends with the trial.

    Attributes:
        system: `ours` or `peer`.
        seed: Of what is done by chance.
        folder: For logs and ledgers.
        soak_s: How long a soak lasts.
        turns: Turns of each agent behind the capture proxy.
    """

    def __init__(self, system: str, seed: int, soak_s: float, turns: int, stack: ExitStack, folder: Path):
        self.system = system
        self.seed = seed
        self.soak_s = soak_s
        self.turns = turns
        self.folder = folder
        self.finding = Finding()
        self._stack = stack
        self._servers = 0

    @property
    def ours(self) -> bool:
        return self.system == "ours"

    def serve(self, form: str = "async", **options: Any) -> Served:
        """A server that is ready; see `Served`."""
        self._servers += 1
        folder = self.folder / f"server-{self._servers}"
        folder.mkdir()
        return self._stack.enter_context(Served(self.system, form, folder, **options))

    def proxy(self, server: Served) -> Proxy:
        """A proxy before a server."""
        return self._stack.enter_context(Proxy(server.port, self.seed))

    def crowd(self, url: str, vector: int | None = None, **plan: Any) -> Driver:
        """Clients with `SESSIONS` sessions, half of them in a vector client where there is one; ready.

        Args:
            url: Where they connect.
            vector: How many of the sessions are in a vector client.
            plan: Further fields of `crowd.Plan`.
        """
        driver = self.crowd_at_once(url, vector, **plan)
        return driver.ready()

    def crowd_at_once(self, url: str, vector: int | None = None, **plan: Any) -> Driver:
        """The same, without waiting until it is ready."""
        plan.setdefault("sessions", SESSIONS)
        shared = plan["sessions"] // 2 if vector is None else vector
        plan["vector"] = shared if self.ours else 0
        return self._stack.enter_context(Driver(self.system, url, self.folder, **plan))

    def peer_options(self, *options: str) -> tuple[str, ...]:
        """Options of the peer's server, where that is what is served."""
        return () if self.ours else options

    def enter(self, context: Any) -> Any:
        """Something else that ends with the trial."""
        return self._stack.enter_context(context)

    def check(self, holds: bool, survived: str, failed: str | None = None) -> bool:
        """Books what held or what did not."""
        if holds:
            self.finding.survived.append(survived)
        else:
            self.finding.failed.append(failed or f"not: {survived}")
        return holds

    def in_time(self, holds: bool, survived: str, failed: str | None = None) -> bool:
        """Books what was in time or was not: of a machine that others use too, that may be asked twice."""
        if not self.check(holds, survived, failed):
            self.finding.late.append(self.finding.failed[-1])
        return holds

    def note(self, text: str) -> None:
        """Books a figure that decides nothing."""
        self.finding.survived.append(text)

    def counts(self, server: Served, report: Report) -> bool:
        """Whether the environments' own counts are those of the clients."""
        ledger = Ledger(server.ledger_path)
        differences = ledger.differences(report.raw)
        self.check(
            not report.mixed,
            "no reply to another request",
            f"{len(report.mixed)} replies of another request or environment, as {report.mixed[:3]}",
        )
        return self.check(
            not differences,
            f"counts equal ({ledger.total} steps)",
            f"counts differ in {len(differences)} of {len(ledger.steps)} episodes, as {differences[:3]}",
        )

    def no_errors(self, report: Report, besides: int = 0) -> bool:
        """Whether nobody was told an error."""
        return self.check(
            len(report.errors) <= besides,
            f"{report.completed} episodes complete, no error",
            f"{len(report.errors)} errors ({report.completed} episodes complete): {told(report.names())}, "
            f"as {report.errors[0]['message'] if report.errors else ''!r}",
        )

    def unmoved(self, report: Report, before: str = "before", during: str = "during") -> bool:
        """Whether the slowest steps of those that were not concerned took about as long as before.

        Machines that run this are shared: three times, and 50 ms, is what one that is busy elsewhere takes.
        """
        first, then = report.p99_ms(before), report.p99_ms(during)
        said = f"others' P99 {first:.1f} -> {then:.1f} ms"
        return self.in_time(0 < then <= 3 * first + 50, said, f"{said}: more than 3 times and 50 ms")


@dataclass
class Fault:
    """A row of the table.

    Attributes:
        name: What is done.
        must: What must hold.
        run: Does it.
        peer: Whether the released peer can be put through it; if not, perhaps why.
        sessions: How many are live.
    """

    name: str
    must: str
    run: Callable[[Trial], None]
    peer: bool | str
    sessions: int

    def under(self, system: str, seed: int, soak_s: float, turns: int) -> Finding:
        """Puts a system through it; whatever happens, nothing of it is left."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"chaos-{system}-") as name:
            folder = Path(name)
            with ExitStack() as stack:
                trial = Trial(system, seed, soak_s, turns, stack, folder)
                try:
                    with _limited(LIMIT_S + soak_s):
                        self.run(trial)
                except Exception as error:  # noqa: BLE001 - a fault that cannot be put is one that failed
                    lines = traceback.format_exc().splitlines()
                    where = [line.strip() for line in lines if "tests/chaos" in line][-1:]
                    trial.finding.failed.append(f"{type(error).__name__}: {error} {where}"[:1500])
            for path in sorted(folder.glob("*")):
                end_marked(f"{os.getpid()}-{path.name}")
        trial.finding.seconds = time.monotonic() - began
        return trial.finding


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Ends what hangs, wherever it hangs; in the main thread."""

    def over(*_: object) -> None:
        raise TimeoutError(f"the trial was not over after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


FAULTS: list[Fault] = []


def fault(name: str, must: str, peer: bool | str = True, sessions: int = SESSIONS) -> Callable[..., Any]:
    """Puts a function into the table."""

    def enlist(run: Callable[[Trial], None]) -> Callable[[Trial], None]:
        FAULTS.append(Fault(name, must, run, peer, sessions))
        return run

    return enlist
