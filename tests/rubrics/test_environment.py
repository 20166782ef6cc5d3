"""Rubrics where they are used: in environments, and through them in what a client gets."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest

from openenv._asyncio import on_thread
from openenv.client import EnvClient, VectorEnvClient, memory
from openenv.environment import Environment
from openenv.errors import EnvironmentFailed, JudgeFailed, RubricFailed, StepFailed
from openenv.llm import OpenAIClient
from openenv.rubrics import LLMJudge, Rubric, Sequential, WeightedSum
from openenv.server import create_app
from openenv.types import Action, Observation, State

from ..llm.server import PATIENCE_S, Answer, answer_server, chat
from .rubrics import Constant, Late, Model


class Move(Action):
    to: str = "e4"


class Board(Observation):
    seen: str = ""


class Sync(Environment[Move, Board, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    REPORT_RUBRIC = True
    state = State()

    def reset(self) -> Board:
        self._reset_rubric()
        return Board()

    def step(self, action: Move) -> Board:
        board = Board(seen=action.to, metadata={"own": 1})
        board.reward = self._apply_rubric(action, board)
        return board


class Async(Sync):
    async def reset_async(self, **kwargs: Any) -> Board:
        await self._reset_rubric_async()
        return Board()

    async def step_async(self, action: Move, **kwargs: Any) -> Board:
        board = Board(seen=action.to, metadata={"own": 1})
        board.reward = await self._apply_rubric_async(action, board)
        return board


class Inline(Sync):
    execution = "inline"


class Half(Sync):
    """On a thread, with a loop of its own that runs while the rubric is applied synchronously."""

    async def step_async(self, action: Move, **kwargs: Any) -> Board:
        return self.step(action)


KINDS = [Sync, Async, Inline, Half]


def served(cls: type[Environment], rubric: Any) -> EnvClient[Move, Board, State]:
    """A client of an environment that has what `rubric()` makes."""

    def make() -> cls:
        return cls(rubric=rubric())

    app = create_app(make, Move, Board, max_concurrent_envs=8)
    return EnvClient[Move, Board, State](app=app)


@pytest.fixture(params=[None, "openenv.v2.json", "openenv.v2.msgpack"])
def version(request, monkeypatch):
    monkeypatch.setattr(memory, "SUBPROTOCOL", request.param)


def judge(*answers: Any, **settings: Any) -> LLMJudge:
    return LLMJudge("{action} {observation}", Model(*answers), backoff_s=0.0, **settings)


def tree(style: Any = None) -> Rubric:
    return Sequential(Constant(1.0), WeightedSum([Constant(0.5), style or Constant(1.0)], [0.5, 0.5]))


# What reaches the client


@pytest.mark.parametrize("cls", KINDS)
@pytest.mark.parametrize("style", [Constant, lambda: judge("1")])
@pytest.mark.usefixtures("version")
async def test_the_scores_of_the_parts_reach_the_client(cls, style):
    async with served(cls, lambda: tree(style() if style is not Constant else Constant(1.0))) as env:
        await env.reset()
        result = await env.step(Move())
    assert result.reward == 0.75
    assert result.metadata["own"] == 1
    assert result.metadata["rubric"] == {
        "rubric_0": 1.0,
        "rubric_1": 0.75,
        "rubric_1.rubric_0": 0.5,
        "rubric_1.rubric_1": 1.0,
        "total": 0.75,
    }


@pytest.mark.parametrize("cls", [Sync, Async])
async def test_they_are_told_only_if_the_environment_asks_for_it(cls):
    quiet = type("Quiet", (cls,), {"REPORT_RUBRIC": False})
    async with served(quiet, tree) as env:
        await env.reset()
        result = await env.step(Move())
    assert (result.reward, result.metadata) == (0.75, {"own": 1})


@pytest.mark.parametrize("cls", [Sync, Async])
async def test_a_part_that_was_not_asked_has_no_score(cls):
    """Not the one of the step before, which `last_score` still is."""

    class Fickle(Rubric):
        calls = 0

        def forward(self, action, observation):
            self.calls += 1
            return 1.0 if self.calls == 1 else 0.0

    async with served(cls, lambda: Sequential(Fickle(), Constant(0.5))) as env:
        await env.reset()
        first, second = await env.step(Move()), await env.step(Move())
    assert first.metadata["rubric"] == {"rubric_0": 1.0, "rubric_1": 0.5, "total": 0.5}
    assert second.metadata["rubric"] == {"rubric_0": 0.0, "rubric_1": None, "total": 0.0}


@pytest.mark.parametrize("cls", [Sync, Async])
@pytest.mark.usefixtures("version")
async def test_a_default_score_is_told_to_the_client(cls):
    quiet = type("Quiet", (cls,), {"REPORT_RUBRIC": False})
    async with served(quiet, lambda: tree(judge("rather good", default_score=0.0))) as env:
        await env.reset()
        result = await env.step(Move())
    assert result.reward == 0.25
    assert "default_score" in result.metadata["rubric_notes"]["rubric_1.rubric_1"]


@pytest.mark.parametrize("cls", KINDS)
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: judge("rather good"), "no score in its answer"),
        (lambda: judge(ConnectionError("refused")), "refused"),
        (lambda: LLMJudge("{action}", Model("1", before=asyncio.Event().wait), timeout_s=0.01), "did not answer"),
    ],
    ids=["prose", "unreachable", "late"],
)
@pytest.mark.usefixtures("version")
async def test_a_judge_without_a_score_fails_the_step_and_not_the_session(cls, made, told):
    async with served(cls, made) as env:
        await env.reset()
        with pytest.raises(JudgeFailed, match=told) as failed:
            await env.step(Move())
        assert isinstance(failed.value, StepFailed)
        assert (failed.value.blame, failed.value.retryable) == ("infrastructure", False)
        assert (await env.reset()).reward is None


@pytest.mark.parametrize("cls", [Sync, Async])
@pytest.mark.parametrize("score", [float("nan"), None])
async def test_a_rubric_without_a_score_fails_the_step(cls, score):
    for rubric in (Constant(score), lambda action, observation: score):
        async with served(cls, lambda rubric=rubric: rubric) as env:
            await env.reset()
            with pytest.raises(RubricFailed, match=r"Constant|lambda") as failed:
                await env.step(Move())
            assert isinstance(failed.value, EnvironmentFailed)


@pytest.mark.parametrize("cls", [Sync, Async])
async def test_sessions_judge_at_the_same_time(cls):
    """None of them gets its score before all have asked."""
    sessions = 6
    everybody = threading.Barrier(sessions)

    async def meet():
        await on_thread(lambda: everybody.wait(PATIENCE_S))

    def make() -> cls:
        return cls(rubric=LLMJudge("{action}", Model("0.5", before=meet)))

    app = create_app(make, Move, Board, max_concurrent_envs=sessions)
    clients = [EnvClient[Move, Board, State](app=app) for _ in range(sessions)]
    await asyncio.gather(*(client.reset() for client in clients))
    results = await asyncio.gather(*(client.step(Move()) for client in clients))
    assert [result.reward for result in results] == [0.5] * sessions
    await asyncio.gather(*(client.close() for client in clients))


@pytest.mark.parametrize("cls", [Sync, Async])
async def test_sessions_share_one_client_and_wait_for_no_other(cls):
    sessions = 12
    everybody = threading.Barrier(sessions)
    with answer_server() as server:
        server.will_answer(Answer(chat("0.5"), before=lambda: everybody.wait(PATIENCE_S)))
        async with OpenAIClient(server.url, None, "small", sdk=False) as model:

            def make() -> cls:
                return cls(rubric=LLMJudge("{action}", model))

            app = create_app(make, Move, Board, max_concurrent_envs=sessions)
            async with VectorEnvClient(EnvClient[Move, Board, State], app=app, num_envs=sessions) as envs:
                await envs.reset()
                results = await envs.step([Move()] * sessions)
    assert [result.reward for result in results] == [0.5] * sessions


async def test_a_shared_rubric_reports_to_each_environment_its_own_scores():
    """A mistake, and still no score of one session becomes that of another."""

    class Echo(Rubric):
        async def forward(self, action, observation):
            await gates[action.to].wait()
            return float(action.to)

    gates = {"1": asyncio.Event(), "2": asyncio.Event()}
    shared = Sequential(Echo())
    one, two = Async(rubric=shared), Async(rubric=shared)
    first = asyncio.ensure_future(one.step_async(Move(to="1")))
    second = asyncio.ensure_future(two.step_async(Move(to="2")))
    gates["2"].set()
    await second
    gates["1"].set()
    boards = [await first, await second]
    assert [board.metadata["rubric"] for board in boards] == [
        {"rubric_0": 1.0, "total": 1.0},
        {"rubric_0": 2.0, "total": 2.0},
    ]


# Waiting in synchronous code


class Where(Rubric):
    """Says on which thread and loop it ran."""

    def __init__(self):
        super().__init__()
        self.places: list[Any] = []

    async def forward(self, action, observation):
        await asyncio.sleep(0)
        self.places.append((threading.current_thread(), asyncio.get_running_loop()))
        return 1.0


def test_an_asynchronous_rubric_runs_on_the_thread_of_its_environment_and_one_loop():
    rubric = Where()
    environment = Sync(rubric=rubric)
    for _ in range(2):
        environment.step(Move())
    (thread, loop), again = rubric.places
    assert again == (thread, loop)
    assert thread is threading.current_thread()


async def test_it_runs_beside_a_loop_that_is_held_up():
    rubric = Where()
    environment = Sync(rubric=rubric)
    for _ in range(2):
        environment.step(Move())
    (thread, loop), again = rubric.places
    assert again == (thread, loop)
    assert thread is not threading.current_thread()
    assert loop is not asyncio.get_running_loop()


async def test_waiting_within_waiting_does_not_lock():
    class Nested(Rubric):
        async def forward(self, action, observation):
            return Sync(rubric=Sequential(Where()))._apply_rubric(action, observation)

    assert Sync(rubric=Nested())._apply_rubric(Move(), Board()) == 1.0
    assert await asyncio.to_thread(Sync(rubric=Nested())._apply_rubric, Move(), Board()) == 1.0


def test_an_error_does_not_spoil_the_loop():
    class Cancels(Rubric):
        async def forward(self, action, observation):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        Sync(rubric=Cancels())._apply_rubric(Move(), Board())
    assert Sync(rubric=Where())._apply_rubric(Move(), Board()) == 1.0


def test_an_interrupt_stops_the_rubric():
    class Interrupted(Rubric):
        cancelled = False

        async def forward(self, action, observation):
            asyncio.get_running_loop().call_soon(interrupt)
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled = True

    def interrupt():
        raise KeyboardInterrupt

    rubric = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        Sync(rubric=rubric)._apply_rubric(Move(), Board())
    assert rubric.cancelled


def test_the_loop_ends_with_its_thread():
    rubric = Where()
    thread = threading.Thread(target=lambda: Sync(rubric=rubric)._apply_rubric(Move(), Board()))
    thread.start()
    thread.join()
    gc.collect()
    assert rubric.places[0][1].is_closed()


def test_an_asynchronous_callable_and_an_asynchronous_reset_are_waited_for():
    class Judge:
        resets = 0

        async def __call__(self, action, observation):
            return 0.5

        async def reset(self):
            self.resets += 1

    environment = Sync(rubric=Judge())
    environment.reset()
    assert environment.rubric.resets == 1
    board = environment.step(Move())
    assert (board.reward, board.metadata["rubric"]) == (0.5, {"total": 0.5})


# Observations of all kinds


class Frozen(Board, frozen=True):
    pass


class Unset(Observation):
    metadata: dict[str, Any] | None = None


@dataclass
class Own:
    metadata: Any = field(default_factory=dict)


@dataclass(frozen=True)
class Sealed:
    metadata: Any = field(default_factory=dict)


@pytest.mark.parametrize(
    "observation",
    [Board(), Frozen(), Unset(), Own(), Own(None), Own(MappingProxyType({"a": 1})), Sealed(), {}, {"metadata": None}],
    ids=repr,
)
def test_an_observation_of_any_kind_gets_the_scores(observation):
    assert Sync(rubric=tree())._apply_rubric(Move(), observation) == 0.75
    metadata = observation["metadata"] if isinstance(observation, dict) else observation.metadata
    assert metadata["rubric"]["total"] == 0.75


def test_metadata_that_observations_share_stays_as_it_was():
    shared = {"own": 1}
    for observation in (Own(shared), {"metadata": shared}, Board(metadata=shared)):
        Sync(rubric=tree())._apply_rubric(Move(), observation)
    assert shared == {"own": 1}


def test_an_observation_without_metadata_is_told_in_the_log(caplog):
    with caplog.at_level(logging.WARNING):
        assert Sync(rubric=tree())._apply_rubric(Move(), object()) == 0.75
    assert "accepts no metadata" in caplog.text


# Late rubrics of an environment that is cancelled


async def test_a_cancelled_step_cancels_its_judge():
    rubric = Late(waits=True)
    step = asyncio.ensure_future(Async(rubric=rubric).step_async(Move()))
    await rubric.asked.wait()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert rubric.cancelled


# In a process of its own


class Isolated(Sync):
    execution = "process"

    def __init__(self) -> None:
        super().__init__(rubric=Sequential(Where(), judge("0.5", "prose")))


@pytest.mark.slow
async def test_a_process_tells_the_scores_and_the_failures_too():
    app = create_app(Isolated, Move, Board, max_concurrent_envs=2)
    async with EnvClient[Move, Board, State](app=app) as env:
        await env.reset()
        result = await env.step(Move())
        with pytest.raises(JudgeFailed, match=r"rubric_1.*default_score") as failed:
            await env.step(Move())
    await app.state.openenv.aclose()
    assert result.metadata["rubric"] == {"rubric_0": 1.0, "rubric_1": 0.5, "total": 0.5}
    assert failed.value.blame == "infrastructure"
