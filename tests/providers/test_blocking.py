"""The names that existing code calls, on top of deployments."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, ClassVar

import pytest

from openenv._asyncio import on_shared, shared_loop
from openenv.errors import LaunchFailed, ProviderFailed, UsageError
from openenv.providers import Capabilities, ContainerProvider, LaunchSpec, RuntimeProvider
from openenv.providers.base import BlockingContainers, BlockingRuntime

from ..client.peers import serving
from .shelf import Shelf, Stop
from .test_deployment import answers


class Runtime(BlockingRuntime, Shelf):
    def spec_of(self, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        return LaunchSpec(command=["serve"], port=port, env_vars=env_vars, options=options)


class Containers(BlockingContainers, Shelf):
    capabilities: ClassVar = Capabilities(forms=frozenset({"image"}))

    def spec_of(self, image: str, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        return LaunchSpec(image=image, port=port, env_vars=env_vars, options=options)


class Public(Runtime):
    public = True


def test_a_runtime_starts_one_at_a_time_and_again() -> None:
    place = Runtime()
    assert isinstance(place, RuntimeProvider)
    assert place.start() == "http://127.0.0.1:1" == place.base_url
    with pytest.raises(UsageError, match="already"):
        place.start()
    assert len(place.standing) == 1
    place.stop()
    place.stop()
    assert place.standing == set()
    with pytest.raises(UsageError, match=r"start\(\)"):
        _ = place.base_url
    with pytest.raises(UsageError, match="no server"):
        place.wait_for_ready()
    place.start()
    place.stop()


def test_containers_likewise() -> None:
    place = Containers()
    assert isinstance(place, ContainerProvider)
    with place:
        assert place.start_container("team/mine:1", env_vars={"A": "b"}) == "http://127.0.0.1:1"
        assert place.current is not None
        assert place.current.name.startswith("openenv-mine-")
        assert place.current.variables["A"] == "b"
        with pytest.raises(UsageError, match="already"):
            place.start_container("team/other:1")
    assert place.standing == set()


def test_what_a_server_asks_for_where_only_this_machine_reaches_it() -> None:
    """Programs that call these hand on the address alone."""
    place = Runtime()
    place.start()
    assert place.api_key is None
    assert place.current is not None
    assert place.current.variables["OPENENV_API_KEYS"] == "none"
    place.stop()
    place.start(env_vars={"OPENENV_API_KEYS": "control:" + "k" * 20})
    assert place.api_key == "k" * 20
    place.stop()


def test_where_others_reach_it_there_is_a_key() -> None:
    place = Public()
    place.start()
    assert place.api_key
    place.stop()


async def test_waiting_for_it_to_be_ready() -> None:
    async with serving(answers) as peer:
        place = Runtime(peer.url)
        await asyncio.to_thread(place.__enter__)
        assert len(peer.peers) == 1
        await asyncio.to_thread(place.stop)
        containers = Containers(peer.url)
        url = await asyncio.to_thread(containers.start_container, "a")
        await asyncio.to_thread(containers.wait_for_ready, url, 5.0)
        await asyncio.to_thread(containers.close)


def test_a_block_that_cannot_begin_leaves_nothing() -> None:
    place = Runtime()
    place.refusing = [LaunchFailed("no room")]
    with pytest.raises(LaunchFailed, match="no room"):
        place.__enter__()
    assert place.standing == set()
    place.start()
    place.stop()


def test_a_stop_that_fails_may_be_repeated() -> None:
    place = Runtime()
    place.start()
    place.clinging = [OSError("it clings")]
    with pytest.raises(OSError, match="clings"):
        place.stop()
    place.stop()
    assert place.standing == set()


async def _stop() -> Stop:
    return Stop()


def test_stopping_on_another_thread_while_it_starts() -> None:
    place = Runtime()
    place.start_stop = asyncio.run(on_shared(_stop()))
    failures: list[BaseException] = []

    def start() -> None:
        try:
            place.start()
        except ProviderFailed as error:
            failures.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    shared_loop().run(place.start_stop.reached.wait())
    place.stop()
    starting.join(5.0)
    assert "stopped while" in str(failures[0])
    assert place.standing == set()
    place.start_stop = None
    place.start()
    place.stop()


def test_two_threads_that_start_have_one_server() -> None:
    place = Runtime()
    place.start_stop = asyncio.run(on_shared(_stop()))
    outcomes: list[str] = []

    def start() -> None:
        try:
            outcomes.append(place.start())
        except UsageError:
            outcomes.append("refused")

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    shared_loop().run(place.start_stop.reached.wait())
    shared_loop().loop.call_soon_threadsafe(place.start_stop.open.set)
    for thread in threads:
        thread.join(5.0)
    assert sorted(outcomes) == ["http://127.0.0.1:1", "refused", "refused", "refused"]
    assert len(place.standing) == 1
    place.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_leaves_the_server_to_its_parent_and_may_start_its_own() -> None:
    place = Runtime()
    place.start()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            place.stop()
            assert len(place.standing) == 1
            place.start()
            assert len(place.standing) == 2
            place.stop()
            assert len(place.standing) == 1
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    place.stop()
    assert place.standing == set()
