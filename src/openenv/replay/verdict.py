"""What came of one episode that was played again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..testing.difference import ABSENT, Difference

__all__ = ["Divergence", "Outcome", "Verdict"]


class Outcome(StrEnum):
    """How an episode compares with its record.

    SAME: nothing differs, as far as it could be compared. DIFFERENT: something does. UNSEEDED: it was reset without a
    seed, or its environment takes none, so it need not be the same. INCOMPLETE: the record lacks its beginning.
    MISMATCHED: it was recorded with other schemas. FAILED: it could not be played or read, for a reason that is none
    of the environment's (a deadline, a lost connection, a missing array).
    """

    SAME = "same"
    DIFFERENT = "different"
    UNSEEDED = "unseeded"
    INCOMPLETE = "incomplete"
    MISMATCHED = "mismatched"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of an episode.

    Attributes:
        step: 0 is the reset.
        part: What of the transition differs: observation, reward, done, terminated, truncated or error.
        difference: Where in it, and both values.
    """

    step: int
    part: str
    difference: Difference

    @property
    def path(self) -> str:
        """Where it is in the line of the record: `observation.board[3]`."""
        place = self.difference.place
        return self.part if not place else f"{self.part}{'' if place.startswith('[') else '.'}{place}"

    def sentence(self) -> str:
        """In words, with both values."""
        call = "the reset" if self.step == 0 else f"step {self.step}"
        whole = Difference((self.path,), self.difference.one, self.difference.other)
        return f"{call}: {whole.sentence('recorded', 'played')}"

    def facts(self) -> dict[str, Any]:
        """As `--json` has it."""
        values = {"recorded": self.difference.one, "played": self.difference.other}
        found = {name: value for name, value in values.items() if value is not ABSENT}
        return {"step": self.step, "path": self.path, **found}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one episode.

    Attributes:
        episode_id, session_id, environment, seed: Of the record.
        outcome: How it compares.
        steps: How many of its steps were compared.
        divergence: The first difference of a DIFFERENT one.
        note: Why it was not compared, or not to its end; empty if it was.
    """

    episode_id: str
    session_id: str
    environment: str
    seed: int | None
    outcome: Outcome
    steps: int = 0
    divergence: Divergence | None = None
    note: str = ""

    def sentence(self) -> str:
        """In words."""
        said = self.divergence.sentence() if self.divergence is not None else self.note
        seed = "" if self.seed is None else f" (seed {self.seed})"
        return f"episode {self.episode_id} of {self.environment}{seed}: {said or self.outcome.value}"

    def facts(self) -> dict[str, Any]:
        """As `--json` has it."""
        return {
            "episode_id": self.episode_id,
            "session_id": self.session_id,
            "environment": self.environment,
            "seed": self.seed,
            "outcome": str(self.outcome),
            "steps": self.steps,
            "difference": None if self.divergence is None else self.divergence.facts(),
            "note": self.note,
        }
