"""What the environments say was done to them, and whether it is what the clients know."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

__all__ = ["EPISODES", "PROBES", "Ledger"]

# Numbers of episodes that a session has: the first is its own number times this.
EPISODES = 100_000
# Episodes from here on are no session's of a crowd, nor are those without a number: they were played to see whether
# somebody is there.
PROBES = 990_000_000


class Ledger:
    """The file in which environments note their deeds.

    Attributes:
        resets: By episode, how often it was begun.
        steps: By episode, the numbers of the requests that were executed, in order.
        made, closed: How many environments were.
        most_at_once: Environments that lived at one time.
        places: By session, the process that executed its last step.
    """

    def __init__(self, path: Path):
        self.resets: Counter[int] = Counter()
        self.steps: defaultdict[int, list[int]] = defaultdict(list)
        self.places: dict[int, int] = {}
        self.made = self.closed = self.most_at_once = 0
        for line in path.read_text().splitlines():
            deed, episode, number, pid = line.split()
            if deed in {"reset", "step"} and not 0 <= int(episode) < PROBES:
                continue
            if deed == "step":
                self.places[int(episode) // EPISODES] = int(pid)
                self.steps[int(episode)].append(int(number))
            elif deed == "reset":
                self.resets[int(episode)] += 1
            elif deed == "made":
                self.made += 1
                self.most_at_once = max(self.most_at_once, self.made - self.closed)
            else:
                self.closed += 1

    @property
    def total(self) -> int:
        """Steps of all environments."""
        return sum(len(found) for found in self.steps.values())

    def differences(self, report: dict[str, Any]) -> list[str]:
        """Where the environments' counts are not those of a crowd.

        A step that was answered was executed once. One that ended in an error was executed once or not at all, and
        no other was executed.
        """
        found = []
        answered = {int(episode): count for episode, count in report["answered"].items()}
        unanswered = {int(episode): numbers for episode, numbers in report["unanswered"].items()}
        for episode in sorted(self.steps.keys() | answered.keys()):
            executed = self.steps.get(episode, [])
            doubtful = set(unanswered.get(episode, ()))
            if len(set(executed)) != len(executed):
                found.append(f"episode {episode}: a request was executed twice: {_twice(executed)}")
            certain = [number for number in executed if number not in doubtful]
            # An answer under a request that was given up counts as answered nowhere.
            if len(certain) != answered.get(episode, 0):
                found.append(
                    f"episode {episode}: {answered.get(episode, 0)} answered, {len(certain)} executed of those"
                )
        found += [
            f"episode {episode}: reset {count} times"
            for episode, count in self.resets.items()
            if count > 1 and episode in answered
        ]
        return found


def _twice(numbers: list[int]) -> list[int]:
    return [number for number, count in Counter(numbers).items() if count > 1]
