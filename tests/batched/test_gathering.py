"""Single sessions that share an instance."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from pydantic import Field
from starlette.testclient import TestClient

from openenv import Array, BatchedEnvironment, EnvClient, GenericEnvClient, VectorEnvClient
from openenv.client import memory
from openenv.errors import (
    FactoryFailed,
    InvalidAction,
    InvalidArgument,
    NotForkable,
    ResetRequired,
    SessionLost,
    StepFailed,
    StepTimeout,
    UsageError,
)
from openenv.runtime.batch import CheckedBatch, batch_spec_of
from openenv.runtime.gathering import GatheredCalls, run_gathered
from openenv.runtime.outcome import BatchOutcome
from openenv.types import Action, Observation, State

from ..asynchronous import Gate, until
from ..chaos.proxy import Proxy
from ..recording.lines import lines_in
from ..server.talk import Talk
from ..server.wires import WIRES, served
from .environments import CountAction, Counters, CountObservation, FewPoles, app_of

# A window that does not end in a test: whoever waits for others waits for their calls.
FOREVER_US = 10_000_000


class CounterClient(EnvClient[CountAction, CountObservation, State]):
    pass


def clients(app: Any, count: int, **options: Any) -> list[CounterClient]:
    return [CounterClient(app=app, **options) for _ in range(count)]


async def closed(app: Any, envs: list[CounterClient]) -> None:
    for env in envs:
        await env.close()
    await until(lambda: app.state.openenv.active_sessions == 0)
    assert all(instance.closed.is_set() for instance in Counters.made)


async def test_sessions_share_an_instance_and_its_calls():
    app = app_of(Counters, gather_window_us=FOREVER_US)
    envs = clients(app, 4)
    for env in envs:
        await env.connect()
    firsts = await asyncio.gather(*(env.reset(seed=seed) for seed, env in enumerate(envs)))
    assert [first.observation.total for first in firsts] == [0, 1, 2, 3]
    assert [first.reward for first in firsts] == [None] * 4
    force = np.array([0.5, -0.5], np.float32)
    actions = [CountAction(by=by, word=f"w{by}", force=force * by) for by in (-1, 0, 1, 2)]
    results = await asyncio.gather(*(env.step(action) for env, action in zip(envs, actions, strict=True)))
    assert Counters.calls == [[True] * 4]
    assert len(Counters.made) == 1
    assert [result.observation.total for result in results] == [-1, 1, 3, 5]
    assert [result.observation.word for result in results] == ["w-1", "w0", "w1", "w2"]
    assert [result.observation.force.tolist() for result in results] == [
        (force * by).tolist() for by in (-1, 0, 1, 2)
    ]
    assert [result.reward for result in results] == [-0.5, 0.5, 1.5, 2.5]
    assert [result.done for result in results] == [False, False, False, True]
    assert [result.terminated for result in results] == [False, False, False, True]
    assert results[2].metadata == {"tripled": 9}
    states = await asyncio.gather(*(env.state() for env in envs))
    assert [state.step_count for state in states] == [1] * 4
    await closed(app, envs)


async def test_a_session_that_does_not_call_holds_the_others_for_a_window_at_most():
    app = app_of(Counters, gather_window_us=1000)
    quick, late = envs = clients(app, 2)
    await asyncio.gather(*(env.reset() for env in envs))
    for number in range(5):
        assert (await quick.step(CountAction(by=1))).observation.total == number + 1
    assert (await late.step(CountAction(by=1))).observation.total == 1
    assert len(Counters.calls) == 6
    await closed(app, envs)


async def test_sessions_above_the_number_of_episodes_get_another_instance():
    app = app_of(Counters)
    envs = clients(app, 6)
    await asyncio.gather(*(env.reset(seed=seed) for seed, env in enumerate(envs)))
    results = await asyncio.gather(*(env.step(CountAction(by=0)) for env in envs))
    assert [result.observation.total for result in results] == [0, 1, 2, 3, 4, 5]
    assert len(Counters.made) == 2
    await envs[0].close()
    await until(lambda: app.state.openenv.active_sessions == 5)
    envs[0] = CounterClient(app=app)
    await envs[0].reset(seed=4)
    assert (await envs[0].step(CountAction(by=1))).done
    assert len(Counters.made) == 2
    await closed(app, envs)


async def test_each_session_gets_its_own_error():
    app = app_of(Counters)
    good, bad = envs = clients(app, 2)
    with pytest.raises(ResetRequired, match="reset before"):
        await bad.step(CountAction(by=1))
    with pytest.raises(InvalidArgument, match="seed is -1"):
        await bad.reset(seed=-1)
    await asyncio.gather(*(env.reset(seed=4) for env in envs))
    refused, result = await asyncio.gather(
        bad.step(CountAction.model_construct(by=9, word="")), good.step(CountAction(by=1)), return_exceptions=True
    )
    assert isinstance(refused, InvalidAction)
    assert result.done
    with pytest.raises(ResetRequired):
        await good.step(CountAction(by=1))
    with pytest.raises(NotForkable, match="one episode of an instance that sessions share"):
        await good.fork()
    assert (await bad.step(CountAction(by=0))).observation.total == 4
    await closed(app, envs)


class BigAction(Action):
    size: int
    force: Annotated[np.ndarray, Array("float32", (2,))]


class BigCounters(BatchedEnvironment[BigAction, CountObservation, State]):
    num_envs = 2

    def reset(self, seeds, mask):
        return self.seen(np.zeros((2, 2), np.float32)), {}

    def step(self, actions, mask):
        self.totals += np.where(mask, actions["size"], 0)
        none = np.zeros(2, np.bool_)
        return self.seen(actions["force"]), np.zeros(2), none, none, {}

    def __init__(self):
        self.totals = np.zeros(2, np.int64)

    def seen(self, force):
        return {"total": self.totals, "word": ["", ""], "force": force}


@pytest.mark.parametrize("sizes", [(2**70, 1), (2**70, 2**70)])
async def test_a_number_that_no_array_holds_is_refused_alone(sizes, monkeypatch):
    monkeypatch.setattr(memory, "SUBPROTOCOL", "openenv.v2.json")  # msgpack has no such integers
    app = app_of(BigCounters, gather_window_us=FOREVER_US)
    async with GenericEnvClient(app=app) as one, GenericEnvClient(app=app) as other:
        await asyncio.gather(one.reset(), other.reset())
        actions = [{"size": size, "force": np.zeros(2, np.float32)} for size in sizes]
        results = await asyncio.gather(one.step(actions[0]), other.step(actions[1]), return_exceptions=True)
        for size, result in zip(sizes, results, strict=True):
            assert isinstance(result, InvalidAction) if size > 1 else result.observation["total"] == 1
        actions[0]["size"] = 2
        again = await asyncio.gather(one.step(actions[0]), other.step(actions[0]))
        assert again[0].observation["total"] == 2
    await app.state.openenv.aclose()


async def test_an_exception_of_the_instance_fails_the_steps_of_that_call_alone():
    app = app_of(Counters, gather_window_us=FOREVER_US)
    envs = clients(app, 3)
    for env in envs:
        await env.connect()
    await asyncio.gather(*(env.reset() for env in envs))

    def fail() -> None:
        Counters.on_step = staticmethod(lambda: None)
        raise InvalidAction("of one of them")

    Counters.on_step = staticmethod(fail)
    failed = await asyncio.gather(*(env.step(CountAction(by=1)) for env in envs), return_exceptions=True)
    assert all(type(error) is StepFailed and "of one of them" in str(error) for error in failed)
    results = await asyncio.gather(*(env.step(CountAction(by=1)) for env in envs))
    assert [result.observation.total for result in results] == [1, 1, 1]
    await closed(app, envs)


async def test_a_call_over_its_deadline_costs_its_session_and_no_other():
    app = app_of(Counters, gather_window_us=1000)
    late, patient = envs = clients(app, 2, message_timeout_s=None)
    await asyncio.gather(*(env.reset() for env in envs))
    gate = Gate()
    Counters.on_step = staticmethod(gate.wait)
    waiting = asyncio.ensure_future(patient.step(CountAction(by=1)))
    with pytest.raises((StepTimeout, SessionLost)):
        await late.step(CountAction(by=2), timeout_s=0.05)
    await gate.reached()
    # The instance is held by that call: a new session gets another one.
    fresh = CounterClient(app=app)
    assert (await fresh.reset(seed=3)).observation.total == 3
    assert len(Counters.made) == 2
    gate.open()
    assert (await waiting).observation.total == 1
    assert (await patient.step(CountAction(by=1))).observation.total == 2
    # The episode of the late session is another's now, and begins anew.
    await until(lambda: app.state.openenv.active_sessions == 2)
    third = CounterClient(app=app)
    assert (await third.reset()).observation.total == 0
    assert (await third.step(CountAction(by=1))).observation.total == 1
    await closed(app, [*envs, fresh, third])


async def test_a_call_that_waits_for_others_can_be_cancelled():
    app = app_of(Counters, gather_window_us=FOREVER_US)
    waiting, other = envs = clients(app, 2)
    for env in envs:
        await env.connect()
    await asyncio.gather(*(env.reset() for env in envs))
    with pytest.raises(StepTimeout):
        await waiting.step(CountAction(by=1), timeout_s=0.05)
    results = await asyncio.gather(waiting.step(CountAction(by=2)), other.step(CountAction(by=3)))
    assert [result.observation.total for result in results] == [2, 3]
    assert Counters.calls == [[True, True, False, False]]
    await closed(app, envs)


async def test_a_session_that_ends_is_not_waited_for():
    app = app_of(Counters, gather_window_us=FOREVER_US)
    stays, leaves = envs = clients(app, 2)
    for env in envs:
        await env.connect()
    await asyncio.gather(*(env.reset() for env in envs))
    call = asyncio.ensure_future(stays.step(CountAction(by=1)))
    await leaves.close()
    assert (await call).observation.total == 1
    await closed(app, [stays])


async def test_a_constructor_that_fails_fails_all_that_wait_for_it():
    class Broken(Counters):
        def __init__(self) -> None:
            raise OSError("no device")

    app = app_of(Broken)
    before = threading.active_count()
    for env in clients(app, 2):
        with pytest.raises(FactoryFailed, match="no device"):
            await env.reset()
    await until(lambda: app.state.openenv.active_sessions == 0)
    await until(lambda: threading.active_count() == before)


def test_a_session_that_waited_for_a_slot_begins_its_own_episode():
    with WIRES["memory"](app_of(Counters, max_sessions=2, queue_timeout_s=60)) as open_wire:
        talk = Talk(open_wire("openenv.v2.json"))
        for number, session in enumerate(("other", "leaving")):
            talk.open(session)
            talk.ask(**talk.call("reset", session, kwargs={"seed": number}))
        # Its reset waits with its `open`, and executes as soon as it has a slot.
        talk.seq["entering"] = 0
        talk.tell("open", session="entering")
        talk.tell(**talk.call("reset", "entering", kwargs={"seed": 4}))
        talk.tell("close", session="leaving")
        *_, begun = [talk.receive() for _ in range(3)]
        assert begun["observation"]["total"] == 4
        assert talk.ask(**talk.call("step", "other", action={"by": 1}))["observation"]["total"] == 1
        talk.wire.close()


class MadeAction(Action):
    word: str = Field(default_factory=lambda: "made")


class Words(BatchedEnvironment[MadeAction, CountObservation, State]):
    num_envs = 2

    def reset(self, seeds: Any, mask: Any) -> Any:
        return {"total": np.zeros(2, np.int64), "word": ["", ""], "force": np.zeros((2, 2), np.float32)}, {}

    def step(self, actions: Any, mask: Any) -> Any:
        observations = {**self.reset(None, None)[0], "word": [str(word) for word in actions["word"]]}
        return observations, np.zeros(2), np.zeros(2, np.bool_), np.zeros(2, np.bool_), {}


async def test_a_field_that_is_left_out_has_the_default_that_its_class_makes():
    async with GenericEnvClient(app=app_of(Words)) as env:
        await env.reset()
        assert (await env.step({})).observation["word"] == "made"


def test_the_next_call_changes_no_list_of_a_result():
    class Logs(Counters):
        def _observations(self) -> dict[str, Any]:
            return {**super()._observations(), "word": self.logs}

        def reset(self, *args: Any, **kwargs: Any) -> Any:
            self.logs: list[Any] = [[] for _ in range(self.num_envs)]
            return super().reset(*args, **kwargs)

        def step(self, actions: Any, mask: Any) -> Any:
            for log in self.logs:
                log.append("step")
            return super().step(actions, mask)

    spec = batch_spec_of(Logs, CountAction, CountObservation)
    batch = CheckedBatch(spec, Logs())
    started, _ = run_gathered(batch, GatheredCalls({0: None}, [], {}))
    run_gathered(batch, GatheredCalls({}, [0], {"by": np.ones(4, np.int64)}))
    assert isinstance(started, BatchOutcome)
    assert started.episode(0)["word"] == []


async def test_the_limit_of_executing_calls_counts_no_waiting_ones():
    app = app_of(Counters, gather_window_us=FOREVER_US, max_executing=1)
    envs = clients(app, 4)
    for env in envs:
        await env.connect()
    await asyncio.gather(*(env.reset() for env in envs))
    await asyncio.gather(*(env.step(CountAction(by=1)) for env in envs))
    assert Counters.calls == [[True] * 4]
    await closed(app, envs)


def test_http_and_v1_and_json():
    with TestClient(app_of(Counters)) as client:
        hello = client.get("/schema").json()
        assert set(hello["action"]["properties"]) == {"by", "word", "force", "metadata"}
        assert client.get("/metadata").json().get("seedable") is not False
        opened = client.post("/sessions").json()
        headers = {"X-Session-ID": opened["session_id"]}
        reset = client.post("/reset", json={"seed": 3, "episode_id": "e"}, headers=headers).json()
        assert reset["observation"] == {"total": 3, "word": "begun", "force": [0, 0], "metadata": {"begun": 1}}
        assert reset["reward"] is None
        step = client.post(
            "/step", json={"action": {"by": 1, "word": "x", "force": [0.5, 0]}}, headers=headers
        ).json()
        assert step["observation"] == {"total": 4, "word": "x", "force": [0.5, 0], "metadata": {"tripled": 12}}
        assert step["reward"] == 2
        assert client.get("/state", headers=headers).json() == {"episode_id": "e", "step_count": 1}
        with client.websocket_connect("/ws") as socket:
            socket.send_json({"type": "reset", "data": {"seed": 4}})
            assert socket.receive_json()["data"]["observation"]["total"] == 4
            socket.send_json({"type": "step", "data": {"by": 1}})
            data = socket.receive_json()["data"]
            assert data["observation"]["total"] == 5
            assert data["done"] is True
            assert data["metadata"] == {"tripled": 15}


async def test_sessions_are_recorded_as_others(tmp_path):
    app = app_of(Counters, record=str(tmp_path / "records"))
    async with CounterClient(app=app) as env:
        await env.reset(seed=4)
        await env.step(CountAction(by=1, word="x"))
    await until(lambda: app.state.openenv.active_sessions == 0)
    app.state.openenv.recorder.close()
    first, second = lines_in(tmp_path / "records")
    assert (first["step"], first["seed"], first["observation"]["total"]) == (0, 4, 4)
    assert (second["step"], second["action"]["by"], second["observation"]["total"]) == (1, 1, 5)
    assert (second["reward"], second["terminated"], second["truncated"], second["done"]) == (2.5, True, False, True)


class PoleClient(EnvClient[Any, Any, Any]):
    pass


def trajectory(url: str, between: Any) -> list[Any]:
    with VectorEnvClient(PoleClient, url, num_envs=8).sync() as envs:
        results = envs.reset(list(range(8)))
        seen: list[Any] = []
        for number in range(40):
            between(number)
            if over := [index for index, result in enumerate(results) if result.done]:
                for index, first in zip(over, envs.reset([number + index for index in over], over), strict=True):
                    results[index] = first
            results = envs.step([{"action": (index + number) % 2} for index in range(8)])
            seen += [(result.observation["observation"].tobytes(), result.reward, result.done) for result in results]
        return seen


def test_a_cut_connection_leaves_no_trace(hurry):
    with served(app_of(FewPoles)) as address, Proxy(int(address.rpartition(":")[2]), 3) as proxy:
        uncut = trajectory(f"http://{address}", lambda _: None)
        cut = trajectory(f"http://127.0.0.1:{proxy.port}", lambda number: number % 4 == 0 and proxy.doom(2000))
        assert proxy.accepted > 3
        assert cut == uncut
        assert sum(done for _, _, done in uncut) > 10


def test_classes_that_cannot_be_batches():
    class Many(Counters):
        num_envs = 0

    class Strange(Counters):
        autoreset: ClassVar[Any] = "sometimes"

    class Apart(Counters):
        execution = "process"

    for cls, said in ((Many, "num_envs is 0"), (Strange, "sometimes.*must be one of"), (Apart, "process")):
        with pytest.raises(UsageError, match=said):
            app_of(cls)
    with pytest.raises(UsageError, match="runs in the server's process"):
        app_of(Counters, isolation="process")


class SumAction(Action):
    left: int = Field(ge=0)
    right: float = 0.5
    name: str = "n"


class SumObservation(Observation):
    total: float
    name: str


class Sums(BatchedEnvironment[SumAction, SumObservation, State]):
    num_envs = 2

    def reset(self, seeds: Any, mask: Any) -> tuple[Any, Any]:
        return {"total": np.zeros(2), "name": ["", ""]}, {}

    def step(self, actions: Any, mask: Any) -> tuple[Any, ...]:
        none = np.zeros(2, np.bool_)
        return {"total": actions["left"] + actions["right"], "name": actions["name"]}, [1, 1], none, none, {}


@pytest.mark.parametrize("record", [False, True])
async def test_actions_are_read_as_other_sessions_read_them(record, tmp_path):
    settings = {"record": str(tmp_path / "records")} if record else {}
    async with GenericEnvClient(app=app_of(Sums, **settings)) as env:
        await env.reset()
        for action, total in (
            ({"left": 1}, 1.5),
            ({"left": "2", "right": 1}, 3),
            ({"left": 3.0, "metadata": {}}, 3.5),
        ):
            assert (await env.step(action)).observation == {"total": total, "name": "n"}
        for action in ({"left": -1}, {"left": 1.5}, {"left": 1, "more": 1}, {}, {"left": 1, "name": 5}):
            with pytest.raises(InvalidAction):
                await env.step(action)
