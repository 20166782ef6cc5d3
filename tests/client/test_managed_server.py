"""A client whose server is run by a provider."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from openenv._asyncio import on_thread
from openenv._exceptions import add_cleanup_note
from openenv.client import GenericEnvClient
from openenv.client.base import ManagedServer, managed_server_of
from openenv.errors import ConnectionFailed, SessionLost, UsageError

from ..asynchronous import PATIENCE_S, Gate, until
from ..providers.places import Containers, Runtime

URL = "http://127.0.0.1:1"


def managed_server(place: Runtime) -> ManagedServer:
    return managed_server_of(place, None)


def test_it_is_started_once_and_stopped_once() -> None:
    place = Runtime()
    server = managed_server(place)
    assert place.calls == []
    assert [server.start() for _ in range(2)] == [URL, URL]
    assert place.names == ["start", "ready"]
    server.stop()
    server.stop()
    assert place.names == ["start", "ready", "stop"]
    assert server.start() == URL
    assert place.names[3:] == ["start", "ready"]


def test_what_was_never_started_is_not_stopped() -> None:
    place = Runtime()
    managed_server(place).stop()
    assert place.calls == []


def test_a_server_that_never_becomes_ready_is_stopped() -> None:
    place = Runtime()
    place.failing = LookupError("never")
    server = managed_server(place)
    with pytest.raises(LookupError, match="never"):
        server.start()
    assert place.names == ["start", "ready", "stop"]
    assert server.url is None


def test_an_error_of_the_stop_does_not_hide_why_it_was_stopped() -> None:
    place = Runtime()
    place.failing, place.unstoppable = LookupError("never"), OSError("and it clings")
    with pytest.raises(LookupError) as caught:
        managed_server(place).start()
    assert "and it clings" in caught.value.__notes__[0]


def test_one_that_ran_before_is_stopped_and_not_started() -> None:
    place = Containers()
    server = managed_server_of(place, URL)
    assert server.start() == URL
    server.stop()
    assert place.names == ["stop"]
    with pytest.raises(SessionLost, match="make a new client"):
        server.start()


async def test_stopping_while_it_starts() -> None:
    gate = Gate()
    place = Runtime(starting=gate)
    server = managed_server(place)
    starting = asyncio.create_task(asyncio.to_thread(server.start))
    await gate.reached()
    server.stop()
    gate.open()
    with pytest.raises(SessionLost, match="closed while its server was being started"):
        await starting
    assert place.names[-1] == "stop"
    assert "ready" not in place.names


async def test_a_start_waits_for_the_one_before_it_to_be_over() -> None:
    """A provider has one server at a time."""
    gate = Gate()
    place = Runtime(starting=gate)
    server = managed_server(place)
    first = asyncio.create_task(asyncio.to_thread(server.start))
    await gate.reached()
    server.stop()
    second = asyncio.create_task(asyncio.to_thread(server.start))
    third = asyncio.create_task(asyncio.to_thread(server.start))
    gate.open()
    with pytest.raises(SessionLost):
        await first
    assert [await second, await third] == [URL, URL]
    assert place.names == ["start", "stop", "stop", "start", "ready"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_does_not_stop_the_server_of_its_parent() -> None:
    place = Containers()
    server = managed_server_of(place, URL)
    child = os.fork()
    if child == 0:
        server.stop()
        os._exit(len(place.calls))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    server.stop()
    assert place.names == ["stop"]


@pytest.mark.parametrize("thing", [object(), "docker", 3])
def test_what_is_no_provider(thing: Any) -> None:
    with pytest.raises(UsageError, match="ContainerProvider or a RuntimeProvider"):
        GenericEnvClient(URL, provider=thing)


def test_containers_need_an_image() -> None:
    with pytest.raises(UsageError, match="from_docker_image"):
        GenericEnvClient(provider=Containers())


# Clients.


async def test_the_first_call_starts_the_server_and_close_stops_it() -> None:
    place = Runtime()
    env = GenericEnvClient(provider=place)
    assert env.base_url is None
    with pytest.raises(ConnectionFailed):
        await env.reset()
    assert env.base_url == URL
    assert place.names == ["start", "ready"]
    await env.close()
    await env.close()
    assert place.names == ["start", "ready", "stop"]


def test_without_an_event_loop() -> None:
    place = Runtime()
    env = GenericEnvClient(provider=place)
    with pytest.raises(ConnectionFailed):
        env.reset()
    env.close()
    assert place.names == ["start", "ready", "stop"]


async def test_a_client_of_a_server_that_runs_stops_it_in_the_end() -> None:
    place = Containers()
    env = GenericEnvClient(URL, provider=place)
    await env.close()
    assert place.names == ["stop"]
    with pytest.raises(SessionLost, match="make a new client"):
        await env.reset()


async def test_disconnecting_leaves_the_server_alone() -> None:
    place = Containers()
    env = GenericEnvClient(URL, provider=place)
    await env.disconnect()
    assert place.calls == []
    await env.close()


async def test_a_server_that_cannot_be_stopped_says_so_and_never_over_another_error() -> None:
    place = Containers()
    place.unstoppable = OSError("it clings")
    with pytest.raises(OSError, match="clings"):
        await GenericEnvClient(URL, provider=place).close()
    with pytest.raises(ConnectionFailed), GenericEnvClient(URL, provider=place) as env:
        env.reset()


async def test_a_client_that_is_cancelled_while_its_server_starts_stops_it() -> None:
    gate = Gate()
    place = Runtime(starting=gate)
    env = GenericEnvClient(provider=place)
    resetting = asyncio.ensure_future(env.reset())
    await gate.reached()
    resetting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resetting
    gate.open()
    await until(lambda: place.names[-1] == "stop" and place.stopped.is_set())
    assert "ready" not in place.names
    assert env.base_url is None
    await env.close()


async def test_closing_a_client_while_its_server_starts() -> None:
    gate = Gate()
    place = Runtime(starting=gate)
    env = GenericEnvClient(provider=place)
    resetting = asyncio.ensure_future(env.reset())
    await gate.reached()
    await env.close()
    gate.open()
    with pytest.raises(SessionLost):
        await resetting
    assert place.names[-1] == "stop"


async def test_many_first_calls_start_one_server() -> None:
    place = Runtime()
    env = GenericEnvClient(provider=place)
    await asyncio.gather(*(env.reset() for _ in range(5)), return_exceptions=True)
    assert place.names.count("start") == 1
    await env.close()


async def test_sessions_asked_for_before_there_is_a_server_start_one_server() -> None:
    gate = Gate()
    place = Runtime(starting=gate)
    env = GenericEnvClient(provider=place)
    asked = [asyncio.ensure_future(call) for call in (env.new_session(), env.new_session(), env.reset())]
    await gate.reached()
    gate.open()
    for call in asked:
        with pytest.raises(ConnectionFailed):
            await call
    assert place.names == ["start", "ready"]
    await env.close()


async def test_a_session_asked_for_while_its_client_is_closed_is_not_to_be_had() -> None:
    gate = Gate()
    place = Runtime(starting=gate)
    env = GenericEnvClient(provider=place)
    asked = asyncio.ensure_future(env.new_session())
    await gate.reached()
    await env.close()
    gate.open()
    with pytest.raises(SessionLost, match="closed while"):
        await asked
    assert place.names[-1] == "stop"
    assert "ready" not in place.names


async def test_the_event_loop_goes_on_while_a_server_starts() -> None:
    gate = Gate()
    env = GenericEnvClient(provider=Runtime(starting=gate))
    resetting = asyncio.ensure_future(env.reset())
    await gate.reached()  # by this very loop
    gate.open()
    with pytest.raises(ConnectionFailed):
        await resetting
    await env.close()


class Keyed(Containers):
    api_key = "key-of-the-server"


def test_the_key_of_a_provider_is_shown_to_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(**options: Any) -> str | None:
        return dict(GenericEnvClient(URL, provider=Keyed(), **options)._options.headers).get("Authorization")

    monkeypatch.setenv("OPENENV_API_KEY", "key-of-this-process")
    assert shown() == "Bearer key-of-the-server"
    assert shown(api_key="mine") == "Bearer mine"
    assert shown(headers={"Authorization": "Basic abc"}) == "Basic abc"


class Anything:
    """Has whatever it is asked for, as the mocks of existing tests."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return Anything()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


def test_a_provider_that_has_everything() -> None:
    place = Anything()
    env = GenericEnvClient(URL, provider=place)
    assert env._options.headers == ()
    env.close()
    assert "stop_container" in place.asked


# Small parts.


async def test_a_call_on_a_thread_of_its_own(no_threads_left: None) -> None:
    assert await on_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await on_thread(lambda: 1 // 0)


async def test_a_call_that_nobody_waits_for_is_abandoned(no_threads_left: None) -> None:
    gate, abandoned = Gate(), threading.Event()
    call = asyncio.ensure_future(on_thread(gate.wait, abandoned.set))
    await gate.reached()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await asyncio.to_thread(abandoned.wait, PATIENCE_S)
    gate.open()


def test_an_error_goes_before_that_of_cleaning_up() -> None:
    first = LookupError()
    with add_cleanup_note(first):
        raise OSError("second")
    assert first.__notes__ == ["and cleaning up failed: OSError: second"]
    with pytest.raises(OSError, match="alone"), add_cleanup_note(None):
        raise OSError("alone")


# Blocks that cannot be entered.


async def test_a_client_that_cannot_enter_its_block_stops_its_server() -> None:
    runtime = Runtime()  # whose server is not there
    with pytest.raises(ConnectionFailed):
        async with GenericEnvClient(provider=runtime):
            raise AssertionError
    assert runtime.names == ["start", "ready", "stop"]


@pytest.mark.parametrize("of", [lambda client: client, lambda client: client.sync()], ids=["client", "sync"])
def test_neither_does_one_without_a_loop_leave_it(of: Any) -> None:
    runtime = Runtime()
    with pytest.raises(ConnectionFailed):
        with of(GenericEnvClient(provider=runtime)):
            raise AssertionError
    assert runtime.names == ["start", "ready", "stop"]
