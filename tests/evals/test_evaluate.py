from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from openenv.cli.eval import summary_lines
from openenv.client import GenericEnvClient
from openenv.errors import InvalidArgument, PolicyFailed, UsageError
from openenv.evals.evaluation import Evaluation, evaluate
from openenv.evals.policy import RandomPolicy, UserPolicy, load_policy
from openenv.evals.report import RunInfo
from openenv.evals.runner import Case, EvalOptions, cases_of_tasks
from openenv.providers import app_in_process
from openenv.server import create_app

from . import environments, policies
from .environments import (
    Dice,
    DiceAction,
    DiceObservation,
    EndsEarly,
    Exuberant,
    Faulty,
    Flaky,
    Full,
    Judged,
    Tasked,
    TellsSuccess,
)


@pytest.fixture(autouse=True)
def _nothing_happened_yet() -> Iterator[None]:
    Flaky.tries.clear()
    Flaky.failing.clear()
    Full.inside = Full.most = 0
    yield
    assert Full.inside == 0


@pytest.mark.slow
async def test_every_seed_is_one_episode_and_the_same_again() -> None:
    first = await evaluate(policies.go_on, range(50), env=Dice, concurrency=7)
    assert [episode.seed for episode in first.episodes] == list(range(50))
    assert first.summary.scored == first.summary.played == first.summary.planned == 50
    assert first.summary.returns is not None
    assert 20 <= first.summary.returns.least <= first.summary.returns.mean <= first.summary.returns.most <= 25
    assert first.summary.ends == {"terminated": 50}
    assert first.summary.success is None
    assert first.about.policy == "go_on"
    second = await evaluate(policies.go_on, range(50), env=Dice, concurrency=50)
    assert [episode.score for episode in second.episodes] == [episode.score for episode in first.episodes]


@pytest.mark.parametrize(
    ("policy", "length"),
    [
        (policies.Agent, None),
        (policies.AsyncAgent, 1),
        (policies.shared, 1),
        (policies.called, 1),
        (lambda observation: {"stop": True}, 1),
        (partial(lambda stop, observation: {"stop": stop}, True), 1),
    ],
)
async def test_a_policy_is_a_function_or_a_class_or_an_object(policy: Any, length: int | None) -> None:
    report = await evaluate(policy, range(6), env=Dice)
    assert [episode.length for episode in report.episodes] == [length or seed % 3 + 1 for seed in range(6)]


async def test_a_policys_random_numbers_are_the_episodes_own() -> None:
    reports = [await evaluate(policies.at_random, range(30), env=Dice, concurrency=each) for each in (1, 30)]
    lengths = [[episode.length for episode in report.episodes] for report in reports]
    assert lengths[0] == lengths[1]
    assert len(set(lengths[0])) > 1


async def test_an_action_may_be_a_model() -> None:
    report = await evaluate(policies.stop_at_ten, range(5), env=Dice)
    assert all(episode.score is not None and 10 <= episode.score <= 20 for episode in report.episodes)


@pytest.mark.slow
async def test_what_is_not_async_runs_one_at_a_time_beside_the_loop() -> None:
    inside: list[int] = []
    threads = set()

    def act(observation: Mapping[str, Any]) -> dict[str, Any]:
        threads.add(threading.get_ident())
        inside.append(1)
        assert len(inside) == 1
        inside.clear()
        return {"stop": True}

    report = await evaluate(act, range(40), env=Dice, concurrency=40)
    assert report.summary.failed == 0
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


@pytest.mark.slow
async def test_policies_that_wait_wait_together() -> None:
    waiting = asyncio.Semaphore(0)

    async def act(observation: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal arrived
        arrived += 1
        if arrived == 20:
            for _ in range(20):
                waiting.release()
        await waiting.acquire()
        return {"stop": True}

    arrived = 0
    report = await evaluate(act, range(20), env=Dice, concurrency=20)
    assert report.summary.scored == 20


@pytest.mark.parametrize(
    ("policy", "error", "words"),
    [
        ("raises", "KeyError", r"raises raised KeyError: 'no such field' \(policies.py, line \d+\)"),
        ("chooses_nothing", "TypeError", "chose None, which is not a valid action"),
        ("chooses_wrongly", "InvalidAction", "is not a valid action.*stop"),
        ("CannotBeMade", "OSError", "no model file"),
    ],
)
async def test_a_policy_that_fails_is_blamed_and_has_no_score(policy: str, error: str, words: str) -> None:
    report = await evaluate(f"{policies.__name__}:{policy}", range(3), env=Dice)
    assert report.summary.scored == 0
    assert report.summary.returns is None
    assert report.summary.failures == {"policy": {error: 3}}
    for episode in report.episodes:
        assert episode.end == "failed"
        assert episode.score is None
        assert episode.attempts == 1
        assert episode.failure is not None
        assert re.search(words, episode.failure.message)


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("runs_out", "StopIteration"),
        ("runs_out_async", "RuntimeError"),
        ("cancels_itself", "CancelledError"),
        ("chooses_too_deep", "InvalidArgument"),
    ],
)
async def test_no_failure_of_a_policy_holds_up_or_ends_the_others(policy: str, error: str) -> None:
    async with asyncio.timeout(30):
        report = await evaluate(f"{policies.__name__}:{policy}", range(4), env=Dice, concurrency=2)
    assert report.summary.failures == {"policy": {error: 4}}
    assert not report.interrupted


@pytest.mark.slow
async def test_an_environment_that_fails_is_blamed_and_its_episodes_are_no_zeros() -> None:
    report = await evaluate(policies.go_on, range(40), env=Faulty)
    summary = report.summary
    assert summary.failures == {"environment": {"StepFailed": 40 - summary.scored}}
    assert 0 < summary.failed < 40 or summary.failed == 40
    honest = [episode.score for episode in report.episodes if episode.failure is None]
    assert summary.returns is None or summary.returns.count == len(honest)
    assert "odd" in summary.examples["StepFailed"]


async def test_an_environment_that_wants_a_reset_in_the_middle_is_blamed() -> None:
    report = await evaluate(policies.go_on, range(2), env=EndsEarly)
    assert report.summary.failures == {"environment": {"StepFailed": 2}}


async def test_rewards_without_measure_are_the_environments_fault_and_no_scores() -> None:
    report = await evaluate(policies.go_on, range(4), env=Exuberant, max_steps=3)
    assert report.summary.failures == {"environment": {"StepFailed": 4}}
    assert report.summary.scored == 0


@pytest.mark.slow
async def test_what_was_lost_to_the_infrastructure_is_played_again_with_its_seed() -> None:
    Flaky.failing.update({3: 1, 5: 2, 7: 9})
    report = await evaluate(policies.go_on, range(10), env=Flaky, retries=2)
    found = {episode.seed: episode for episode in report.episodes}
    assert {seed: episode.attempts for seed, episode in found.items() if episode.attempts > 1} == {3: 2, 5: 3, 7: 3}
    assert [seed for seed, episode in found.items() if episode.failure is not None] == [7]
    assert report.summary.failures == {"infrastructure": {"JudgeFailed": 1}}
    assert report.summary.repeated == 3
    calm = await evaluate(policies.go_on, range(10), env=Dice)
    assert [e.score for e in report.episodes if e.seed != 7] == [e.score for e in calm.episodes if e.seed != 7]


async def test_a_server_that_is_full_is_no_failure() -> None:
    app = create_app(Full, DiceAction, DiceObservation, max_concurrent_envs=2)
    report = await evaluate(policies.go_on, range(60), app=app, concurrency=10)
    assert report.summary.scored == 60
    assert report.summary.repeated == 0
    assert Full.most == 2


async def test_episodes_are_cut_short_and_keep_what_they_have() -> None:
    report = await evaluate(policies.go_on, range(5), env=Dice, max_steps=2)
    assert report.summary.ends == {"max_steps": 5}
    assert all(episode.length == 2 and (episode.score or 0) >= 2 for episode in report.episodes)


@pytest.mark.slow
async def test_success_is_what_the_environment_says_or_a_return_that_is_enough() -> None:
    told = (await evaluate(policies.go_on, range(30), env=TellsSuccess)).summary.success
    assert told is not None
    assert told.count == 30
    assert 0 < told.hits < 30
    enough = (await evaluate(policies.go_on, range(30), env=TellsSuccess, success_at=21)).summary.success
    assert enough is not None
    assert enough != told
    assert 0 <= enough.low < enough.share < enough.high <= 1


async def test_the_parts_of_a_rubric_are_summed_like_the_return() -> None:
    report = await evaluate(policies.go_on, range(4), env=Judged)
    assert [episode.rubric for episode in report.episodes] == [
        {"eyes": episode.score, "total": float(episode.length)} for episode in report.episodes
    ]
    assert report.summary.returns is not None
    assert report.summary.rubric["eyes"] == report.summary.returns
    assert report.summary.rubric["total"] == report.summary.lengths
    assert any("rubric eyes" in line for line in summary_lines(report))


async def test_every_task_of_a_split_is_played() -> None:
    report = await evaluate(policies.go_on, cases_of_tasks(3, "test", 1, repeats=2), env=Tasked)
    assert [(e.index, e.repeat, e.score) for e in report.episodes] == [
        (index, repeat, float(index)) for index in range(3) for repeat in range(2)
    ]
    assert report.about.split == "test"
    assert len({episode.seed for episode in report.episodes}) == 6


async def test_the_random_policy_does_what_the_schema_allows_and_the_same_again() -> None:
    policy = RandomPolicy(DiceAction.model_json_schema())
    first = await evaluate(policy, range(20), env=Dice)
    assert first.summary.scored == 20
    assert len({episode.length for episode in first.episodes}) > 2
    second = await evaluate(policy, range(20), env=Dice, concurrency=1)
    assert [e.score for e in first.episodes] == [e.score for e in second.episodes]


async def test_what_is_wrong_with_the_run_ends_it() -> None:
    with pytest.raises(InvalidArgument, match="the same"):
        await evaluate(policies.go_on, [1, 2, 1], env=Dice)
    with pytest.raises(UsageError, match="nothing to play"):
        await evaluate(policies.go_on, [], env=Dice)
    with pytest.raises(UsageError, match="is not a policy"):
        await evaluate(3, [1], env=Dice)
    for name in ("concurrency", "max_steps"):  # a run of no episode, or of no step, has nothing to report
        with pytest.raises(InvalidArgument, match=f"{name} must be at least 1"):
            await evaluate(policies.go_on, [1], env=Dice, **{name: 0})
    with pytest.raises(InvalidArgument, match="retries must be at least 0"):
        await evaluate(policies.go_on, [1], env=Dice, retries=-1)


async def test_a_run_that_is_cancelled_says_what_it_has(no_threads_left: None) -> None:
    go, ended = asyncio.Event(), asyncio.Event()

    async def act(observation: Mapping[str, Any], seed: int) -> dict[str, Any]:
        if seed >= 5:
            ended.set()
            await go.wait()
        return {"stop": True}

    about = RunInfo(target="x", policy="x", concurrency=1, max_steps=9, retries=0, openenv="1", began=0)
    connect = partial(GenericEnvClient, app=app_in_process(Dice))
    policy = UserPolicy("act", act)
    run = Evaluation(connect, policy, [Case(seed) for seed in range(9)], EvalOptions(1, 9, 0), about)
    task = asyncio.create_task(run.run())
    await ended.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    run.close()
    report = run.report()
    assert report.interrupted
    assert [episode.seed for episode in report.episodes] == [0, 1, 2, 3, 4]
    assert report.summary.planned == 9


def test_a_policy_is_named_by_module_and_function() -> None:
    assert load_policy(f"{policies.__name__}:go_on").name.endswith(":go_on")
    for wrong, words in {
        "random_": "is not the name of a policy",
        "nothing.here:act": "no module",
        f"{policies.__name__}:missing": "missing",
        f"{policies.__name__}:a_number": "is not a policy",
        f"{environments.__name__}:DiceAction": "is not a policy",
    }.items():
        with pytest.raises(UsageError, match=words):
            load_policy(wrong)


def test_a_policys_failure_is_the_callers() -> None:
    assert PolicyFailed("x").blame == "client"
