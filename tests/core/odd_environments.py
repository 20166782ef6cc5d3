"""Environments as existing projects write them: each leaves out, or does otherwise, one thing."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from openenv.core.env_server.interfaces import Environment, Transform
from openenv.core.env_server.types import Action, Observation, State

__all__ = ["ENVIRONMENTS", "FACTORIES", "Count", "Counted", "Counting"]


class Count(Action):
    by: int = 1


class Counted(Observation):
    total: int = 0
    note: str = ""


class Counting(Environment):
    """Never calls `super().__init__()`; its methods take as little as they can."""

    def __init__(self):
        self.total = 0
        self.count = 0

    def reset(self):
        self.total = self.count = 0
        return Counted()

    def step(self, action):
        self.total += action.by
        self.count += 1
        return Counted(total=self.total, reward=float(self.count), done=self.total > 100)

    @property
    def state(self):
        return State(episode_id="one", step_count=self.count)


class DictState(Counting):
    @property
    def state(self):
        return {"episode_id": "one", "step_count": self.count}


class Thing:
    def __init__(self, count: int):
        self.episode_id = "one"
        self.step_count = count
        self._private = object()


class ObjectState(Counting):
    @property
    def state(self):
        return Thing(self.count)


@dataclass
class Facts:
    step_count: int
    episode_id: str = "one"
    seen: list[int] = field(default_factory=list)


class DataclassState(Counting):
    @property
    def state(self):
        return Facts(self.count)


class MethodState(Counting):
    def state(self):
        return State(episode_id="one", step_count=self.count)


class AttributeState(Counting):
    state = None

    def __init__(self):
        self.state = State(episode_id="one")
        super().__init__()

    def step(self, action):
        self.state.step_count += 1
        return super().step(action)


class SlottedState(Counting):
    class Slotted:
        __slots__ = ("episode_id", "step_count")

    @property
    def state(self):
        slotted = self.Slotted()
        slotted.episode_id, slotted.step_count = "one", self.count
        return slotted


class MoreState(Counting):
    class Own(State):
        board: list[int] = []

    @property
    def state(self):
        return self.Own(episode_id="one", step_count=self.count, board=[1, 2], unforeseen=True)


class Asynchronous(Counting):
    """Only its asynchronous methods work."""

    async def reset_async(self, seed=None, episode_id=None, **kwargs):
        self.total = self.count = 0
        return Counted()

    async def step_async(self, action, timeout_s=None, **kwargs):
        return Counting.step(self, action)

    def reset(self, seed=None, episode_id=None, **kwargs):
        raise NotImplementedError

    def step(self, action, timeout_s=None, **kwargs):
        raise NotImplementedError


class BareAsynchronous(Asynchronous):
    async def reset_async(self):
        return await super().reset_async()

    async def step_async(self, action):
        return await super().step_async(action)


class OneAsynchronous(Counting):
    async def step_async(self, action, **kwargs):
        return Counting.step(self, action)


class CoroutineMethods(Counting):
    """`async def` under the names of the synchronous methods."""

    async def reset(self, seed=None):
        return Counting.reset(self)

    async def step(self, action):
        return Counting.step(self, action)


class PositionalStep(Counting):
    def step(self, action, /):
        return super().step(action)


class RenamedAction(Counting):
    def step(self, move: Count, timeout_s: float | None = None):
        return super().step(move)


class FullSignatures(Counting):
    def __init__(self):
        Environment.__init__(self)
        Counting.__init__(self)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Counted:
        return super().reset()

    def step(self, action: Count, timeout_s: float | None = None, **kwargs: Any) -> Counted:
        return super().step(action)


class Abstract(Counting, ABC):
    @abstractmethod
    def weight(self) -> int: ...

    def step(self, action):
        return super().step(Count(by=action.by * self.weight()))


class Concrete(Abstract):
    def weight(self) -> int:
        return 1


A = TypeVar("A")


class Generically(Counting, Generic[A]):
    """Generic in a way of its own."""


class Filled(Generically[Count]): ...


class Noting(Transform):
    def __call__(self, observation):
        observation.note = "seen"
        return observation


class Transformed(Counting):
    def __init__(self):
        Environment.__init__(self, transform=Noting())
        Counting.__init__(self)

    def step(self, action):
        return self._apply_transform(super().step(action))


class NoEnvironment:
    """Has the methods, and derives from nothing."""

    def __init__(self):
        self._inner = Counting()

    def reset(self, **kwargs):
        return self._inner.reset()

    def step(self, action):
        return self._inner.step(action)

    @property
    def state(self):
        return self._inner.state


class DictObservation(Counting):
    def step(self, action):
        return super().step(action).model_dump()


ENVIRONMENTS: list[type[Any]] = [
    Counting,
    DictState,
    ObjectState,
    DataclassState,
    MethodState,
    AttributeState,
    SlottedState,
    MoreState,
    Asynchronous,
    BareAsynchronous,
    OneAsynchronous,
    CoroutineMethods,
    PositionalStep,
    RenamedAction,
    FullSignatures,
    Concrete,
    Filled,
    Transformed,
    NoEnvironment,
    DictObservation,
]


def function():
    return Counting()


def annotated() -> Counting:
    return Counting()


def generally_annotated() -> Environment:
    return Asynchronous()


def of_a_size(size: int, *, kind: str) -> Counting:
    assert (size, kind) == (3, "x")
    return Counting()


class Maker:
    """An object that can be called."""

    def __call__(self):
        return Counting()

    def make(self):
        return Counting()


class Made(Counting):
    @classmethod
    def make(cls):
        return cls()

    @staticmethod
    def build():
        return Made()


FACTORIES: dict[str, Callable[[], Any]] = {
    "function": function,
    "annotated": annotated,
    "generally annotated": generally_annotated,
    "lambda": lambda: Counting(),
    "partial": functools.partial(of_a_size, 3, kind="x"),
    "partial of a partial": functools.partial(functools.partial(of_a_size, 3), kind="x"),
    "partial of a class": functools.partial(Counting),
    "object": Maker(),
    "bound method": Maker().make,
    "class method": Made.make,
    "static method": Made.build,
    "cached": functools.cache(lambda: Counting),
}
FACTORIES["cached"] = lambda make=FACTORIES["cached"]: make()()
