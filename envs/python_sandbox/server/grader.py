"""Rewards a solution with the share of the hidden tests that it passes."""

from __future__ import annotations

import json
from typing import Any

from .sandbox import Reply, Sandbox
from .tasks import Task

__all__ = ["grade"]

GRADE_S = 5.0


def grade(task: Task, code: str) -> tuple[float, Reply]:
    """Runs a solution in a new sandbox, in which no code of the agent ran before.

    The sandbox receives the arguments and returns the answers. This process compares them, since the solution cannot
    run code here. Output from the sandbox counts only as an answer.

    Returns:
        The share of hidden tests that passed, and the reply of the sandbox.

    Raises:
        OSError: The sandbox could not be started.
    """
    with Sandbox() as sandbox:
        reply = sandbox.ask(
            {"kind": "grade", "code": code, "function": task.family, "inputs": task.inputs, "seed": 0}, GRADE_S
        )
    given: dict[int, Any] = {}
    for text in reply.answers:
        try:
            said = json.loads(text)
            if isinstance(said, dict) and "answer" in said and type(said.get("index")) is int:
                given.setdefault(said["index"], said["answer"])
        except (ValueError, RecursionError):
            continue
    right = sum(index in given and is_same(given[index], each) for index, each in enumerate(task.expected))
    return right / len(task.expected), reply


def is_same(given: Any, expected: Any) -> bool:
    """Whether two values are equal, with equal types at every depth: 1, 1.0 and True are different answers."""
    if type(given) is not type(expected):
        return False
    if isinstance(expected, list):
        return len(given) == len(expected) and all(map(is_same, given, expected))
    return bool(given == expected)
