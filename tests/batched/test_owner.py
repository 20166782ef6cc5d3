"""A client that owns a whole batch."""

from __future__ import annotations

import json
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import Field

from openenv import Action, Array, BatchedEnvClient, BatchedEnvironment, EnvClient, State, SyncBatchedEnvClient
from openenv.envs.echo.models import EchoAction, EchoObservation
from openenv.envs.echo.server.echo_environment import EchoEnvironment
from openenv.errors import (
    InvalidAction,
    InvalidArgument,
    NotForkable,
    ResetRequired,
    StepFailed,
    UsageError,
)
from openenv.server import create_app

from ..asynchronous import until
from ..chaos.proxy import Proxy
from ..recording.lines import lines_in
from ..server.talk import Talk
from ..server.wires import WIRES, served
from .environments import Counters, CountObservation, FewPoles, app_of


async def test_a_step_of_all_episodes():
    app = app_of(Counters)
    async with BatchedEnvClient(app=app) as env:
        result = await env.reset(seed=[1, 2, None, 4])
        assert env.num_envs == 4
        assert app.state.openenv.active_sessions == 1
        assert result.observation["total"].tolist() == [1, 2, 0, 4]
        assert result.observation["word"] == ["begun"] * 4
        assert result.reward.tolist() == [0, 0, 0, 0]
        assert result.info["begun"].tolist() == [1, 1, 1, 1]
        force = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
        result = await env.step({"by": np.array([1, -3, 1, 1]), "word": list("abcd"), "force": force})
        assert result.observation["total"].tolist() == [2, -1, 1, 5]
        assert result.observation["total"].dtype == np.int64
        assert result.observation["word"] == list("abcd")
        assert result.observation["force"].dtype == np.float32
        assert (result.observation["force"] == force).all()
        assert result.reward.tolist() == [1, -0.5, 0.5, 2.5]
        assert result.terminated.tolist() == [False, False, False, True]
        assert not result.truncated.any()
        assert result.info["tripled"].tolist() == [6, -3, 3, 15]
        assert (await env.state())["step_count"] == 1
    assert Counters.calls == [[True] * 4]


class WithDefaults(Action):
    by: int
    limit: int = 3
    words: list[str] = Field(default_factory=lambda: ["made"])
    text: str = Field(default_factory=lambda: "made")
    force: Annotated[np.ndarray, Array("float32", (2,))] = Field(default_factory=lambda: np.ones(2, np.float32))


class Defaults(BatchedEnvironment[WithDefaults, CountObservation, State]):
    """Notes its actions."""

    num_envs = 2
    seen: list[Any] = []

    def reset(self, seeds: Any, mask: Any) -> Any:
        return {"total": np.zeros(2, np.int64), "word": ["", ""], "force": np.zeros((2, 2), np.float32)}, {}

    def step(self, actions: Any, mask: Any) -> Any:
        type(self).seen.append(actions)
        return *self.reset(None, None)[:1], np.zeros(2), np.zeros(2, np.bool_), np.zeros(2, np.bool_), {}


async def test_fields_that_are_left_out_have_their_defaults():
    Defaults.seen = []
    async with BatchedEnvClient(app=app_of(Defaults)) as env:
        await env.reset()
        await env.step({"by": np.array([1, 2])})
    (seen,) = Defaults.seen
    assert seen["by"].tolist() == [1, 2]
    assert seen["limit"].tolist() == [3, 3]
    assert seen["words"] == [["made"], ["made"]]
    assert seen["text"] == ["made", "made"]
    assert seen["force"].dtype == np.float32
    assert seen["force"].tolist() == [[1, 1], [1, 1]]


async def test_an_integer_seeds_all_episodes_and_others_arguments_arrive():
    async with BatchedEnvClient(app=app_of(Counters)) as env:
        assert (await env.reset(seed=7)).observation["total"].tolist() == [7, 8, 9, 10]
        assert (await env.reset(seed=np.int64(7))).observation["total"].tolist() == [7, 8, 9, 10]
        assert (await env.reset(seed=np.arange(4))).observation["total"].tolist() == [0, 1, 2, 3]
        with pytest.raises(InvalidArgument, match=r"seed=1\.5.*an integer, or 4 of them"):
            await env.reset(seed=1.5)
        assert (await env.reset(start=-1)).observation["total"].tolist() == [-1] * 4


def test_without_await_and_with_the_array_of_the_only_field():
    with BatchedEnvClient(app=app_of(FewPoles)).sync() as env:
        assert isinstance(env, SyncBatchedEnvClient)
        first = env.reset(seed=1)
        result = env.step(np.zeros(env.num_envs, np.int64))
        assert result.observation["observation"].shape == (8, 4)
        assert (env.reset(1).observation["observation"] == first.observation["observation"]).all()
    with SyncBatchedEnvClient(app=app_of(Counters)) as env:
        env.reset()
        with pytest.raises(UsageError, match=r"by, word, force.*give a dict"):
            env.step(np.zeros(4))


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        ({"by": np.zeros(3, np.int64)}, r"by.*shape \(4,\) is declared, got \(3,\)"),
        ({"by": np.zeros(4)}, "by.*int64 is declared, got elements of float64"),
        ({"by": np.array([0, 9, 0, 0])}, r"by.*9 at \[1\] is not between -5 and 5"),
        ({"by": np.zeros(4, object)}, "object"),
        ({"by": np.zeros(4, np.int64), "force": np.full((4, 2), np.nan, np.float32)}, "force.*nan"),
        ({"by": np.zeros(4, np.int64), "force": np.zeros((4, 3), np.float32)}, r"force.*\(4, 2\).*\(4, 3\)"),
        ({"by": np.zeros(4, np.int64), "word": ["a"] * 3}, "word.*at least 4 items"),
        ({"by": np.zeros(4, np.int64), "word": ["a"] * 3 + [5]}, "word.*string"),
        ({"by": np.zeros(4, np.int64), "wood": ["a"] * 4}, "wood"),
        ({"word": ["a"] * 4}, "by"),
        ({"by": 3}, "by"),
    ],
)
async def test_an_invalid_action_names_the_field_and_executes_nothing(actions, said):
    async with BatchedEnvClient(app=app_of(Counters)) as env:
        await env.reset()
        with pytest.raises((InvalidAction, InvalidArgument), match=said):
            await env.step(actions)
        assert Counters.calls == []
        assert (await env.step({"by": [1] * 4})).observation["total"].tolist() == [1] * 4


async def test_smaller_integers_and_other_orders_of_bytes_and_axes_are_taken():
    async with BatchedEnvClient(app=app_of(Counters)) as env:
        await env.reset()
        force = np.arange(8, dtype=">f8").reshape(2, 4).T / 8
        result = await env.step({"by": np.ones(8, np.int8)[::2], "force": force})
        assert result.observation["total"].tolist() == [1] * 4
        assert (result.observation["force"] == force).all()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"seed": [1, 2]}, "seeds has 2 values: give one for each of the 4"),
        ({"seed": [1, 2, 3, "4"]}, "seeds must be"),
        ({"mask": [True, False]}, r"mask has elements of bool and shape \(2,\)"),
        ({"mask": np.ones(4)}, "mask has elements of float64"),
    ],
)
async def test_an_invalid_reset_names_the_argument(arguments, said):
    async with BatchedEnvClient(app=app_of(Counters)) as env:
        with pytest.raises(InvalidArgument, match=said):
            await env.reset(**arguments)


async def test_steps_need_a_reset_of_all():
    async with BatchedEnvClient(app=app_of(Counters)) as env:
        with pytest.raises(ResetRequired, match="no episode was started"):
            await env.step({"by": [1] * 4})
        with pytest.raises(ResetRequired, match="episode 1 was never started"):
            await env.reset(mask=[True, False, True, True])


class Faulty(Counters):
    """Its step returns what a test says."""

    returned: Any = None

    def step(self, actions: Any, mask: Any) -> Any:
        observations, *facts = super().step(actions, mask)
        return type(self).returned(observations, *facts)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda o, r, e, t, i: ({**o, "total": np.zeros(3, np.int64)}, r, e, t, i), r"'total'.*\(3,\).*\(4,\)"),
        (lambda o, r, e, t, i: ({**o, "total": np.zeros(4)}, r, e, t, i), "'total'.*float64.*int64"),
        (lambda o, r, e, t, i: ({**o, "word": ["a"]}, r, e, t, i), "'word'.*1 values.*4 episodes"),
        (lambda o, r, e, t, i: ({**o, "color": ["a"] * 4}, r, e, t, i), "'color'"),
        (lambda o, r, e, t, i: ({"total": o["total"]}, r, e, t, i), "no field 'word'"),
        (lambda o, r, e, t, i: (o, np.array([0, 0, np.nan, 0]), e, t, i), "reward of episode 2 .* nan"),
        (lambda o, r, e, t, i: (o, r[:3], e, t, i), "rewards.*3 values"),
        (lambda o, r, e, t, i: (o, r, e, np.zeros(4), i), "truncated.*float64"),
        (lambda o, r, e, t, i: (o, r, e, t, {"x": [1]}), "'x'.*1 values"),
        (lambda o, r, e, t, i: (o, r, e, t), "returned 4 values"),
        (lambda o, r, e, t, i: 1 / 0, "ZeroDivisionError"),
    ],
)
async def test_an_invalid_result_fails_the_step_and_names_the_field(returned, said):
    Faulty.returned = staticmethod(returned)
    async with BatchedEnvClient(app=app_of(Faulty)) as env:
        await env.reset()
        with pytest.raises(StepFailed, match=said):
            await env.step({"by": [1] * 4})


async def test_a_fork_of_the_whole_batch():
    async with BatchedEnvClient(app=app_of(FewPoles)) as env:
        await env.reset(seed=3)
        actions = np.arange(8) % 2
        await env.step(actions)
        async with await env.fork() as other:
            for _ in range(20):
                mine, its = await env.step(actions), await other.step(actions)
                assert (mine.observation["observation"] == its.observation["observation"]).all()

    class Locked(FewPoles):
        def save_state(self) -> Any:
            raise NotForkable("it holds a device")

    async with BatchedEnvClient(app=app_of(Locked)) as env:
        await env.reset()
        with pytest.raises(NotForkable, match="it holds a device"):
            await env.fork()


class SelfResetting(Counters):
    autoreset = "same_step"


async def test_other_servers_and_modes_are_refused():
    with pytest.raises(UsageError, match="plays one episode a session"):
        await BatchedEnvClient(app=create_app(EchoEnvironment, EchoAction, EchoObservation)).reset()
    app = app_of(SelfResetting)
    with pytest.raises(UsageError, match="does not offer the autoreset 'next_step': use same_step"):
        await BatchedEnvClient(app=app).reset()
    async with BatchedEnvClient(app=app, autoreset="same_step") as env:
        assert (await env.reset()).observation["total"].tolist() == [0] * 4
    with pytest.raises(UsageError, match="episodes together.*BatchedEnvClient"):
        await EnvClient(app=app).reset()
    with pytest.raises(InvalidArgument, match="record"):
        BatchedEnvClient(app=app, record="here")
    with pytest.raises(UsageError, match="num_envs is known"):
        _ = BatchedEnvClient(app=app).num_envs


@pytest.mark.parametrize("options", [{"batch": 1}, {"batched": True}, {"batch": False, "autoreset": "disabled"}, {}])
def test_options_of_open(options):
    with WIRES["memory"](app_of(Counters)) as open_wire:
        talk = Talk(open_wire("openenv.v2.json"))
        reply = talk.ask("open", session="s", options=options)
        if options:
            assert "options of open" in reply["error"]["message"] or "no such option" in reply["error"]["message"]
        else:
            assert reply["ok"]
        talk.wire.close()


def test_json_clients_own_a_batch_with_lists():
    with WIRES["memory"](app_of(Counters)) as open_wire:
        talk = Talk(open_wire("openenv.v2.json"))
        talk.ask("open", session="s", options={"batch": True, "autoreset": "same_step"})
        talk.ask("reset", session="s", seq=1, kwargs={"seeds": [1, 2, None, 4]})
        reply = talk.ask("step", session="s", seq=2, action={"by": [1, -3, 1, 1], "word": list("abcd")})
        assert reply["observation"] == {
            "total": [2, -1, 1, 0],
            "word": ["a", "b", "c", "begun"],
            "force": [[0, 0]] * 4,
        }
        assert reply["reward"] == [1, -0.5, 0.5, 2.5]
        assert reply["terminated"] == [False, False, False, True]
        assert reply["metadata"]["final_obs"]["total"] == [2, -1, 1, 5]
        assert reply["metadata"]["_final_obs"] == [False, False, False, True]
        assert reply["done"] is False
        assert json.dumps(reply)
        refused = talk.ask("step", session="s", seq=3, action={"by": [[1], 2, 3, 4]})
        assert refused["error"]["error"] == "InvalidAction"
        talk.wire.close()


def trajectory(env: SyncBatchedEnvClient, steps: int, between: Any) -> list[bytes]:
    env.reset(seed=11)
    seen = []
    for number in range(steps):
        between(number)
        result = env.step((np.arange(8) + number) % 2)
        seen += [result.observation["observation"].tobytes(), result.reward.tobytes()]
        seen += [result.terminated.tobytes(), result.truncated.tobytes()]
    return seen


def test_a_cut_connection_leaves_no_trace(hurry):
    with (
        served(app_of(FewPoles, resume_window_s=60.0)) as address,
        Proxy(int(address.rpartition(":")[2]), 5) as proxy,
    ):
        with BatchedEnvClient(f"http://{address}").sync() as env:
            uncut = trajectory(env, 60, lambda _: None)
        with BatchedEnvClient(f"http://127.0.0.1:{proxy.port}").sync() as env:
            cut = trajectory(env, 60, lambda number: number % 4 == 0 and proxy.doom(1200))
        assert proxy.accepted > 5
        assert cut == uncut


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
async def test_records_are_those_of_single_episodes(mode, tmp_path):
    app = app_of(Counters, record=str(tmp_path / "records"))
    async with BatchedEnvClient(app=app, autoreset=mode) as env:
        await env.reset(seed=[4, 0, 0, 0])
        for _ in range(2):
            await env.step({"by": np.ones(4, np.int64), "word": list("abcd")})
    await until(lambda: app.state.openenv.active_sessions == 0)
    app.state.openenv.recorder.close()
    lines = lines_in(tmp_path / "records")
    assert all(line["error"] is None for line in lines)
    first = [line for line in lines if line["session_id"].endswith(".0")]
    told = [(line["step"], line["observation"]["total"], line["reward"], line["done"]) for line in first]
    if mode == "next_step":
        assert told == [(0, 4, None, False), (1, 5, 2.5, True), (0, 0, None, False)]
    else:
        assert told == [(0, 4, None, False), (1, 5, 2.5, True), (0, 0, None, False), (1, 1, 0.5, False)]
    assert first[0]["seed"] == 4
    assert first[1]["action"] == {"by": 1, "word": "a"}
    second = [line for line in lines if line["session_id"].endswith(".1")]
    assert [(line["step"], line["observation"]["total"]) for line in second] == [(0, 0), (1, 1), (2, 2)]
