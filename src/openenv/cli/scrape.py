"""What `GET /metrics` said at one moment, and what happened between two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..errors import ProtocolViolation
from ..metrics import quantile

__all__ = ["Interval", "Scrape", "Timing"]

Labels = frozenset[tuple[str, str]]


class Timing(NamedTuple):
    """What a phase did in an interval. None: nothing ended in it.

    Attributes:
        per_second: How often it ended.
        mean, p50, p99: Seconds.
    """

    per_second: float
    mean: float | None
    p50: float | None
    p99: float | None


class Scrape:
    """The numbers of a server.

    Args:
        at: Monotonic seconds.
        samples: Values by name and labels.
    """

    def __init__(self, at: float, samples: Mapping[tuple[str, Labels], float]):
        self.at = at
        self._samples = samples

    @classmethod
    def parse(cls, text: str, at: float) -> Scrape:
        """Reads Prometheus' text format.

        Raises:
            ProtocolViolation: It is something else.
        """
        from prometheus_client.parser import text_string_to_metric_families

        try:
            families = list(text_string_to_metric_families(text))
        except ValueError as error:
            raise ProtocolViolation(f"what GET /metrics answered is no Prometheus text: {error}") from None
        samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }
        if ("openenv_workers", frozenset()) not in samples:
            raise ProtocolViolation("what GET /metrics answered is not of an openenv server")
        return cls(at, samples)

    def value(self, name: str) -> float:
        """A number without labels; 0 where a server does not tell it."""
        return self._samples.get((f"openenv_{name}", frozenset()), 0.0)

    def by(self, name: str, label: str) -> dict[str, float]:
        """Numbers by the value of a label, in the order in which the server tells them."""
        return {dict(labels)[label]: value for (found, labels), value in self._all(name) if label in dict(labels)}

    def errors(self) -> dict[tuple[str, str], float]:
        """How many errors there were, by class and blame."""
        facts = ((dict(labels), value) for (_, labels), value in self._all("errors_total"))
        return {(labels["error"], labels["blame"]): value for labels, value in facts}

    def buckets(self, phase: str) -> list[tuple[float, float]]:
        """Bounds in seconds, and how many calls took less."""
        facts = ((dict(labels), value) for (_, labels), value in self._all("phase_seconds_bucket"))
        return sorted((float(labels["le"]), value) for labels, value in facts if labels["phase"] == phase)

    def seconds(self, phase: str) -> float:
        """What a phase took together."""
        return self.by("phase_seconds_sum", "phase").get(phase, 0.0)

    def _all(self, name: str) -> list[tuple[tuple[str, Labels], float]]:
        return [(key, value) for key, value in self._samples.items() if key[0] == f"openenv_{name}"]


class Interval:
    """What happened from one scrape to the next.

    Args:
        before, now: Of the same server; if it was started anew in between, all that it counts has happened since.
    """

    def __init__(self, before: Scrape, now: Scrape):
        self.now = now
        self.seconds = max(now.at - before.at, 1e-9)
        self._before = before

    def errors(self) -> dict[tuple[str, str], float]:
        """How many errors there were in it, by class and blame."""
        before = self._before.errors()
        return {key: _growth(before.get(key, 0.0), value) for key, value in self.now.errors().items()}

    def timing(self, phase: str) -> Timing:
        """What a phase did in it."""
        before, buckets = dict(self._before.buckets(phase)), self.now.buckets(phase)
        sums = [value - before.get(bound, 0.0) for bound, value in buckets]
        seconds = self.now.seconds(phase) - self._before.seconds(phase)
        if any(value < 0 for value in sums):
            sums, seconds = [value for _, value in buckets], self.now.seconds(phase)
        counts = [value - below for value, below in zip(sums, [0.0, *sums], strict=False)]
        ended = sums[-1] if sums else 0.0
        if not ended:
            return Timing(0.0, None, None, None)
        bounds = [bound for bound, _ in buckets[:-1]]
        low, high = (quantile(bounds, counts, share) for share in (0.5, 0.99))
        return Timing(ended / self.seconds, seconds / ended, low, high)


def _growth(before: float, now: float) -> float:
    return now - before if now >= before else now
