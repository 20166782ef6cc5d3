"""Rubrics made of rubrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isclose, isnan
from typing import Any, overload

from .base import Rubric, Steps, close_coroutines, gather_values, settled


class _Numbered(Rubric):
    """Rubrics in a row, as children `rubric_0`, `rubric_1`, ...; other children of a subclass are not in it."""

    _names: tuple[str, ...] = ()

    def _add(self, rubrics: Iterable[Rubric]) -> None:
        for rubric in rubrics:
            name = f"rubric_{len(self._names)}"
            setattr(self, name, _checked(rubric, self))
            self._names = (*self._names, name)

    def _row(self) -> list[Rubric]:
        return [self._rubric_children[name] for name in self._names]

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Rubric]:
        return iter(self._row())

    @overload
    def __getitem__(self, index: int) -> Rubric: ...

    @overload
    def __getitem__(self, index: slice) -> list[Rubric]: ...

    def __getitem__(self, index: int | slice) -> Rubric | list[Rubric]:
        return self._row()[index]

    def __bool__(self) -> bool:
        return True  # an empty one is still a rubric


class Sequential(_Numbered):
    """Rubrics one after the other, up to the first that gives 0; the score is the last one's.

    Without rubrics the score is 1.0. Rubrics after a 0 are not called: a cheap check saves an expensive judge.

    Args:
        rubrics: In their order.
    """

    def __init__(self, *rubrics: Rubric):
        super().__init__()
        self._add(rubrics)

    @settled
    def forward(self, action: Any, observation: Any) -> Steps[float]:
        score: float = 1.0
        for rubric in self._row():
            score = yield rubric(action, observation)
            if score == 0:
                return 0.0
        return score


class Gate(Rubric):
    """The score of a rubric if it reaches a threshold, else 0.0.

    Args:
        rubric: Becomes the child `rubric`.
        threshold: The least score that passes.

    Raises:
        ValueError: The threshold is NaN, so no score reaches it.
    """

    def __init__(self, rubric: Rubric, threshold: float = 1.0):
        super().__init__()
        self.rubric = _checked(rubric, self)
        self.threshold = _checked_threshold(threshold)

    @settled
    def forward(self, action: Any, observation: Any) -> Steps[float]:
        score: float = yield self.rubric(action, observation)
        return score if score >= self.threshold else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"threshold": self.threshold, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.threshold = _checked_threshold(state.get("threshold", self.threshold))
        super().load_state_dict(state)


class WeightedSum(_Numbered):
    """The sum of weighted scores. All rubrics are called; asynchronous ones run concurrently.

    Args:
        rubrics: At least one.
        weights: One for each rubric; they sum to 1.

    Raises:
        ValueError: The numbers of weights and rubrics differ, or the sum is not 1.
    """

    def __init__(self, rubrics: list[Rubric], weights: list[float]):
        super().__init__()
        self._weights = _checked_weights(weights, len(rubrics))
        self._add(rubrics)

    @property
    def weights(self) -> list[float]:
        return list(self._weights)

    @settled
    def forward(self, action: Any, observation: Any) -> Steps[float]:
        given: list[Any] = []
        try:
            given.extend(rubric(action, observation) for rubric in self._row())
        except BaseException:
            close_coroutines(given)
            raise
        scores = yield gather_values(given)
        total: float = sum(weight * score for weight, score in zip(self._weights, scores, strict=True))
        return total

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weights = _checked_weights(state.get("weights", self._weights), len(self))
        super().load_state_dict(state)


class RubricList(_Numbered):
    """A list of rubrics for a parent that calls them itself.

    Args:
        rubrics: In their order.
    """

    def __init__(self, rubrics: Iterable[Rubric] | None = None):
        super().__init__()
        self._add(rubrics or ())

    def append(self, rubric: Rubric) -> None:
        self._add((rubric,))

    def extend(self, rubrics: Iterable[Rubric]) -> None:
        self._add(rubrics)

    def forward(self, action: Any, observation: Any) -> Any:
        raise NotImplementedError(_NO_SCORE.format("RubricList"))


class RubricDict(Rubric):
    """Rubrics by name for a parent that calls them itself, one for each game or task for instance.

    Args:
        rubrics: By their names, which are the names of the children; they are read as attributes, too.
    """

    def __init__(self, rubrics: Mapping[str, Rubric] | None = None):
        super().__init__()
        self.update(rubrics or {})

    def __getattr__(self, name: str) -> Rubric:
        # From `__dict__`: this is called for any missing attribute, also before there are children.
        children: Mapping[str, Rubric] = self.__dict__.get("_rubric_children", {})
        if name in children:
            return children[name]
        raise AttributeError(f"{type(self).__name__} has no attribute and no rubric {name!r}")

    def __getitem__(self, name: str) -> Rubric:
        return self._rubric_children[name]

    def __setitem__(self, name: str, rubric: Rubric) -> None:
        self._register(name, _checked(rubric, self))

    def __delitem__(self, name: str) -> None:
        if name not in self._rubric_children:
            raise KeyError(name)
        self._unregister(name)

    def __len__(self) -> int:
        return len(self._rubric_children)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._rubric_children)

    def __contains__(self, name: object) -> bool:
        return name in self._rubric_children

    def keys(self) -> Iterator[str]:
        yield from self._rubric_children

    def values(self) -> Iterator[Rubric]:
        yield from self._rubric_children.values()

    def items(self) -> Iterator[tuple[str, Rubric]]:
        yield from self._rubric_children.items()

    def update(self, rubrics: Mapping[str, Rubric]) -> None:
        for name, rubric in rubrics.items():
            self[name] = rubric

    def forward(self, action: Any, observation: Any) -> Any:
        raise NotImplementedError(_NO_SCORE.format("RubricDict"))


_NO_SCORE = (
    "a {0} has no score of its own: call its rubrics in the forward() of the rubric that holds it, "
    "or use WeightedSum, Sequential or Gate"
)


def _checked(rubric: Any, container: Rubric) -> Rubric:
    if isinstance(rubric, Rubric):
        return rubric
    raise TypeError(f"{type(container).__name__} takes instances of Rubric, not {rubric!r:.100}")


def _checked_threshold(threshold: float) -> float:
    if isnan(threshold):
        raise ValueError("threshold is nan, which no score reaches")
    return threshold


def _checked_weights(weights: Iterable[float], count: int) -> list[float]:
    given = list(weights)
    if len(given) != count:
        raise ValueError(f"the number of weights ({len(given)}) must match the number of rubrics ({count})")
    total = sum(given)
    if not isclose(total, 1.0, abs_tol=1e-6):
        raise ValueError(f"weights must sum to 1.0, and {given} sum to {total}: divide each by their sum")
    return given
