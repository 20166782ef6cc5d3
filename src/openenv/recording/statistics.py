"""What many recorded episodes say together."""

from __future__ import annotations

from array import array
from collections import Counter
from statistics import fmean, quantiles, stdev
from typing import Any, NamedTuple

from .episode import Episode

__all__ = ["Spread", "Statistics"]

_ENDED = ("terminated", "truncated", "done")
# Of twenty parts, where these shares end.
_SHARES = {"p5": 0, "p25": 4, "median": 9, "p75": 14, "p95": 18}


class Spread(NamedTuple):
    """Values in short; `std` is None for one value."""

    episodes: int
    mean: float
    std: float | None
    least: float
    p5: float
    p25: float
    median: float
    p75: float
    p95: float
    most: float

    @classmethod
    def of(cls, values: array[float]) -> Spread | None:
        """None if there are none. Quantiles lie between two values where need be."""
        if not values:
            return None
        parts = quantiles(values, n=20, method="inclusive") if len(values) > 1 else [values[0]] * 19
        shares = {name: parts[index] for name, index in _SHARES.items()}
        std = stdev(values) if len(values) > 1 else None
        return cls(episodes=len(values), mean=fmean(values), std=std, least=min(values), most=max(values), **shares)


class Statistics:
    """Counts the episodes of one environment.

    Returns and lengths are those of episodes that ended: what was left in the middle, or failed, says nothing of how
    well it was played. Of an environment none of whose episodes end, they are those of all that did not fail.

    Attributes:
        episodes, steps: How many there are.
        outcomes: How many ended in which way.
        errors: How many calls failed with which error.
        failing: How many episodes have such a call.
        began, ended: Unix seconds of the first call and the end of the last one.
        play_s: Seconds that the episodes lasted, one after the other.
    """

    def __init__(self) -> None:
        self.episodes = self.steps = self.failing = 0
        self.outcomes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.began = float("inf")
        self.ended = float("-inf")
        self.play_s = 0.0
        self._ended = (array("d"), array("d"))
        self._open = (array("d"), array("d"))

    def add(self, episode: Episode) -> None:
        """One more."""
        outcome = episode.outcome
        self.episodes += 1
        self.steps += episode.steps - episode.first_step + (episode.first_step > 0)
        self.outcomes[outcome] += 1
        self.failing += bool(episode.errors)
        self.errors.update(episode.errors)
        self.began = min(self.began, episode.began)
        self.ended = max(self.ended, episode.ended)
        self.play_s += max(0.0, episode.ended - episode.began)
        if not episode.whole or outcome == "failed":
            return
        returns, lengths = self._ended if outcome in _ENDED else self._open
        lengths.append(episode.steps)
        if episode.episode_return is not None:
            returns.append(episode.episode_return)

    @property
    def of_ended(self) -> bool:
        """Whether returns and lengths are those of episodes that ended."""
        return bool(self._ended[1])

    @property
    def returns(self) -> Spread | None:
        """Of the episodes with a reward; None if there are none."""
        return Spread.of((self._ended if self.of_ended else self._open)[0])

    @property
    def lengths(self) -> Spread | None:
        """In steps; None if there are none."""
        return Spread.of((self._ended if self.of_ended else self._open)[1])

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        returns, lengths = self.returns, self.lengths
        return {
            "episodes": self.episodes,
            "steps": self.steps,
            "began": self.began if self.episodes else None,
            "ended": self.ended if self.episodes else None,
            "play_s": round(self.play_s, 6),
            "outcomes": dict(self.outcomes),
            "of_ended": self.of_ended,
            "returns": None if returns is None else returns._asdict(),
            "lengths": None if lengths is None else lengths._asdict(),
            "failing": self.failing,
            "errors": dict(self.errors),
        }
