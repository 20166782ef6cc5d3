"""What a solution is worth: the share of the hidden tests that it passes."""

from __future__ import annotations

import json
from typing import Any

from .sandbox import Reply, Sandbox
from .tasks import Task

__all__ = ["grade"]

GRADE_S = 5.0


def grade(task: Task, code: str) -> tuple[float, Reply]:
    """Runs a solution in a sandbox of its own, which nothing of its author's has been in.

    It is given the arguments and tells its answers; they are compared here, where its code cannot be. Whatever it
    says there is an answer and nothing more.

    Returns:
        The share, and what became of it.

    Raises:
        OSError: There is no sandbox.
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
    """Equal and of the same type, through and through: 1, 1.0 and True are three answers."""
    if type(given) is not type(expected):
        return False
    if isinstance(expected, list):
        return len(given) == len(expected) and all(map(is_same, given, expected))
    return bool(given == expected)
