"""What an episode returns: text of observations for the model, and one reward for the trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from ...errors import ConnectionLost, StepFailed, UsageError
from ...types import StepResult

# Fields that are no part of what there is to read.
_BESIDE = frozenset({"reward", "done", "metadata", "truncated", "terminated"})
# Fields for text that is written to be read.
_WORDS = ("text", "message", "observation", "content", "output", "prompt", "response")


def text_of(observation: Any) -> str:
    """An observation as text: a field such as `text` or `message`, an only text, or all of it as JSON.

    Reward, done and metadata are no part of it.

    Returns:
        The empty text for an observation that holds nothing else.

    Raises:
        StepFailed: It holds a value that JSON cannot say.
    """
    if isinstance(observation, str):
        return observation
    fields = _fields(observation)
    if fields is None:
        return _json(observation)
    for name in _WORDS:
        if isinstance(fields.get(name), str) and fields[name]:
            return str(fields[name])
    if len(fields) == 1:
        (only,) = fields.values()
        if isinstance(only, str):
            return only
    return _json(fields) if fields else ""


def _fields(observation: Any) -> dict[str, Any] | None:
    if isinstance(observation, BaseModel):
        fields = {**observation.__dict__, **(observation.__pydantic_extra__ or {})}
    elif isinstance(observation, Mapping):
        fields = dict(observation)
    else:
        return None
    return {name: value for name, value in fields.items() if name not in _BESIDE}


def _json(value: Any) -> str:
    try:
        # Arrays and tensors have this method in common, and numpy's numbers.
        return to_json(
            value, fallback=lambda value: value.tolist(), inf_nan_mode="constants", bytes_mode="base64"
        ).decode()
    except ValueError as error:
        raise StepFailed(
            f"the observation cannot be shown to a model ({error}): give environment_factory render="
        ) from error


# From an observation to text, to content blocks, or to None for nothing.
Render = Callable[[Any], str | list[dict[str, Any]] | None]

_TRANSPORT = "transport_error"


def refusal_of(observation: Any) -> str | None:
    """The failure that a tool of an MCP environment reports as data, for the model; None if it did not fail.

    Raises:
        ConnectionLost: The tool could not be reached, by the infrastructure's fault.
    """
    error = _called(observation).get("error")
    if not error:
        return None
    kind, message = (_part(error, name) for name in ("error_type", "message"))
    kind = str(getattr(kind, "value", kind))
    if kind == _TRANSPORT:
        raise ConnectionLost(f"the tool could not be reached: {message}")
    return f"{kind}: {message}"


def answer_of(observation: Any) -> str:
    """An observation for a model to read: the result of a tool of an MCP environment, or `text_of` it."""
    called = _called(observation)
    if "result" not in called:
        return text_of(observation)
    result = called["result"]
    data = _part(result, "data")
    if data is not None:
        return text_of(data)
    blocks = _part(result, "content")
    if isinstance(blocks, list) and all(_part(block, "type") == "text" for block in blocks):
        return "\n".join(str(_part(block, "text")) for block in blocks)
    return "" if result is None else text_of(result)


def _called(observation: Any) -> Mapping[str, Any]:
    """The fields of the observation of a tool call; none for any other."""
    fields = observation if isinstance(observation, Mapping) else getattr(observation, "__dict__", {})
    return fields if {"tool_name", "result"} <= fields.keys() else {}


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


Results = Sequence[StepResult[Any]]
# None for an episode that cannot be scored, which trainers then leave out.
Reward = Callable[[list[StepResult[Any]]], float | None]


def total(results: Results) -> float | None:
    """The sum of the rewards. 0 for an episode without a step; None where there were steps and none gave a reward."""
    given = _given(results)
    return float(sum(given)) if given or not results else None


def last(results: Results) -> float | None:
    """The last reward that a step gave; otherwise as `total`."""
    given = _given(results)
    return given[-1] if given else total(results)


def reward_of(reward: Reward | str) -> Reward:
    """The function that `reward=` means.

    Raises:
        UsageError: It is none, and not the name of one.
    """
    named: dict[Any, Reward] = {"sum": total, "last": last}
    if callable(reward):
        return reward
    if reward in named:
        return named[reward]
    raise UsageError(
        f"reward={reward!r}: give 'sum', 'last', None or a function from the list of StepResults to a number"
    )


def _given(results: Results) -> list[float]:
    return [float(result.reward) for result in results if result.reward is not None]
