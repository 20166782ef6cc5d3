"""What one part of the demo came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from .games import Play
from .quantiles import Spread, spread

__all__ = ["PHASES", "Line", "Workload"]

PHASES = ("connect", "reset", "step", "total")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the demo's `summary.csv`. Latencies are seconds."""

    workload: str
    requests: int
    successful: int
    failed: int
    success_rate: float
    sessions: int
    total_wall_time: float
    sessions_per_second: float
    steps: int
    steps_per_second: float
    memory_per_session_kb: float


@dataclass(slots=True)
class Workload:
    """What one part of the demo came to.

    Attributes:
        name: What was served.
        sessions: Sessions that were opened.
        wall_s: Seconds from the first connect to the last close.
        session_bytes: By how much the server's resident memory grew for each open session.
        rows: One a request or episode.
        spans: From when to when each session was connected and had something to do, in seconds of one clock.
    """

    name: str
    sessions: int
    wall_s: float
    session_bytes: float
    rows: list[Play]
    spans: list[tuple[float, float]] = field(default_factory=list)

    @property
    def successful(self) -> int:
        return sum(row.success for row in self.rows)

    @property
    def failed(self) -> int:
        return len(self.rows) - self.successful

    @property
    def steps(self) -> int:
        return sum(row.steps for row in self.rows)

    def latencies(self, phase: str) -> list[float]:
        """Seconds: of every step, and of what else succeeded, by the name of its phase."""
        good = [row for row in self.rows if row.success]
        if phase == "step":
            return [latency for row in good for latency in row.step_latencies]
        return [value for row in good if (value := getattr(row, f"{phase}_latency")) is not None]

    def spreads(self) -> dict[str, Spread]:
        """The quantiles of every phase."""
        return {phase: spread(self.latencies(phase)) for phase in PHASES}

    def line(self) -> Line:
        """What `summary.csv` says, but for the latencies."""
        return Line(
            workload=self.name,
            requests=len(self.rows),
            successful=self.successful,
            failed=self.failed,
            success_rate=self.successful / len(self.rows),
            sessions=self.sessions,
            total_wall_time=self.wall_s,
            sessions_per_second=self.sessions / self.wall_s,
            steps=self.steps,
            steps_per_second=self.steps / self.wall_s,
            memory_per_session_kb=self.session_bytes / 1024,
        )
