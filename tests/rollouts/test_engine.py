"""The engine: what a rollout records, how it ends, and how many are played at a time."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from openenv.arrays import Array
from openenv.errors import (
    ConnectionFailed,
    ContextOverflow,
    InvalidArgument,
    ModelFailed,
    ModelUnavailable,
    UsageError,
)
from openenv.evals.sampler import TaskSampler
from openenv.rollouts import (
    ChatMessage,
    Completion,
    Rollout,
    RolloutBudget,
    RolloutGroup,
    RolloutOutcome,
    RolloutTask,
    Sampling,
    drop_equal,
    read_rollouts,
    rollouts,
)
from openenv.server import create_app
from openenv.types import Observation

from ..asynchronous import until
from ..server.wires import FastPath, served
from .environments import Add, ScriptedModel, Sums, Total, adding, calling

ENVS = Path(__file__).parents[2] / "envs"


@pytest.fixture(autouse=True)
def _counted_anew() -> Iterator[None]:
    Sums.forget()
    yield
    assert Sums.live == 0


async def played(model: Any, tasks: Any, env: Any = Sums, **options: Any) -> list[RolloutGroup]:
    return [group async for group in rollouts(env, model, tasks, **options)]


async def one(model: Any, task: Any = 7, **options: Any) -> Rollout:
    """The only rollout of a run, finished or failed."""
    (group,) = await played(model, [task], **options)
    (rollout,) = [*group.rollouts, *group.failed]
    return rollout


def app_of(most: int = 100) -> Any:
    return create_app(Sums, Add, Total, max_concurrent_envs=most)


async def test_a_rollout_has_the_conversation_the_steps_and_the_return() -> None:
    rollout = await one(adding(), RolloutTask(seed=7))
    assert (rollout.rollout_id, rollout.outcome, rollout.reward) == ("000000-0", RolloutOutcome.TERMINATED, 6.0)
    assert [turn.reward for turn in rollout.turns] == [2.0, 2.0, 2.0]
    assert [step.observation["total"] for turn in rollout.turns for step in turn.steps] == [9, 11, 13]
    assert [message["role"] for message in rollout.conversation()] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    assert rollout.turns[1].prompt[0]["tool_call_id"] == "call_0"
    assert (rollout.usage.completion_tokens, rollout.usage.cost) == (15, 1.5)
    assert rollout.tools[0]["function"]["name"] == "add"
    assert (rollout.environment, rollout.model) == ("Sums", "scripted")
    assert rollout.contract is not None


async def test_all_of_a_group_have_the_task_and_the_seed() -> None:
    groups = await played(adding(), [RolloutTask(seed=3), RolloutTask(arguments={"length": 1})], group_size=4)
    assert [len(group.rollouts) for group in groups] == [4, 4]
    assert sorted(Sums.resets.values()) == [4, 4]
    for group in groups:
        assert group.task.seed is not None
        assert [rollout.task for rollout in group.rollouts] == [group.task] * 4
        assert [rollout.member for rollout in group.rollouts] == [0, 1, 2, 3]


async def test_an_app_a_url_and_urls_are_environments() -> None:
    with served(app_of(), ws=FastPath) as one_server, served(app_of(), ws=FastPath) as other:
        for env in (app_of(), f"http://{one_server}", [f"http://{one_server}", f"http://{other}"]):
            groups = await played(adding(), range(6), env, group_size=2)
            assert sorted(group.task.seed or 0 for group in groups) == [0, 1, 2, 3, 4, 5]
            assert all(group.rewards == [6.0, 6.0] for group in groups)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("word_game", ScriptedModel(lambda messages: "It is <guess>crane</guess>")),
        ("tool_shop", calling()),
        ("gridworld", calling()),
    ],
)
async def test_a_bundled_environment_is_played_to_its_end(
    name: str, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ENVS))
    app = importlib.import_module(f"{name}.server.app").app
    with served(app, ws=FastPath) as address:
        (group,) = await played(model, [RolloutTask(seed=1, split="train", index=2)], address, group_size=3)
    assert len(group.rollouts) == 3
    assert len(set(group.rewards)) == 1
    assert all(rollout.turns[0].steps[0].observation for rollout in group.rollouts)


class Position(Observation):
    """Where it is; unknown at first."""

    at: Annotated[NDArray[np.float32], Array("float32", (2,))]


class Walk(Sums):
    """The observation is an array."""

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        super().reset(*args, **kwargs)
        return Position(at=np.full(2, np.nan, np.float32))

    def step(self, action: Add, timeout_s: float | None = None, **kwargs: Any) -> Any:
        total = super().step(action, timeout_s, **kwargs)
        return Position(at=np.array([total.total, np.nan], np.float32), reward=total.reward, done=total.done)


async def test_arrays_of_an_observation_are_recorded_and_repeated(tmp_path: Path) -> None:
    app = create_app(Walk, Add, Position, max_concurrent_envs=9)
    forks: dict[str, Any] = {"fork": lambda rollout: int(len(rollout.turns) == 1 and rollout.forked_from is None)}
    (group,) = await played(adding(), [1], app, folder=tmp_path, **forks)
    assert group.rewards == [6.0, 6.0]
    for rollout in read_rollouts(tmp_path):
        assert [turn.steps[0].observation["at"] for turn in rollout.turns] == [[n, None] for n in (3.0, 5.0, 7.0)]


async def test_sessions_and_requests_are_limited_apart() -> None:
    model = adding()
    groups = await played(model, range(20), group_size=2, sessions=6, requests=3)
    assert len(groups) == 20
    assert (Sums.most_live, model.most) == (6, 3)


async def test_a_server_with_fewer_sessions_plays_all_the_same() -> None:
    with served(app_of(most=2), ws=FastPath) as address:
        groups = await played(adding(), range(8), f"http://{address}", sessions=6)
    assert len(groups) == 8
    assert not any(group.failed for group in groups)


@pytest.mark.parametrize(("ahead", "waiting"), [(3, 3), (None, 2)])
async def test_no_more_groups_begin_than_the_consumer_takes(ahead: int | None, waiting: int) -> None:
    given = 0

    async def tasks() -> AsyncIterator[int]:
        nonlocal given
        while True:
            given += 1
            yield given

    async with rollouts(Sums, adding(), tasks(), group_size=2, sessions=4, ahead=ahead) as run:
        for taken in range(1, 6):
            assert len(await run.batch(1)) == 1
            await until(lambda least=taken + waiting: run.progress.groups >= least)
            # Waiting, and at most one for each session.
            assert given <= taken + waiting + 4


async def test_the_first_finished_come_first_and_stragglers_later() -> None:
    slow = asyncio.Event()

    async def answer(messages: Any) -> dict[str, int]:
        if '"total":0}' in messages[1]["content"]:
            await slow.wait()
        return {"by": 1}

    async with rollouts(Sums, ScriptedModel(answer), range(5), group_size=2) as run:
        first = await run.batch(3)
        assert [group.task.seed for group in first] == [1, 2, 3]
        slow.set()
        assert {group.task.seed for group in await run.batch(3)} == {4, 0}
        assert await run.batch(3) == []


async def test_a_batch_that_is_cancelled_leaves_its_groups_to_the_next_one() -> None:
    slow = asyncio.Event()

    async def answer(messages: Any) -> dict[str, int]:
        if '"total":0}' in messages[1]["content"]:
            await slow.wait()
        return {"by": 1}

    async with rollouts(Sums, ScriptedModel(answer), range(5)) as run:
        taking = asyncio.create_task(run.batch(5))
        await until(lambda: run.progress.groups == 4)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        slow.set()
        assert [group.task.seed for group in await run.batch(5)] == [1, 2, 3, 4, 0]


async def test_forks_are_played_while_the_next_task_is_awaited() -> None:
    taken = asyncio.Event()

    async def tasks() -> AsyncIterator[int]:
        yield 1
        await taken.wait()
        yield 2

    forks: dict[str, Any] = {"fork": lambda rollout: int(len(rollout.turns) == 1 and rollout.forked_from is None)}
    async for group in rollouts(Sums, adding(), tasks(), **forks):
        assert len(group.rollouts) == 2
        taken.set()


# How a rollout ends.


@pytest.mark.parametrize(
    ("budget", "outcome", "turns", "reward"),
    [
        (RolloutBudget(turns=2), RolloutOutcome.OUT_OF_TURNS, 2, 4.0),
        (RolloutBudget(tokens=10), RolloutOutcome.OUT_OF_TOKENS, 2, 4.0),
        (RolloutBudget(cost=1.0), RolloutOutcome.OUT_OF_TOKENS, 2, 4.0),
        (RolloutBudget(context=45), RolloutOutcome.OUT_OF_CONTEXT, 2, 4.0),
        (RolloutBudget(turns=None), RolloutOutcome.TERMINATED, 3, 6.0),
    ],
)
async def test_a_budget_ends_a_rollout_which_keeps_its_return(
    budget: RolloutBudget, outcome: RolloutOutcome, turns: int, reward: float
) -> None:
    model = adding()
    rollout = await one(model, budget=budget)
    assert (rollout.outcome, len(rollout.turns), rollout.reward) == (outcome, turns, reward)
    assert rollout.failure is None
    if budget.tokens is not None:
        assert [request.sampling.max_tokens for request in model.requests] == [10, 5]


async def test_a_rollout_that_is_late_has_no_return() -> None:
    async def answer(messages: Any) -> dict[str, int]:
        if len(messages) > 2:
            await asyncio.Event().wait()
        return {"by": 2}

    rollout = await one(ScriptedModel(answer), budget=RolloutBudget(seconds=0.2))
    assert (rollout.outcome, rollout.reward, len(rollout.turns)) == (RolloutOutcome.OUT_OF_TIME, None, 1)
    assert rollout.failure is not None
    assert "budget.seconds" in rollout.failure.message


@pytest.mark.parametrize("budget", [{"turns": 0}, {"tokens": -1}, {"seconds": math.nan}, {"cost": "much"}])
def test_a_budget_that_makes_no_sense_is_refused(budget: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(budget))):
        RolloutBudget(**budget)


LEAST = {"group_size": 1, "sessions": 1, "requests": 1, "retries": 0, "ahead": 1, "max_staleness": 0}


@pytest.mark.parametrize(
    "options", [*({name: number - 1} for name, number in LEAST.items()), {"requests": "4"}, {"max_staleness": 1}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        rollouts(Sums, adding(), [1], **options)


async def test_the_least_options_play_all() -> None:
    groups = await played(adding(), range(3), **LEAST, policy_version=lambda: 0)
    assert sorted(group.task.seed for group in groups) == [0, 1, 2]


def test_a_filter_of_equal_returns_needs_two_of_them() -> None:
    drop_equal(2)
    with pytest.raises(InvalidArgument, match="least=1"):
        drop_equal(1)


NESTED = json.loads("[" * 600 + "]" * 600)


@pytest.mark.parametrize(
    "mistake",
    ["Let me think.", {"bi": 2}, {"by": "many"}, {"by": 2, "as": 1}, {"by": NESTED}],
    ids=["text", "name", "type", "extra", "nested"],
)
async def test_a_mistake_is_answered_in_the_conversation_and_counted(mistake: Any) -> None:
    rollout = await one(ScriptedModel(lambda messages: mistake if len(messages) == 4 else {"by": 2}))
    assert (rollout.outcome, rollout.reward, rollout.invalid_actions) == (RolloutOutcome.TERMINATED, 6.0, 1)
    assert [len(turn.steps) for turn in rollout.turns] == [1, 1, 1, 1]
    (wrong,) = [step for turn in rollout.turns for step in turn.steps if step.error is not None]
    assert (wrong.observation, wrong.reward) == (None, None)
    answer = rollout.turns[2].prompt[0]
    assert wrong.error in answer["content"]
    assert answer["role"] == ("user" if isinstance(mistake, str) else "tool")


@pytest.mark.parametrize(("limit", "turns"), [(None, 3), (1, 1), (5, 5)])
async def test_too_many_mistakes_are_a_failure_of_the_model(limit: int | None, turns: int) -> None:
    model = ScriptedModel(lambda messages: "no")
    rollout = await one(model, budget=RolloutBudget(invalid=limit))
    assert (rollout.outcome, rollout.reward) == (RolloutOutcome.MODEL_FAILED, None)
    assert (rollout.invalid_actions, len(rollout.turns)) == (turns, turns)
    assert rollout.failure is not None
    assert "max_invalid" in rollout.failure.message


async def test_calls_after_the_end_of_the_episode_are_no_steps() -> None:
    rollout = await one(ScriptedModel(lambda messages: [{"by": 1}] * 5))
    (turn,) = rollout.turns
    assert [step.reward for step in turn.steps] == [1.0, 1.0, 1.0, None, None]
    assert [step.error is None for step in turn.steps] == [True, True, True, False, False]
    assert (rollout.reward, rollout.invalid_actions) == (3.0, 0)


@pytest.mark.parametrize(
    ("fault", "said"), [("reset", "no episode"), ("raise", "broken"), ("nan", "nan")], ids=["reset", "raise", "nan"]
)
async def test_a_failure_of_the_environment_is_no_reward(fault: str, said: str) -> None:
    tasks = [RolloutTask(seed=seed, arguments={"fault": fault} if seed == 2 else {}) for seed in range(4)]
    groups = {group.task.seed: group for group in await played(adding(), tasks, group_size=2)}
    assert groups[2].rollouts == []
    assert Sums.resets[2] == 2  # each once
    for failed in groups[2].failed:
        assert (failed.outcome, failed.reward) == (RolloutOutcome.ENVIRONMENT_FAILED, None)
        assert failed.failure is not None
        assert (failed.failure.blame, said in failed.failure.message) == ("environment", True)
    assert [groups[seed].rewards for seed in (0, 1, 3)] == [[6.0, 6.0]] * 3


def refusing(after: int, error: Exception | Completion) -> ScriptedModel:
    """Fails in the second turn of the rollouts whose number is at least `after`."""
    seen: list[int] = []

    def answer(messages: Any) -> Any:
        if len(messages) > 2:
            seen.append(len(messages))
            if len(seen) > after:
                if isinstance(error, Exception):
                    raise error
                return error
        return {"by": 2}

    return ScriptedModel(answer)


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (ModelFailed("the answer cannot be read"), RolloutOutcome.MODEL_FAILED),
        (ModelUnavailable("busy", retry_after_s=0.0), RolloutOutcome.MODEL_FAILED),
        (Completion(message={"role": "assistant", "content": ""}, refused=True), RolloutOutcome.REFUSED),
        (
            Completion(message={"role": "assistant", "content": ""}, finish_reason="content_filter"),
            RolloutOutcome.REFUSED,
        ),
    ],
)
async def test_a_failure_of_the_model_is_no_reward(said: Any, outcome: RolloutOutcome) -> None:
    rollout = await one(refusing(0, said))
    assert (rollout.outcome, rollout.reward) == (outcome, None)
    assert rollout.failure is not None


async def test_a_context_that_is_full_ends_a_rollout_with_its_return() -> None:
    rollout = await one(refusing(0, ContextOverflow("too long")))
    assert (rollout.outcome, rollout.reward, len(rollout.turns)) == (RolloutOutcome.OUT_OF_CONTEXT, 2.0, 1)


async def test_a_model_that_comes_back_is_asked_again_under_the_same_key() -> None:
    failures = iter([ModelUnavailable("busy", retry_after_s=0.0)] * 2)

    def answer(messages: Any) -> dict[str, int]:
        if len(messages) > 2 and (failure := next(failures, None)) is not None:
            raise failure
        return {"by": 2}

    model = ScriptedModel(answer)
    rollout = await one(model)
    assert (rollout.reward, rollout.attempts) == (6.0, 1)
    assert len(model.keys) == 5
    assert len(set(model.keys)) == 3
    assert len({request.session for request in model.requests}) == 1


# What ends a run.


async def test_what_the_endpoint_refuses_from_the_first_is_one_error() -> None:
    def answer(messages: Any) -> Any:
        raise ModelFailed("401: no such key", status=401)

    with pytest.raises(ModelFailed, match="no such key"):
        await played(ScriptedModel(answer), range(100), group_size=4)


async def test_a_first_prompt_that_is_too_long_is_one_error() -> None:
    def answer(messages: Any) -> Any:
        raise ContextOverflow("the prompt has 10 tokens, and the context is 4")

    with pytest.raises(ContextOverflow, match="the context is 4"):
        await played(ScriptedModel(answer), range(100))


async def test_no_server_is_one_error() -> None:
    with pytest.raises(ConnectionFailed):
        await played(adding(), [1], "http://127.0.0.1:9", connect_timeout_s=0.2)


async def test_a_wrong_argument_of_reset_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="not JSON"):
        await played(adding(), [RolloutTask(seed=1, arguments={"length": object()})])


async def test_a_task_that_is_none_is_the_callers_mistake() -> None:
    with pytest.raises(InvalidArgument, match="'train'"):
        await played(adding(), ["train"])


# Leaving.


async def test_a_loop_that_is_left_ends_all_sessions() -> None:
    with served(app_of(), ws=FastPath) as address:
        async for _ in rollouts(f"http://{address}", adding(), range(1000), group_size=2):
            break
        await until(lambda: Sums.live == 0)


async def test_who_is_cancelled_ends_all_sessions() -> None:
    async def wait(messages: Any) -> Any:
        await asyncio.Event().wait()

    model = ScriptedModel(wait)
    task = asyncio.create_task(played(model, range(8)))
    await until(lambda: len(model.requests) == 8)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_group_that_is_cancelled_does_not_come() -> None:
    async def answer(messages: Any) -> Any:
        if '"total":0}' in messages[1]["content"]:
            await asyncio.Event().wait()
        return {"by": 2}

    model = ScriptedModel(answer)
    async with rollouts(Sums, model, range(4), group_size=2) as run:
        await run.batch(3)
        await run.cancel("000000")
        assert await run.batch(1) == []
        assert run.progress.dropped == 1


# Choosing.


async def test_a_group_can_be_cancelled_at_any_moment() -> None:
    for moment in range(20):
        async with rollouts(Sums, adding(), [1, 2], sessions=1) as run:
            for _ in range(moment):
                await asyncio.sleep(0)
            await run.cancel("000000")
            assert (await run.batch(2))[-1].task.seed == 2


async def test_groups_that_the_filter_drops_are_not_played_to_their_end() -> None:
    numbers = itertools.cycle(range(1, 10))

    def answer(messages: Any) -> dict[str, int]:
        odd = int(messages[1]["content"][9:-1]) % 2
        return {"by": 1 if odd or len(messages) > 2 else next(numbers)}

    model = ScriptedModel(answer)
    groups = await played(model, range(10), group_size=8, sessions=4, keep=drop_equal(3))
    assert [group.task.seed for group in groups] == [0, 2, 4, 6, 8]
    # Of each other group, 3 rollouts finish, and at most 3 others have begun.
    assert len({request.session for request in model.requests}) <= 5 * 8 + 5 * 6


async def test_policy_versions_are_on_every_turn() -> None:
    versions = iter(range(100))
    rollout = await one(adding(), policy_version=lambda: next(versions))
    assert [turn.version for turn in rollout.turns] == [0, 1, 2]


@pytest.mark.parametrize("on_stale", ["restart", "drop"])
async def test_rollouts_that_are_too_old_when_they_are_taken_do_not_come(on_stale: Any) -> None:
    version = 0
    async with rollouts(
        Sums,
        adding(),
        range(4),
        group_size=2,
        policy_version=lambda: version,
        max_staleness=1,
        on_stale=on_stale,
    ) as run:
        await until(lambda: run.progress.groups == 4)
        assert len(await run.batch(1)) == 1
        version = 2
        groups = [group async for group in run]
        assert len(groups) == (3 if on_stale == "restart" else 0)
        assert run.progress.stale == 6
        assert all(turn.version == 2 for group in groups for each in group.rollouts for turn in each.turns)
        assert all([rollout.member for rollout in group.rollouts] == [2, 3] for group in groups)


async def test_a_rollout_that_grows_too_old_begins_again() -> None:
    version = 0

    def answer(messages: Any) -> dict[str, int]:
        nonlocal version
        version += len(model.requests) == 2
        return {"by": 2}

    model = ScriptedModel(answer)
    rollout = await one(model, policy_version=lambda: version, max_staleness=0)
    assert ([turn.version for turn in rollout.turns], rollout.reward) == ([1, 1, 1], 6.0)
    assert len(set(model.keys)) == len(model.keys) == 5


async def test_a_samplers_tasks_are_finished_when_the_consumer_comes_back() -> None:
    sampler = TaskSampler(3, split="train", seed=1)
    async with rollouts(Sums, adding(), sampler, group_size=2) as run:
        groups = await run.batch(2)
        assert sampler.left == 3
        assert all(group.task.split == "train" and group.task.index is not None for group in groups)
        await run.batch(2)
        assert sampler.left == 1
        assert await run.batch(1) == []
        assert sampler.left == 0


async def test_a_sampler_by_signal_hears_what_the_groups_returned(tmp_path: Path) -> None:
    journal = tmp_path / "tasks"
    with TaskSampler(3, split="train", seed=1, by_signal=True, journal=journal) as sampler:
        async with rollouts(Sums, adding(), sampler, group_size=2) as run:
            groups = {group.task.index: group async for group in run}
    told = [json.loads(line) for line in journal.read_text().splitlines() if '"result"' in line]
    assert {each["index"]: each["rewards"] for each in told} == {
        index: group.rewards for index, group in groups.items()
    }
    assert all(each["cost"] >= 1 for each in told)


async def test_sampling_goes_to_the_model() -> None:
    model = adding()
    await one(model, sampling=Sampling(temperature=0.5, max_tokens=7))
    assert model.requests[0].sampling == Sampling(temperature=0.5, max_tokens=7)


async def test_forks_begin_with_the_same_turns_and_go_on_by_themselves() -> None:
    numbers = itertools.count(1)
    model = ScriptedModel(lambda messages: {"by": next(numbers)})
    options: dict[str, Any] = {"fork": lambda rollout: 2 * (len(rollout.turns) == 1 and rollout.forked_from is None)}
    (group,) = await played(model, [5], sessions=2, **options)
    first, *forks = group.rollouts
    assert [(fork.forked_from, fork.forked_at) for fork in forks] == [(first.rollout_id, 1)] * 2
    assert all(fork.turns[0].completion == first.turns[0].completion for fork in forks)
    assert len(set(group.rewards)) == 3
    assert len(set(model.keys)) == len(model.keys) == 1 + 3 * 2


async def test_forks_make_a_tree() -> None:
    groups = await played(adding(), range(3), fork=lambda rollout: 1)
    # Each of two turns that go on doubles the leaves.
    assert [len(group.rollouts) for group in groups] == [4, 4, 4]


@pytest.mark.parametrize(
    ("fault", "address", "forks", "taken"),
    [
        ("", Sums, {"copied": 9}, 21),
        ("locked", Sums, {"NotForkable": 9}, 36),
        ("", app_of(most=1), {"ServerFull": 9}, 36),
    ],
)
async def test_a_fork_is_copied_on_the_server_or_else_repeats_its_steps(
    fault: str, address: Any, forks: dict[str, int], taken: int
) -> None:
    def answer(messages: Sequence[ChatMessage]) -> Any:
        return {"by": len(messages) % 9 + 1}

    tasks = [RolloutTask(seed=seed, arguments={"fault": fault}) for seed in range(3)]
    Sums.forget()
    async with rollouts(address, ScriptedModel(answer), tasks, sessions=9, fork=lambda rollout: 1) as run:
        groups = [group async for group in run]
    assert (dict(run.progress.forks), Sums.taken) == (forks, taken)
    for group in groups:
        first, *others = group.rollouts
        assert len(others) == 3
        for other in others:
            assert other.reward == first.reward
            assert [(turn.prompt, turn.completion) for turn in other.turns] == [
                (turn.prompt, turn.completion) for turn in first.turns
            ]
            assert [step.observation for turn in other.turns for step in turn.steps] == [
                step.observation for turn in first.turns for step in turn.steps
            ]


async def test_more_forks_than_slots_repeat_their_steps() -> None:
    fork: Any = lambda rollout: 5 * (len(rollout.turns) == 1 and rollout.forked_from is None)  # noqa: E731
    async with rollouts(Sums, adding(), [1], sessions=2, fork=fork) as run:
        (group,) = [group async for group in run]
    assert group.rewards == [6.0] * 6
    assert run.progress.forks == {"copied": 2, "CapacityError": 3}


async def test_an_environment_that_is_neither_deterministic_nor_forkable_has_no_forks() -> None:
    task = RolloutTask(seed=2, arguments={"fault": "random"})
    (group,) = await played(adding(), [task], fork=lambda rollout: int(len(rollout.turns) == 1))
    (failed,) = group.failed
    assert failed.failure is not None
    assert (failed.reward, failed.failure.error) == (None, "NotForkable")
    assert group.rewards == [6.0]
