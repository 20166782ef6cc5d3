"""A client and its server together: every way in, and what is left on every way out."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from openenv.client import GenericEnvClient, SyncEnvClient
from openenv.errors import ConnectionFailed, NotReady, UsageError
from openenv.providers import Launch
from openenv.providers.launch import hf_space_subdomain
from openenv.settings import ClientSettings

from ...asynchronous import Gate, until
from ...client.environments import (
    CounterAction,
    CounterEnv,
    CounterObservation,
    CounterState,
    ThreadCounter,
    app_of,
)
from ...server.wires import served
from ..places import Containers, Runtime

ONE = CounterAction(by=1)
WAYS = ["from_docker_image", "from_env", "from_hub"]
IMAGES = {"from_docker_image": "img", "from_env": "team/env", "from_hub": "team/env"}
THREADS = 32


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(
        app_of(ThreadCounter, sessions=2 * THREADS), ws="openenv.server.transports.uvicorn:FastPath"
    ) as address:
        yield f"http://{address}"


@pytest.fixture
def place(url: str) -> Containers:
    return Containers(url)


def launched(way: str, place: Any, **kwargs: Any) -> Any:
    return getattr(CounterEnv, way)(IMAGES[way], provider=place, **kwargs)


def check_over(place: Any) -> None:
    assert place.names == ["start", "ready", "stop"]


# Every way in.


@pytest.mark.parametrize("way", WAYS)
async def test_awaited(way: str, place: Containers) -> None:
    env = await launched(way, place)
    assert type(env) is CounterEnv
    assert env.base_url == place.url
    await env.reset(start=3)
    assert (await env.step(ONE)).observation.total == 4
    await env.close()
    await env.close()
    check_over(place)


@pytest.mark.parametrize("way", WAYS)
async def test_in_an_asynchronous_block(way: str, place: Containers) -> None:
    async with launched(way, place) as env:
        assert type(env) is CounterEnv
        assert (await env.reset(start=3)).observation.total == 3
    check_over(place)


@pytest.mark.parametrize("way", WAYS)
def test_plain_synchronous_calls(way: str, place: Containers) -> None:
    env = launched(way, place)
    assert env.reset(start=3).observation.total == 3
    assert env.step(ONE).observation.total == 4
    assert env.state().step_count == 1
    env.close()
    check_over(place)


@pytest.mark.parametrize("way", WAYS)
def test_in_a_synchronous_block(way: str, place: Containers) -> None:
    with launched(way, place) as env:
        assert type(env) is CounterEnv
        assert env.reset(start=3).observation.total == 3
    check_over(place)


@pytest.mark.parametrize("way", WAYS)
def test_the_synchronous_client(way: str, place: Containers) -> None:
    env = launched(way, place).sync()
    assert type(env) is SyncEnvClient
    assert env.reset(start=3).observation.total == 3
    env.close()
    check_over(place)


class SyncCounter(SyncEnvClient[CounterAction, CounterObservation, CounterState]):
    """A client that is synchronous from the start."""


@pytest.mark.parametrize("way", WAYS)
async def test_a_synchronous_class_starts_its_server_at_once(way: str, place: Containers) -> None:
    """Inside a running loop too."""
    with getattr(SyncCounter, way)(IMAGES[way], provider=place) as env:
        assert type(env) is SyncCounter
        assert env.reset(start=3).observation == CounterObservation(total=3)
    check_over(place)


async def test_synchronously_inside_a_running_loop(url: str) -> None:
    """As in a notebook."""
    place = Containers(url)
    env = launched("from_docker_image", place).sync()
    assert env.reset(start=3).observation.total == 3
    env.close()
    check_over(place)
    place = Containers(url)
    with launched("from_docker_image", place) as blocking:
        assert blocking.reset(start=3).observation.total == 3
    check_over(place)


def test_made_without_a_loop_and_awaited_in_one(place: Containers) -> None:
    launch = launched("from_docker_image", place)

    async def play() -> None:
        env = await launch
        assert (await env.reset(start=3)).observation.total == 3
        await env.close()

    asyncio.run(play())
    check_over(place)


def test_from_many_threads_without_a_loop(url: str) -> None:
    def play(number: int) -> list[str]:
        place = Containers(url)
        env = CounterEnv.from_docker_image("img", provider=place)
        env.reset(start=number)
        assert [env.step(ONE).observation.total for _ in range(3)] == [number + 1, number + 2, number + 3]
        env.close()
        return place.names

    with ThreadPoolExecutor(THREADS) as threads:
        assert list(threads.map(play, range(THREADS))) == [["start", "ready", "stop"]] * THREADS


async def test_many_at_the_same_time_do_not_wait_for_one_another(url: str) -> None:
    gates = [Gate() for _ in range(THREADS)]
    starts = [asyncio.ensure_future(launched("from_docker_image", Containers(url, gate))) for gate in gates]
    for gate in gates:
        await gate.reached()
    for gate in gates:
        gate.open()
    for env in await asyncio.gather(*starts):
        await env.close()


async def test_nothing_is_started_before_it_is_asked_for(place: Containers) -> None:
    launch = launched("from_docker_image", place)
    assert inspect.isawaitable(launch)
    assert type(launch) is Launch
    with pytest.raises(AttributeError, match="reset: .*await"):
        launch.reset()
    assert place.calls == []


async def test_as_a_task_of_its_own(url: str) -> None:
    places = [Containers(url) for _ in range(3)]
    async with asyncio.TaskGroup() as group:
        starts = [group.create_task(launched("from_docker_image", place)) for place in places]
    for start in starts:
        await start.result().close()
    for place in places:
        check_over(place)


async def test_a_task_that_is_cancelled(url: str) -> None:
    gate = Gate()
    place = Containers(url, gate)
    start = asyncio.create_task(launched("from_docker_image", place))
    await gate.reached()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    gate.open()
    await until(lambda: place.names.count("stop") == 2)  # while it started, and when it had
    assert "ready" not in place.names


async def test_twice_awaited_is_once_started(place: Containers) -> None:
    launch = launched("from_docker_image", place)
    assert await launch is await launch
    await (await launch).close()
    check_over(place)


def test_runtimes_work_too(url: str) -> None:
    place = Runtime(url)
    with CounterEnv.from_env("team/env", use_docker=False, provider=place) as env:
        assert env.reset(start=3).observation.total == 3
    check_over(place)


# What goes where.


def test_arguments_find_their_way(place: Containers) -> None:
    class Named(CounterEnv):
        def __init__(self, base_url: str, name: str = "nobody", **options: Any):
            super().__init__(base_url, **options)
            self.name = name

    env = Named.from_docker_image(
        "img:2",
        place,
        port=3,
        env_vars={"A": "b"},
        mem_limit="1g",
        ready_timeout_s=5.0,
        message_timeout_s=7.0,
        name="n",
    )
    assert place.calls == [("start", "img:2", 3, {"A": "b"}, {"mem_limit": "1g"}), ("ready", place.url, 5.0)]
    assert (env._message_timeout_s, env.name) == (7.0, "n")
    env.close()


def test_a_constructor_that_takes_an_address_and_nothing_else(place: Containers) -> None:
    class Narrow(CounterEnv):
        def __init__(self, base_url: str):
            super().__init__(base_url)

    env = Narrow.from_docker_image("img", place)
    assert env.reset(start=1).observation.total == 1
    env.close()
    check_over(place)


@pytest.mark.parametrize(
    ("repo_id", "kwargs", "image"),
    [
        ("team/env", {}, "team-env:latest"),
        ("Team/My_Env.v2", {"tag": "1.0"}, "team-my-env-v2:1.0"),
    ],
)
def test_the_image_of_a_published_environment(
    place: Containers, repo_id: str, kwargs: dict[str, Any], image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    CounterEnv.from_env(repo_id, provider=place, **kwargs).close()
    assert place.calls[0][1] == f"{ClientSettings().hub_registry}/{image}"
    monkeypatch.setenv("OPENENV_HUB_REGISTRY", "images.example")
    CounterEnv.from_hub(repo_id, place, replicas=3, **kwargs).close()
    assert place.calls[3][1:] == (f"images.example/{image}", None, None, {"replicas": 3})


@pytest.mark.parametrize("repo_id", ["env", "/env", "team/", "a/b/c", ""])
@pytest.mark.parametrize("way", ["from_env", "from_hub"])
def test_what_is_no_name_on_the_hub(way: str, repo_id: str, place: Containers) -> None:
    with pytest.raises(UsageError, match="owner/name"):
        getattr(CounterEnv, way)(repo_id, provider=place)
    assert place.calls == []


def test_a_provider_of_the_other_kind() -> None:
    with pytest.raises(UsageError, match="ContainerProvider"):
        CounterEnv.from_docker_image("img", provider=Runtime())
    with pytest.raises(UsageError, match="use_docker=True"):
        CounterEnv.from_env("team/env", use_docker=False, provider=Containers())


class Public(Containers):
    """Can be reached from everywhere."""

    public = True

    def start_container(self, image: str, port: Any = None, env_vars: Any = None, **kwargs: Any) -> str:
        self.api_key = (env_vars or {}).get("OPENENV_API_KEYS", "").removeprefix("control:")
        return super().start_container(image, port, env_vars, **kwargs)


def test_a_server_that_others_can_reach_is_given_a_key(url: str) -> None:
    keys = set()
    for _ in range(2):
        place = Public(url)
        env = CounterEnv.from_docker_image("img", place, env_vars={"A": "b"})
        (_, _, _, variables, _), *_ = place.calls
        assert variables.keys() == {"A", "OPENENV_API_KEYS"}
        assert dict(env._options.headers) == {"Authorization": f"Bearer {place.api_key}"}
        assert len(place.api_key) >= 32
        keys.add(place.api_key)
        env.close()
    assert len(keys) == 2


def test_a_key_that_was_chosen_stands(url: str) -> None:
    place = Public(url)
    CounterEnv.from_docker_image("img", place, env_vars={"OPENENV_API_KEYS": "control:mine"}).close()
    assert place.calls[0][3] == {"OPENENV_API_KEYS": "control:mine"}


# Every way out.


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_never_becomes_ready_is_stopped(way: str, place: Containers) -> None:
    place.failing = NotReady("never")
    with pytest.raises(NotReady, match="never"):
        launched(way, place)
    check_over(place)


async def test_a_server_that_never_becomes_ready_is_stopped_for_who_awaits_it(place: Containers) -> None:
    place.failing = NotReady("never")
    with pytest.raises(NotReady, match="never"):
        await launched("from_docker_image", place)
    check_over(place)


def test_an_interrupt_while_it_starts(place: Containers) -> None:
    place.failing = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        launched("from_docker_image", place)
    check_over(place)


def test_a_client_that_cannot_be_made_leaves_no_server(place: Containers) -> None:
    class Broken(CounterEnv):
        def __init__(self, **options: Any):
            raise LookupError("no such client")

    with pytest.raises(LookupError, match="no such client"):
        Broken.from_docker_image("img", place)
    check_over(place)


async def test_a_block_whose_server_is_gone_leaves_nothing() -> None:
    place = Containers("http://127.0.0.1:1")
    with pytest.raises(ConnectionFailed):
        async with launched("from_docker_image", place):
            pass
    check_over(place)
    place = Containers("http://127.0.0.1:1")
    with pytest.raises(ConnectionFailed), launched("from_docker_image", place):
        pass
    check_over(place)


async def test_the_error_of_the_block_goes_first(place: Containers) -> None:
    place.unstoppable = OSError("it clings")
    with pytest.raises(LookupError) as caught:
        async with launched("from_docker_image", place):
            raise LookupError
    assert "it clings" in caught.value.__notes__[0]


def test_an_unknown_argument_of_a_client_goes_to_the_provider_who_knows(place: Containers) -> None:
    env = GenericEnvClient.from_docker_image("img", place, nonsense=1)
    assert place.calls[0][-1] == {"nonsense": 1}
    env.close()


def test_a_client_alone_loads_no_provider_and_nothing_that_only_some_clients_need() -> None:
    some = ("openenv.providers", "openenv.mcp", "openenv.client.mcp", "openenv.client.recorded", "docker")
    program = f"import sys, openenv.client; print([name for name in sys.modules if name.startswith({some})])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("repo_id", "subdomain"), [("openenv/Echo_env", "openenv-echo-env"), ("o/a.b", "o-a-b"), ("o/Ünï", "o--n-")]
)
def test_the_name_of_a_space_in_host_names(repo_id: str, subdomain: str) -> None:
    assert hf_space_subdomain(repo_id) == subdomain
