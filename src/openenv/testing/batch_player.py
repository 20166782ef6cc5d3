"""A class of batches under test: plays its instances without a server, and compares their results."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import numpy as np  # noqa: TID253 - only checks of batches load this module
from numpy.typing import NDArray  # noqa: TID253

from ..protocol.arrays import is_array
from ..recording.difference import ABSOLUTE, RELATIVE, SchemaNodes, first_difference
from ..runtime.batch import CheckedBatch
from ..runtime.columns import BatchSpec
from ..runtime.outcome import BatchOutcome
from .check import CheckFailure, CheckSkip
from .harness import ConformanceHarness, Repertoire

SEED = 7
STEPS = 6

Mask = NDArray[np.bool_]
Slots = NDArray[np.intp]
Columns = dict[str, Any]


class BatchUnderTest:
    """A class of batches.

    Args:
        harness: Its server, and the actions to play.

    Raises:
        CheckSkip: No action can be generated.

    Attributes:
        spec: The fields of its actions and observations.
        all: The mask of all episodes.
        slots: The numbers of all episodes.
    """

    def __init__(self, harness: ConformanceHarness):
        server = harness.server
        self.spec: BatchSpec = server.batch
        self.all = np.ones(self.spec.num_envs, dtype=np.bool_)
        self.slots = np.arange(self.spec.num_envs)
        self._make = server.env_factory
        self._schema = SchemaNodes(server.schemas["observation"])
        rows = Repertoire(server, harness.given, [], None).actions
        self._actions = [server.action_cls.model_validate(row) for row in rows]

    @contextlib.contextmanager
    def instance(self) -> Iterator[BatchPlayer]:
        """A new instance for a block."""
        with _errors_of("the constructor"):
            made = self._make()
        try:
            yield BatchPlayer(CheckedBatch(self.spec, made))
        finally:
            with _errors_of("close"):
                made.close()

    def need_masks(self) -> None:
        """Raises `CheckSkip` if the episodes cannot step or start one by one."""
        if not self.spec.is_shared:
            raise CheckSkip("the episodes of the batch start and step together")
        if self.spec.num_envs < 2:
            raise CheckSkip("there is only one episode (num_envs)")

    def seeds(self, first: int = SEED) -> list[int | None]:
        """A seed for each episode: `first` and the numbers after it."""
        return list(range(first, first + self.spec.num_envs))

    def actions(self, step: int, mask: Mask, episodes: Slots | None = None) -> Columns:
        """The actions of a step, which differ between episodes; 0 or None outside of the mask.

        Args:
            step: Number of the step.
            mask: The slots that step.
            episodes: The episode that each slot plays; None if slot and episode have the same number.
        """
        numbers = (self.slots if episodes is None else episodes % self.spec.num_envs) + step
        chosen = [self._actions[number % len(self._actions)] for number in numbers]
        columns: Columns = {}
        for field in self.spec.actions:
            values: Any = [getattr(action, field.name) for action in chosen]
            if field.array is None:
                values = [value if steps else None for value, steps in zip(values, mask, strict=True)]
            else:
                values = np.array(values, field.array.dtype)
                values[~mask] = 0
            columns[field.name] = values
        return columns

    def played(self, player: BatchPlayer, first: int = SEED) -> list[Columns]:
        """The results of a reset of all episodes and of some steps; no episode steps after its end."""
        results = [player.reset(self.seeds(first), self.all)]
        for step in range(STEPS):
            running = self.running(results)
            if not running.any():
                break
            results.append(player.step(self.actions(step, running), running))
        return results

    def running(self, results: list[Columns]) -> Mask:
        """The episodes to step next: those that have not ended, or all if the environment starts the next ones."""
        if self.spec.autoreset != "disabled":
            return self.all
        ended = [result["terminated"] | result["truncated"] for result in results[1:]]
        return ~np.logical_or.reduce(ended) if ended else self.all

    def expect(self, expected: Columns, seen: Columns, mask: Mask, where: str, shift: int = 0) -> None:
        """Compares two results, except for fields without a seed.

        Args:
            expected: A result.
            seen: The result that must have the same rows.
            mask: The episodes to compare.
            where: What is different about the second result, for the message.
            shift: Number of slots by which the episodes are further on in the second result.

        Raises:
            CheckFailure: An episode differs.
        """
        slots = self.slots[mask]
        places = (slots + shift) % self.spec.num_envs
        for name, column in expected.items():
            nodes = self._schema.field(name)
            if name not in seen or nodes.follows_no_seed:
                continue
            for slot, place in _unequal(column, seen[name], slots, places, nodes):
                raise CheckFailure(
                    f"{name} of episode {slot} is {_shown(column[slot])}, and {_shown(seen[name][place])} {where}.",
                    "change only the rows of the mask, and let an episode depend on its own seed and actions alone, "
                    "with its own generator of random numbers",
                )

    @staticmethod
    def changed(before: Columns, after: Columns) -> list[str]:
        """The names of the columns of a result that are not the same."""

        def is_same(one: Any, other: Any) -> bool:
            return bool(np.array_equal(one, other)) if is_array(one) else bool(one == other)

        return [name for name, column in before.items() if not is_same(column, after[name])]


class BatchPlayer:
    """Calls one instance, and keeps copies of its results, which the next call may change.

    Args:
        batch: The instance.
    """

    def __init__(self, batch: CheckedBatch):
        self._batch = batch

    def reset(self, seeds: list[int | None], mask: Mask) -> Columns:
        """Starts episodes. Raises `CheckFailure` if it raises, or returns something else than it declares."""
        return copy.deepcopy(self.uncopied_reset(seeds, mask))

    def step(self, actions: Columns, mask: Mask) -> Columns:
        """Steps episodes. Raises as `reset` does."""
        return copy.deepcopy(self.uncopied_step(actions, mask))

    def converted(self, seeds: list[int | None], mask: Mask) -> list[str]:
        """The fields for which `reset` returns arrays of another type than declared."""
        with _errors_of("reset"):
            observations, _ = self._batch.environment.reset(seeds, mask.copy())
        return [
            f"{field.name} ({observations[field.name].dtype}, declared {field.array.name})"
            for field in self._batch.spec.observations
            if field.array is not None and is_array(observations.get(field.name))
            if str(observations[field.name].dtype).removeprefix("torch.") != field.array.name
        ]

    def uncopied_reset(self, seeds: list[int | None], mask: Mask) -> Columns:
        """The result of `reset` itself."""
        with _errors_of("reset"):
            return _columns_of(self._batch.reset(list(seeds), mask.copy(), {}))

    def uncopied_step(self, actions: Columns, mask: Mask) -> Columns:
        """The result of `step` itself."""
        with _errors_of("step"):
            return _columns_of(self._batch.step(actions, mask.copy()))


def _columns_of(outcome: BatchOutcome) -> Columns:
    columns = {**outcome.observations, "terminated": outcome.terminated, "truncated": outcome.truncated}
    return columns if outcome.rewards is None else {**columns, "reward": outcome.rewards}


@contextlib.contextmanager
def _errors_of(call: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the edge to foreign code
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise CheckFailure(
            f"{call} of the batch raised {text}.",
            "take and return a row for each of the num_envs episodes, of the types that the fields declare",
        ) from error


def _unequal(one: Any, other: Any, slots: Slots, places: Slots, nodes: SchemaNodes) -> Iterator[tuple[int, int]]:
    """The slots of episodes with different values."""
    if is_array(one) and is_array(other) and one.dtype.kind in "biuf":
        same = np.isclose(one[slots], other[places], RELATIVE, ABSOLUTE, equal_nan=True)
        different = ~same.reshape(len(slots), -1).all(axis=1)
        yield from ((int(slots[at]), int(places[at])) for at in np.flatnonzero(different))
        return
    for slot, place in zip(slots.tolist(), places.tolist(), strict=True):
        if first_difference(one[slot], other[place], nodes) is not None:
            yield slot, place


def _shown(value: Any) -> str:
    text = " ".join(str(value.tolist() if isinstance(value, np.ndarray | np.generic) else value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
