"""What came of all episodes that were played again."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .verdict import Outcome, Verdict

__all__ = ["Tally"]

# Of a million episodes that all differ, nobody reads the last.
MOST_KEPT = 1000
_COMPARED = (Outcome.SAME, Outcome.DIFFERENT)
_WRONG = (Outcome.DIFFERENT, Outcome.MISMATCHED, Outcome.FAILED)
_WORDS = {
    Outcome.SAME: "the same",
    Outcome.DIFFERENT: "different",
    Outcome.UNSEEDED: "not compared, without a seed",
    Outcome.INCOMPLETE: "not compared, without a beginning",
    Outcome.MISMATCHED: "not compared, of other schemas",
    Outcome.FAILED: "failed",
}


class Tally:
    """Counts verdicts, and keeps those that say more than `same`.

    Attributes:
        steps: Steps that were compared.
        kept: The first verdicts with a difference or a note.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.kept: list[Verdict] = []
        self._counts: Counter[Outcome] = Counter()

    def add(self, verdict: Verdict) -> None:
        """One more."""
        self._counts[verdict.outcome] += 1
        self.steps += verdict.steps
        if (verdict.note or verdict.divergence) and len(self.kept) < MOST_KEPT:
            self.kept.append(verdict)

    @property
    def episodes(self) -> int:
        """How many there were."""
        return self._counts.total()

    @property
    def compared(self) -> int:
        """How many were compared."""
        return sum(self._counts[outcome] for outcome in _COMPARED)

    @property
    def wrong(self) -> int:
        """How many differ, or could not be compared though they should."""
        return sum(self._counts[outcome] for outcome in _WRONG)

    def sentence(self) -> str:
        """How many came out how."""
        return ", ".join(f"{self._counts[each]:,} {words}" for each, words in _WORDS.items() if self._counts[each])

    def facts(self) -> dict[str, Any]:
        """As `--json` has it."""
        return {
            "same": not self.wrong and bool(self.compared),
            "episodes": self.episodes,
            "steps": self.steps,
            "outcomes": {str(outcome): self._counts[outcome] for outcome in Outcome},
            "noted": [verdict.facts() for verdict in self.kept],
        }
