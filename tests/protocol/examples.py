"""Models and strategies that the protocol's tests share."""

from __future__ import annotations

from hypothesis import strategies as st
from pydantic import field_validator

from openenv.types import Action, Observation

__all__ = ["Board", "Move", "finite_objects", "json_objects", "json_values", "moves", "observations"]


class Move(Action):
    """An action with a field of each kind, one of them with a rule of its own."""

    column: int
    note: str = ""
    weight: float | None = None
    path: list[int] = []

    @field_validator("column")
    @classmethod
    def on_the_board(cls, column):
        if column < 0:
            raise ValueError("columns count from 0")
        return column


class Board(Observation):
    """An observation with nested data."""

    cells: list[list[str]] = []
    legend: dict[str, int] = {}
    title: str | None = None


def trees(numbers):
    """JSON values with such numbers."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | numbers | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    )


# What travels and comes back: no NaN, since it equals nothing.
json_values = trees(st.floats(allow_nan=False))
json_objects = st.dictionaries(st.text(), json_values, max_size=4)
# The same in strict JSON, which knows no infinity either: what error frames are written in.
finite_objects = st.dictionaries(st.text(), trees(st.floats(allow_nan=False, allow_infinity=False)), max_size=4)

moves = st.builds(
    Move,
    column=st.integers(min_value=0),
    note=st.text(),
    weight=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    path=st.lists(st.integers(), max_size=4),
    metadata=json_objects,
)
observations = st.builds(
    Board,
    cells=st.lists(st.lists(st.text(max_size=3), max_size=3), max_size=3),
    legend=st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
    title=st.none() | st.text(),
    done=st.booleans(),
    reward=st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    metadata=json_objects,
)
