"""Forks, restores and steps in any order, against a model that is a plain Python object."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from openenv.client import EnvClient
from openenv.environment import Environment
from openenv.errors import ServerFull
from openenv.server import create_app
from openenv.types import Action, Observation, State

MAX_SESSIONS = 5


class Move(Action):
    by: int


class Place(Observation):
    way: list[int]


class Walk(Environment[Move, Place, State]):
    """Goes as far as it is told and a random number more."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def __init__(self) -> None:
        self.way: list[int] = []
        self.parts = {"me": self}

    def reset(self, seed: int | None = None) -> Place:
        self.way = [0]
        return Place(way=list(self.way))

    def step(self, action: Move) -> Place:
        me = self.parts["me"]
        me.way.append(me.way[-1] + action.by + me.rng.randrange(100))
        return Place(way=list(self.way))

    @property
    def state(self) -> State:
        return State(step_count=len(self.way))


class Saving(Walk):
    """The same by a state of its own; the part that cannot be copied stays behind."""

    def __init__(self) -> None:
        super().__init__()
        self.peek = lambda: self.way

    def save_state(self) -> Any:
        return self.way

    def load_state(self, state: Any) -> None:
        self.way = state


class WalkEnv(EnvClient[Move, Place, State]):
    pass


class Model:
    """What a session must be like."""

    def __init__(self) -> None:
        self.rng = Random()
        self.way: list[int] = []

    def step(self, by: int) -> list[int]:
        self.way.append(self.way[-1] + by + self.rng.randrange(100))
        return list(self.way)


class Pair:
    """A client and its model."""

    def __init__(self, client: WalkEnv, model: Model):
        self.client = client
        self.model = model


class Forking(RuleBasedStateMachine):
    environment: type[Walk] = Walk
    pairs: Bundle[Pair] = Bundle("pairs")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.app = create_app(self.environment, Move, Place, max_concurrent_envs=MAX_SESSIONS)
        self.open = 0

    def do(self, call: Any) -> Any:
        async def waited() -> Any:
            return await call()

        return self.loop.run_until_complete(waited())

    @initialize(target=pairs, seed=st.integers(0, 99))
    def first(self, seed: int) -> Pair:
        return self.begin(seed)

    def begin(self, seed: int) -> Pair:
        pair = Pair(WalkEnv(app=self.app), Model())
        self.open += 1
        self._reset(pair, seed)
        return pair

    def _reset(self, pair: Pair, seed: int) -> None:
        assert self.do(lambda: pair.client.reset(seed=seed)).observation.way == [0]
        pair.model.rng, pair.model.way = Random(seed), [0]

    @rule(target=pairs, seed=st.integers(0, 99))
    def begin_another(self, seed: int) -> Any:
        return self.begin(seed) if self.open < MAX_SESSIONS else multiple()

    @rule(pair=pairs, seed=st.integers(0, 99))
    def reset(self, pair: Pair, seed: int) -> None:
        self._reset(pair, seed)

    @rule(pair=pairs, by=st.integers(0, 9))
    def step(self, pair: Pair, by: int) -> None:
        assert self.do(lambda: pair.client.step(Move(by=by))).observation.way == pair.model.step(by)

    @rule(target=pairs, pair=pairs)
    def fork(self, pair: Pair) -> Any:
        if self.open == MAX_SESSIONS:
            with pytest.raises(ServerFull):
                self.do(pair.client.fork)
            return multiple()
        self.open += 1
        return Pair(self.do(pair.client.fork), deepcopy(pair.model))

    @rule(pair=pairs, source=pairs)
    def restore(self, pair: Pair, source: Pair) -> None:
        if pair is not source:
            self.do(lambda: pair.client.restore(source.client))
            pair.model = deepcopy(source.model)

    @rule(pair=pairs, source=pairs, by=st.integers(0, 9))
    def step_and_fork_at_once(self, pair: Pair, source: Pair, by: int) -> None:
        """A restore behind a step of its source sees that step."""
        if pair is source:
            return

        async def both() -> Any:
            stepping = asyncio.ensure_future(source.client.step(Move(by=by)))
            await asyncio.sleep(0)
            await pair.client.restore(source.client)
            return await stepping

        assert self.do(both).observation.way == source.model.step(by)
        pair.model = deepcopy(source.model)

    @rule(pair=consumes(pairs))
    def close(self, pair: Pair) -> None:
        self.do(pair.client.close)
        self.open -= 1

    @invariant()
    def as_many_sessions_as_clients(self) -> None:
        assert self.app.state.openenv.active_sessions == self.open

    def teardown(self) -> None:
        self.do(self.app.state.openenv.aclose)
        self.loop.close()


class ForkingByState(Forking):
    environment = Saving


TestForking = Forking.TestCase
TestForkingByState = ForkingByState.TestCase
TestForking.settings = TestForkingByState.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
