"""From a rubric to a reward: the code behind `Environment._apply_rubric` and its asynchronous form."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextvars import ContextVar
from inspect import isawaitable
from math import isfinite
from typing import Any

from pydantic import BaseModel

from .errors import RubricFailed

logger = logging.getLogger(__name__)

Rubric = Callable[[Any, Any], Any]
_PLAIN = (float, int, bool)


class Score(float):
    """The score of a synchronous rubric. Asynchronous code may await it, like the score of an asynchronous rubric."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, float]:
        return float(self)
        yield  # makes this a generator


class ScoreSheet:
    """The scores of a rubric's parts during one call, separate from concurrent calls of the same rubric.

    Attributes:
        scores: The scores, by the id of the part.
        notes: Remarks about a score, with the part that gave it.
    """

    __slots__ = ("notes", "scores")

    def __init__(self) -> None:
        self.scores: dict[int, float] = {}
        self.notes: list[tuple[Any, str]] = []


current_sheet: ContextVar[ScoreSheet | None] = ContextVar("openenv_sheet", default=None)
"""The sheet of the current call."""


def score(rubric: Rubric, action: Any, observation: Any, report: bool) -> float:
    """Applies a rubric from synchronous code; waits for an asynchronous one.

    Args:
        rubric: A rubric, or any callable of the same two arguments; it may be asynchronous.
        action, observation: The action and observation to judge.
        report: Write the scores of the parts to `observation.metadata["rubric"]`: by their paths, None for a part
            that was not asked, and the whole under `total`. Notes go to `metadata["rubric_notes"]` in any case.

    Raises:
        RubricFailed: The score is not a finite number.
    """
    page, before = ScoreSheet(), current_sheet.get()
    current_sheet.set(page)
    try:
        given = resolve_awaitable(rubric(action, observation))
    finally:
        current_sheet.set(before)
    return _settled(rubric, given, page, observation, report)


async def score_async(rubric: Rubric, action: Any, observation: Any, report: bool) -> float:
    """Like `score`, from asynchronous code."""
    page, before = ScoreSheet(), current_sheet.get()
    current_sheet.set(page)
    try:
        given = rubric(action, observation)
        if _is_pending(given):
            given = await given
    finally:
        current_sheet.set(before)
    return _settled(rubric, given, page, observation, report)


def _settled(rubric: Rubric, given: Any, page: ScoreSheet, observation: Any, report: bool) -> float:
    total = float(finite_score(given, rubric))
    if report:
        parts: dict[str, float | None] = {path: page.scores.get(id(part)) for path, part in _parts(rubric)}
        parts["total"] = total
        _add_metadata(observation, "rubric", parts)
    if page.notes:
        paths = {id(part): path for path, part in _parts(rubric)}
        notes = {paths.get(id(part)) or rubric_label(part): note for part, note in page.notes}
        _add_metadata(observation, "rubric_notes", notes)
    return total


def _parts(rubric: Any) -> list[tuple[str, Any]]:
    named = getattr(rubric, "named_rubrics", None)
    return list(named()) if callable(named) else []


def _add_metadata(observation: Any, key: str, facts: dict[str, Any]) -> None:
    """Adds facts to the metadata of an observation of any kind."""
    if isinstance(observation, dict):
        observation["metadata"] = {**(observation.get("metadata") or {}), key: facts}
        return
    metadata = getattr(observation, "metadata", None)
    # A model's dict is its own, and setting a field would validate the whole model again.
    if isinstance(observation, BaseModel) and type(metadata) is dict:
        metadata[key] = facts
        return
    try:
        observation.metadata = {**(metadata or {}), key: facts}
    except (AttributeError, TypeError, ValueError):  # a frozen observation, or one without such a field
        if isinstance(metadata, dict):
            metadata[key] = facts
        else:
            logger.warning("%s accepts no metadata, so its %s are not reported", type(observation).__name__, key)


def finite_score(given: Any, rubric: Any) -> float:
    """A score unchanged if it is a Python number; a number of another kind (numpy's, a tensor's) as a float.

    Args:
        given: The result of `forward`.
        rubric: The rubric that returned it, for the message.

    Raises:
        RubricFailed: It is NaN, infinite, or not a number.
    """
    if type(given) is float and isfinite(given):
        return given
    try:
        if type(given) not in _PLAIN and not hasattr(type(given), "__float__"):
            raise TypeError
        number = given if isinstance(given, _PLAIN) else float(given)
        if isfinite(number):
            return number
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch raises RuntimeError
        pass
    raise RubricFailed(
        f"{rubric_label(rubric)} returned {given!r:.100}, which is not a score: forward() must return a finite "
        "number or raise an error, which reaches the trainer as a failed step and never as a reward"
    )


def rubric_label(rubric: Any) -> str:
    """A description of a rubric: its name in its parent, and its class."""
    kind = getattr(rubric, "__name__", None) or type(rubric).__name__
    name = getattr(rubric, "_registered_as", None)
    return f"rubric {name!r} ({kind})" if name else f"rubric {kind}"


def reset_rubric(rubric: Any) -> Any:
    """Resets a rubric by its `reset_async`, or else by its `reset`, if it has one of them.

    Returns:
        None, or an awaitable that resets it.
    """
    reset = getattr(rubric, "reset_async", None) or getattr(rubric, "reset", None)
    return None if reset is None else reset()


def _is_pending(value: Any) -> bool:
    return not isinstance(value, Score) and isawaitable(value)


def resolve_awaitable(value: Any) -> Any:
    """A value that may be awaitable, for synchronous code: the value itself, or the result of awaiting it."""
    if not _is_pending(value):
        return value
    from ._asyncio import wait_for  # noqa: PLC0415 - asyncio takes time to import, and few rubrics need it

    return wait_for(value)
