"""Which hosts a load has reached, and how evenly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from .report import Table
from .summary import Summary

__all__ = ["host_sentences", "hosts_tables", "too_few_hosts"]

# So many sessions for each host miss a given one only once in 20,000 times where each takes any of them, which is
# worse than any balancer. Smaller batches prove nothing.
SESSIONS_EACH = 10
_NOTE = (
    "A host is a server, as the gateway names it or the load chose it; where neither is known, what the environment "
    "calls its machine or container. Spread is the distance of the fullest and the emptiest host, by their mean."
)


def host_sentences(summaries: Sequence[Summary]) -> list[str]:
    """How even the largest batches were, in a sentence; none where there was one host."""
    shared = [summary for summary in summaries if len(summary.hosts) > 1]
    if not shared:
        return []
    size = max(summary.num_requests for summary in shared)
    worst = max((summary for summary in shared if summary.num_requests == size), key=_spread)
    counts = worst.hosts.values()
    return [
        f"{size:,} sessions were on {len(counts)} hosts, {min(counts):,} to {max(counts):,} on each: "
        f"{100 * _spread(worst):.1f} % apart."
    ]


def hosts_tables(summaries: Sequence[Summary]) -> list[Table]:
    """Where the sessions of each batch were, for the report; nothing where that is not known."""
    names = sorted({name for summary in summaries for name in summary.hosts})
    if not names:
        return []
    rows = [
        [
            f"{summary.num_requests:,}",
            f"{summary.wait_seconds:g}",
            str(summary.repetition),
            f"{100 * _spread(summary):.1f}" if summary.hosts else "-",
            *(f"{summary.hosts.get(name, 0):,}" for name in names),
        ]
        for summary in summaries
    ]
    return [Table("Hosts", ["sessions", "wait s", "rep.", "spread %", *names], rows, _NOTE)]


def too_few_hosts(summaries: Sequence[Summary], expected: int) -> str | None:
    """Why the load has not reached as many hosts as expected; None: it has.

    Each batch of `SESSIONS_EACH` sessions or more for each host must have reached all; all batches together must,
    in any case.
    """
    reached = sum((Counter(summary.hosts) for summary in summaries), Counter[str]())
    if not reached:
        return (
            f"{expected} hosts were expected, and none is known: no request succeeded, or nothing says where they "
            "ran, as the environment `benchmark` (host_url) and Envoys of `openenv gateway` do"
        )
    for summary in summaries:
        if summary.num_requests >= SESSIONS_EACH * expected and len(summary.hosts) < expected:
            where = f"{summary.num_requests:,} sessions (repetition {summary.repetition})"
            return f"{expected} hosts were expected, and {where} reached {_told(summary.hosts)}"
    if len(reached) < expected:
        return f"{expected} hosts were expected, and the load reached {_told(reached)}"
    return None


def _spread(summary: Summary) -> float:
    return summary.host_spread or 0.0


def _told(hosts: Mapping[str, int]) -> str:
    return f"{len(hosts)}: " + (", ".join(f"{name} ({count:,})" for name, count in sorted(hosts.items())) or "none")
