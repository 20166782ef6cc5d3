"""Rubrics to make trees of, and a model that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from openenv.llm import LLMClient
from openenv.rubrics import Rubric

__all__ = ["Constant", "Late", "Model", "Strange", "Tensor"]


class Tensor:
    """Several numbers, which torch refuses to make one of in its own way."""

    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    def __repr__(self) -> str:  # the same in every process: tests are named after it
        return "Tensor(2 elements)"


class Constant(Rubric):
    """Always the same score, whatever it is."""

    def __init__(self, score: Any = 0.5):
        super().__init__()
        self.score = score
        self.calls = 0
        self.resets = 0

    def forward(self, action: Any, observation: Any) -> Any:
        self.calls += 1
        return self.score

    def reset(self) -> None:
        self.resets += 1


class Late(Rubric):
    """Gives its score when it may; says when it was asked."""

    def __init__(self, score: Any = 0.5, *, waits: bool = False):
        super().__init__()
        self.score = score
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.cancelled = False
        if not waits:
            self.may_answer.set()

    async def forward(self, action: Any, observation: Any) -> Any:
        self.asked.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return self.score


class Strange(Rubric):
    """Never calls the constructor of its base."""

    def __init__(self) -> None:
        self.part = Constant(0.25)

    def forward(self, action: Any, observation: Any) -> Any:
        return self.part(action, observation)


class Model(LLMClient):
    """Answers with what it is given, one after the other and the last one for ever; raises what is an error."""

    def __init__(self, *answers: Any, before: Callable[[], Any] | None = None):
        super().__init__("http://model", 0)
        self.answers = list(answers)
        self.prompts: list[str] = []
        self.before = before

    async def complete(self, prompt: str, **kwargs: Any) -> str:
        self.prompts.append(prompt)
        if self.before is not None:
            await self.before()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer
