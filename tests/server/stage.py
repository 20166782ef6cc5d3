"""An environment with a page: it draws, offers and fails as a test asks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import Field

from openenv.environment import Environment
from openenv.server import create_app
from openenv.settings import ServerSettings
from openenv.types import Action, EnvironmentMetadata, Observation, State


class StageAction(Action):
    line: str = Field("", description="What is said", max_length=40)
    times: int = Field(1, ge=1, le=5)
    odd: Any = None


class StageObservation(Observation):
    said: str = ""
    value: Any = None


class Stage(Environment[StageAction, StageObservation, State]):
    """Says what it is told. The line said decides what is drawn."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    gate = threading.Event()
    left = threading.Event()
    threads: set[int] = set()

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._said = ""
        Stage.threads = {threading.get_ident()}

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        level: int = 3,
        mode: Literal["easy", "hard"] = "easy",
    ) -> StageObservation:
        self._state = State(episode_id=episode_id or f"seed-{seed}", step_count=0)
        self._said = "reset"
        return StageObservation(said="reset", value=level)

    def step(self, action: StageAction) -> StageObservation:
        Stage.threads.add(threading.get_ident())
        if action.line == "break":
            raise ValueError("the stage broke")
        self._state.step_count += 1
        self._said = action.line
        value: Any = float("nan") if action.line == "nan" else action.odd
        return StageObservation(said=action.line * action.times, value=value, reward=0.5, done=action.line == "end")

    @property
    def state(self) -> State:
        if self._said == "stateless":
            raise ValueError("no state to be had")
        return self._state

    def render_web(self, obs: Any) -> Any:
        Stage.threads.add(threading.get_ident())
        draw = getattr(self, f"draw_{self._said}", None)
        return f"<b>{obs.said}</b> {obs['reward']}" if draw is None else draw()

    def web_actions(self, obs: Any) -> Any:
        offer = getattr(self, f"offer_{self._said}", None)
        return [("Hello", {"line": "hello"}), ("End", {"line": "end"})] if offer is None else offer()

    def draw_nothing(self) -> None:
        return None

    def draw_raise(self) -> str:
        raise LookupError("no such picture")

    def draw_exit(self) -> str:
        raise SystemExit(3)

    def draw_number(self) -> Any:
        return 7

    def draw_huge(self) -> str:
        return "x" * (5 * 1024 * 1024)

    def draw_surrogate(self) -> str:
        return "<i>\ud800</i>"

    def draw_wait(self) -> str:
        assert Stage.gate.wait(120)
        Stage.left.set()
        return "late"

    def offer_badly(self) -> Sequence[Any]:
        return [
            ("Good", StageAction(line="good")),
            ("Unknown field", {"nessage": 1}),
            ("Out of bounds", {"times": 9}),
            ("No dict", "left"),
            "no pair at all, but much longer",
            (3, {"line": "x"}),
            ("Not JSON", {"odd": object()}),
            ("Heavy", {"odd": "x" * 70_000}),
        ]

    def offer_many(self) -> Sequence[Any]:
        return [(str(number), {"line": str(number)}) for number in range(300)]

    def offer_none(self) -> Any:
        return None

    def offer_text(self) -> Any:
        return "left"

    def offer_refuse(self) -> Any:
        raise LookupError("nothing to offer")


class InlineStage(Stage):
    execution = "inline"


class AsyncStage(Stage):
    """On the event loop, where its drawing may wait."""

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
        return self.reset(seed, episode_id)

    async def step_async(self, action: StageAction, timeout_s: float | None = None, **kwargs: Any) -> Any:
        return self.step(action)

    async def render_web(self, obs: Any) -> Any:
        return super().render_web(obs)


class InlineAsyncDrawing(InlineStage):
    async def render_web(self, obs: Any) -> Any:
        return super().render_web(obs)


class TooDeep(InlineStage):
    """Its first observation has as many levels as a test asks for."""

    levels = 1

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> StageObservation:
        value: Any = 0
        for _ in range(self.levels):
            value = [value]
        return StageObservation(value=value)


class TellingStage(Stage):
    """Only an instance knows what it is."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="Told", description="By an instance", author="The stage hands")


def app_of(environment: Any = Stage, max_sessions: int | None = 4, **settings: Any) -> FastAPI:
    return create_app(
        environment,
        StageAction,
        StageObservation,
        env_name="stage",
        max_concurrent_envs=max_sessions,
        settings=ServerSettings.read({}, **settings),
    )
