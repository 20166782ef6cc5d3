"""Binds the packages as trainers do that start or import environments themselves."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from checks import check, check_ours, fails, main


class _Unsloth:
    """Starts `python -m uvicorn pkg.server.app:app` and waits until `/health` contains `healthy`."""

    def __init__(self, package: str):
        self.package = package

    def __enter__(self) -> str:
        # Nobody else gets the port while this is open; a server that is told of it may listen there.
        self.holder = socket.socket()
        self.holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.holder.bind(("0.0.0.0", 0))
        port = self.holder.getsockname()[1]
        app = f"{self.package}.server.app:app"
        command = [sys.executable, "-m", "uvicorn", app, "--host", "0.0.0.0", "--port", str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        url = f"http://localhost:{port}"
        limit = time.monotonic() + 60
        while time.monotonic() < limit and self.process.poll() is None:
            try:
                with urllib.request.urlopen(url + "/health", timeout=2) as answer:
                    if "healthy" in answer.read().decode():
                        return url
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the server did not become healthy")

    def __exit__(self, *_: Any) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.holder.close()


@check
def unsloth_starts_uvicorn_and_takes_the_class(_: str) -> None:
    from parcel_env import ParcelAction, ParcelEnv

    with _Unsloth("parcel_env") as url:
        openenv_process = ParcelEnv(base_url=url)
        result = openenv_process.reset(parcels=2)
        assert result.observation.metadata == {"left": 2}
        assert openenv_process.step(ParcelAction(van="large")).reward == 1.0
        assert openenv_process.state().step_count == 1
        openenv_process.close()


@check
def clients_are_used_inside_and_outside_of_event_loops(_: str) -> None:
    """Built inside a running loop, used by threads without one, and the other way round."""
    from harbor_env import HarborAction, HarborEnv

    def play(env: Any) -> float:
        env.reset()
        reward = env.step(HarborAction(berth="north")).reward
        env.close()
        return reward

    with _Unsloth("harbor_env") as url:

        async def build() -> list[Any]:
            return [HarborEnv(base_url=url) for _ in range(8)]

        built = asyncio.run(build())
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(play, built)) == [1.0] * 8

        outside = HarborEnv(base_url=url)

        async def use() -> float:
            async with outside as env:
                await env.reset()
                return (await env.step(HarborAction(berth="north"))).reward

        assert asyncio.run(use()) == 1.0


@check
def nemo_gym_imports_the_environments_in_process(_: str) -> None:
    from harbor_env.models import HarborAction
    from harbor_env.server.harbor_env_environment import HarborEnvironment
    from parcel_env.models import ParcelAction
    from parcel_env.server.parcel_env_environment import ParcelEnvironment

    parcels = ParcelEnvironment(small_limit_kg=1)
    assert parcels.reset(seed=1, parcels=1).metadata == {"left": 1}
    assert parcels.step(ParcelAction(van="large")).done
    assert parcels.state.step_count == 1
    parcels.close()

    async def play() -> float:
        harbor = HarborEnvironment()
        await harbor.reset_async()
        observation = await harbor.step_async(HarborAction(berth="south", length_m=150))
        assert harbor.state.berthed == ["south"]
        harbor.close()
        return observation.reward

    assert asyncio.run(play()) == 1.0


@check
def nemo_gym_calls_tools_in_process(_: str) -> None:
    from abacus_env.models import CallToolAction, ListToolsAction
    from abacus_env.server.abacus_env_environment import AbacusEnvironment

    abacus = AbacusEnvironment()
    abacus.reset()
    assert {"add", "divide"} <= {tool.name for tool in abacus.step(ListToolsAction()).tools}
    called = abacus.step(CallToolAction(tool_name="add", arguments={"a": 1, "b": 2}))
    assert called.error is None
    failed = abacus.step(CallToolAction(tool_name="divide", arguments={"a": 1, "b": 0}))
    assert failed.error.error_type.value == "execution_error"
    assert "division by zero" in failed.error.message
    assert abacus.state.step_count == 3
    abacus.close()


@check
def an_environment_in_process_works_inside_a_running_loop(_: str) -> None:
    """A synchronous step that calls a tool, from a coroutine: no nested loop may hang."""
    from abacus_env.models import CallToolAction
    from abacus_env.server.abacus_env_environment import AbacusEnvironment

    async def play() -> None:
        abacus = AbacusEnvironment()
        abacus.reset()
        push = CallToolAction(tool_name="push", arguments={"bead": 2})
        assert "4" not in str(abacus.step(push).result)
        assert "4" in str((await abacus.step_async(push)).result)
        abacus.close()

    asyncio.run(asyncio.wait_for(play(), 30))


@check_ours
def environments_are_found_by_their_names(_: str) -> None:
    from parcel_env import ParcelAction, ParcelEnv

    from openenv import AutoAction, AutoEnv

    with _Unsloth("parcel_env") as url:
        env = AutoEnv.from_env("parcel_env", base_url=url)
        assert type(env) is ParcelEnv
        action_type = AutoAction.from_env("parcel_env")
        assert action_type is ParcelAction
        with env.sync() as entered:
            entered.reset(parcels=1)
            assert entered.step(action_type(van="large")).done
    for name in ("parcel", "parcel-env", "parcel_env"):
        assert AutoEnv.get_env_class(name) is ParcelEnv, name


@check_ours
def every_installed_environment_is_found_whatever_its_classes_are_called(_: str) -> None:
    from abacus_env import AbacusEnv
    from harbor_env import HarborAction, HarborEnv

    from openenv import AutoAction, AutoEnv

    assert {"abacus", "parcel", "harbor"} <= set(AutoEnv.list_environments())
    assert AutoEnv.get_env_class("abacus") is AbacusEnv
    assert AutoEnv.get_env_class("openenv-harbor_env") is HarborEnv
    assert AutoAction.from_env("harbor") is HarborAction
    assert AutoAction.from_env("abacus").__name__ == "CallToolAction"
    with fails("harbor"):
        AutoEnv.from_env("habor")


def _play_in_a_child(make: Any, results: Any) -> None:
    from parcel_env import ParcelAction

    env = make()
    env.reset(parcels=2)
    results.put(env.step(ParcelAction(van="large")).reward)
    env.close()


@check
def factories_are_pickled_into_spawned_processes(_: str) -> None:
    import functools

    from parcel_env import ParcelEnv

    with _Unsloth("parcel_env") as url:
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        make = functools.partial(ParcelEnv, base_url=url)
        children = [context.Process(target=_play_in_a_child, args=(make, results)) for _ in range(2)]
        for child in children:
            child.start()
        assert [results.get(timeout=60) for _ in children] == [1.0, 1.0]
        for child in children:
            child.join(30)
            assert child.exitcode == 0


@check_ours
def a_client_that_is_used_by_many_threads_answers_each(_: str) -> None:
    from harbor_env import HarborAction, HarborEnv

    with _Unsloth("harbor_env") as url:
        with HarborEnv(base_url=url) as env:
            env.reset()
            rewards: list[float] = []
            threads = [
                threading.Thread(target=lambda: rewards.append(env.step(HarborAction(berth="south")).reward))
                for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert rewards == [1.0] * 3
            assert env.state().step_count == 3


if __name__ == "__main__":
    main()
