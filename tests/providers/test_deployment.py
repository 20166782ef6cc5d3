"""The life of a deployment, whoever interferes with it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from openenv._asyncio import on_shared, shared_loop
from openenv.errors import LaunchFailed, NotReady, ProviderBusy, ProviderFailed, UsageError
from openenv.providers import Deployment, LaunchSpec, deployment
from openenv.providers import deployment as farewell
from openenv.providers.owner import DEPLOYMENT, OWNER, PROVIDER, OwnerProcess

from ..asynchronous import until
from ..client.peers import Peer, observation, serving
from .shelf import SPEC, Shelf, Stop

PATIENCE_S = 20.0


def on_the_shared_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test where deployments live, so that it sees each of their steps."""

    def run() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await test()

        shared_loop().run(bounded())
        assert not farewell.live_deployments, "a deployment was left"

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def begun(shelf: Shelf, spec: LaunchSpec = SPEC) -> tuple[Deployment, asyncio.Task[Deployment]]:
    """A deployment in the middle of its start."""
    shelf.start_stop = Stop()
    made = shelf.deployment(spec)
    starting = asyncio.ensure_future(made.start())
    await shelf.start_stop.reached.wait()
    return made, starting


# Starting.


@on_the_shared_loop
async def test_it_has_what_was_asked_for() -> None:
    shelf = Shelf(lambda server: f"http://{server.name}:1")
    made = await shelf.launch(SPEC.changed(replicas=3, name="My Env!"))
    assert len(shelf.standing) == len(made.servers) == len(set(made.urls)) == 3
    assert made.url == made.urls[0]
    assert made.name.startswith("openenv-my-env-")
    assert all(server.name.startswith(made.name) and len(server.name) < 63 for server in made.servers)
    await made.stop()
    assert (shelf.standing, made.servers, made.urls) == (set(), [], [])
    with pytest.raises(ProviderFailed, match="it was stopped"):
        _ = made.url


async def test_what_is_printed_of_it_is_of_use() -> None:
    async with await Shelf().launch(SPEC.changed(replicas=2)) as made:
        assert repr(made) == f"<Deployment {made.name} of Shelf: 2 servers>"
        first = made.servers[0]
        assert repr(first) == f"Server(name={first.name!r}, url={first.url!r}, gone=None)"


async def test_it_is_used_from_any_loop_and_thread() -> None:
    shelf = Shelf()
    made = await shelf.launch(SPEC)
    await asyncio.to_thread(lambda: asyncio.run(made.scale(2)))
    await asyncio.to_thread(lambda: made.wait(made.scale(3)))
    assert len(shelf.standing) == 3
    await asyncio.to_thread(lambda: made.__exit__(None, None, None))
    assert shelf.standing == set()


@on_the_shared_loop
async def test_it_is_started_once() -> None:
    shelf = Shelf()
    made = shelf.deployment(SPEC)
    await made.start()
    with pytest.raises(UsageError, match="started already"):
        await made.start()
    assert len(shelf.standing) == 1, "a second start ended the first"
    await made.stop()
    with pytest.raises(UsageError, match="launch another one"):
        await made.start()
    assert shelf.calls.count("start") == 1


@on_the_shared_loop
async def test_one_that_was_stopped_before_its_start_never_starts() -> None:
    shelf = Shelf()
    made = shelf.deployment(SPEC)
    await made.stop()
    with pytest.raises(UsageError, match="launch another one"):
        await made.start()
    assert shelf.calls == []


@on_the_shared_loop
async def test_one_that_was_never_started_is_not_scaled() -> None:
    shelf = Shelf()
    with pytest.raises(UsageError, match=r"start\(\) it first"):
        await shelf.deployment(SPEC).scale(2)
    assert shelf.calls == []


@on_the_shared_loop
async def test_a_start_that_fails_leaves_nothing() -> None:
    shelf = Shelf()
    shelf.refusing = [LaunchFailed("no room for this one")]
    with pytest.raises(LaunchFailed, match="no room"):
        await shelf.launch(SPEC.changed(replicas=4))
    assert shelf.standing == set()
    assert shelf.calls.count("start") == 4


@on_the_shared_loop
async def test_a_start_that_fails_for_a_passing_reason_is_tried_again() -> None:
    shelf = Shelf()
    shelf.refusing = [ProviderBusy("slow down"), ProviderBusy("slow down")]
    async with await shelf.launch(SPEC) as made:
        assert len(made.servers) == len(shelf.standing) == 1
    shelf.refusing = [ProviderBusy("slow down") for _ in range(shelf.start_rate.attempts)]
    with pytest.raises(ProviderBusy, match="slow down"):
        await shelf.launch(SPEC)
    assert shelf.standing == set()


@on_the_shared_loop
async def test_the_error_of_a_start_goes_before_that_of_cleaning_up() -> None:
    shelf = Shelf()
    shelf.refusing, shelf.clinging = [LaunchFailed("no room")], [OSError("it clings")]
    with pytest.raises(LaunchFailed, match="no room") as caught:
        await shelf.launch(SPEC)
    assert "it clings" in caught.value.__notes__[0]
    assert shelf.standing == set(), "it is tried again with the rest of the deployment"


@on_the_shared_loop
async def test_what_could_not_be_removed_is_not_started_a_second_time() -> None:
    shelf = Shelf()
    shelf.refusing, shelf.clinging = [ProviderBusy("slow down")], [OSError("it clings")]
    with pytest.raises(LaunchFailed, match="slow down.*could not be removed"):
        await shelf.launch(SPEC)
    assert (shelf.calls.count("start"), shelf.standing) == (1, set())


# Interferences.


@on_the_shared_loop
async def test_stopping_while_it_starts() -> None:
    shelf = Shelf()
    made, starting = await begun(shelf, SPEC.changed(replicas=3))
    await made.stop()
    assert shelf.standing == set()
    with pytest.raises(ProviderFailed, match="stopped while"):
        await starting


@on_the_shared_loop
async def test_cancelling_while_it_starts() -> None:
    shelf = Shelf()
    _, starting = await begun(shelf, SPEC.changed(replicas=3))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert shelf.standing == set()


@on_the_shared_loop
async def test_cancelling_and_stopping_at_the_same_moment() -> None:
    shelf = Shelf()
    made, starting = await begun(shelf)
    stopping = asyncio.ensure_future(made.stop())
    await asyncio.sleep(0)
    starting.cancel()
    await stopping
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert shelf.standing == set()


@on_the_shared_loop
async def test_cancelling_a_second_time_while_it_cleans_up() -> None:
    shelf = Shelf()
    shelf.end_stop = Stop()
    _, starting = await begun(shelf)
    starting.cancel()
    await shelf.end_stop.reached.wait()
    starting.cancel()
    await asyncio.wait([starting], timeout=0.01)
    shelf.end_stop.open.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: not farewell.live_deployments)
    assert shelf.standing == set()


async def test_cancelling_from_another_loop_waits_for_the_end() -> None:
    shelf = Shelf()
    shelf.start_stop = await on_shared(_stop())
    launching = asyncio.ensure_future(shelf.launch(SPEC))
    await on_shared(shelf.start_stop.reached.wait())
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert (shelf.standing, shelf.start_stop.cancelled) == (set(), 1)


async def test_cancelling_in_the_moment_of_its_end_leaves_nothing() -> None:
    shelf = Shelf()
    shelf.start_stop = await on_shared(_stop())
    launching = asyncio.ensure_future(shelf.launch(SPEC))
    await on_shared(shelf.start_stop.reached.wait())
    (made,) = farewell.live_deployments

    async def ended() -> None:
        assert shelf.start_stop is not None
        shelf.start_stop.open.set()
        await made._work.settled(10.0)
        for _ in range(10):
            await asyncio.sleep(0)

    shared_loop().run(ended())  # this loop stands still: it has not heard yet
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert (shelf.standing, shelf.calls) == (set(), ["start", "end"])


async def _stop() -> Stop:
    return Stop()


@on_the_shared_loop
async def test_many_stops_are_one() -> None:
    shelf = Shelf()
    made = await shelf.launch(SPEC)
    await asyncio.gather(*(made.stop() for _ in range(5)))
    await made.stop()
    assert shelf.calls == ["start", "end"]


@on_the_shared_loop
async def test_a_stop_that_fails_says_so_and_may_be_repeated() -> None:
    shelf = Shelf()
    made = await shelf.launch(SPEC)
    shelf.clinging = [OSError("it clings")]
    outcomes = await asyncio.gather(made.stop(), made.stop(), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["it clings"] * 2
    assert len(shelf.standing) == len(made.servers) == 1
    await made.stop()
    assert shelf.standing == set()


@on_the_shared_loop
async def test_a_stop_that_fails_never_hides_why_there_was_one() -> None:
    shelf = Shelf()
    made = await shelf.launch(SPEC)
    shelf.clinging = [OSError("it clings")]
    with pytest.raises(LookupError) as caught:
        async with made:
            raise LookupError("the caller's own")
    assert "it clings" in caught.value.__notes__[0]
    await made.stop()


@on_the_shared_loop
async def test_a_stop_that_is_cancelled_goes_on_to_its_end() -> None:
    shelf = Shelf()
    made = await shelf.launch(SPEC)
    shelf.end_stop = Stop()
    stopping = asyncio.ensure_future(made.stop())
    await shelf.end_stop.reached.wait()
    stopping.cancel()
    await asyncio.sleep(0)
    shelf.end_stop.open.set()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert (shelf.standing, shelf.end_stop.cancelled) == (set(), 0)


# Scaling.


@on_the_shared_loop
async def test_scaling_adds_and_takes_the_youngest() -> None:
    shelf = Shelf()
    made = await shelf.launch(SPEC.changed(replicas=2))
    eldest = made.servers[0]
    await made.scale(5)
    assert len(made.servers) == len(shelf.standing) == 5
    await made.scale(1)
    assert made.servers == [eldest]
    await made.stop()
    with pytest.raises(UsageError, match="launch another one"):
        await made.scale(2)


@on_the_shared_loop
async def test_scaling_replaces_those_that_are_gone() -> None:
    shelf = Shelf()
    made = await shelf.launch(SPEC.changed(replicas=3))
    dead, *alive = made.servers
    shelf.ends[dead.name] = "ended with exit code 1"
    assert [server.gone for server in await made.refresh()] == ["ended with exit code 1", None, None]
    assert len(made.urls) == 2
    await made.scale(3)
    assert made.servers[:2] == alive
    assert len(shelf.standing) == 3
    assert dead.name not in shelf.standing
    await made.stop()


@on_the_shared_loop
async def test_one_that_is_still_on_its_way_is_not_taken_for_gone() -> None:
    shelf = Shelf()
    made = await shelf.launch(SPEC)
    shelf.start_stop = stop = Stop()
    scaling = asyncio.ensure_future(made.scale(2))
    await stop.reached.wait()
    shelf.ends[made.servers[1].name] = "is not known"
    assert [server.gone for server in await made.refresh()] == [None, None]
    shelf.ends.clear()
    stop.open.set()
    await scaling
    assert len(made.urls) == 2
    await made.scale(2)
    assert shelf.calls == ["start", "start"]
    await made.stop()


@on_the_shared_loop
async def test_several_who_scale_take_turns() -> None:
    shelf = Shelf()
    made = await shelf.launch(SPEC)
    await asyncio.gather(made.scale(4), made.scale(2), made.scale(6), made.scale(3))
    assert len(made.servers) == len(shelf.standing) == 3
    await made.stop()
    assert shelf.standing == set()


@on_the_shared_loop
async def test_stopping_while_it_scales_and_another_waits_for_its_turn() -> None:
    shelf = Shelf()
    made = await shelf.launch(SPEC)
    shelf.start_stop = Stop()
    scaling, waiting = (asyncio.ensure_future(made.scale(count)) for count in (3, 4))
    await shelf.start_stop.reached.wait()
    await made.stop()
    for each in (scaling, waiting):
        with pytest.raises(ProviderFailed, match="stopped while"):
            await each
    assert shelf.standing == set()


@on_the_shared_loop
async def test_a_scaling_that_is_cancelled_keeps_what_was_there() -> None:
    shelf = Shelf()
    made = await shelf.launch(SPEC)
    shelf.start_stop = Stop()
    scaling = asyncio.ensure_future(made.scale(3))
    await shelf.start_stop.reached.wait()
    scaling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scaling
    assert len(made.servers) == len(shelf.standing) == 1
    await made.stop()


@pytest.mark.parametrize("replicas", [0, -1])
async def test_no_replicas(replicas: int) -> None:
    with pytest.raises(UsageError, match=r"stop\(\) ends"):
        await Shelf().deployment(SPEC).scale(replicas)


# Readiness.


async def answers(peer: Peer) -> None:
    await peer.accept()
    await peer.message()
    peer.reply(observation())
    await peer.ended()


async def test_it_is_ready_when_all_its_servers_are() -> None:
    async with serving(answers) as place:
        async with await Shelf(place.url).launch(SPEC.changed(replicas=3, api_key="k" * 20)) as made:
            assert await made.ready() is made
            assert len(place.peers) == 3
            assert place.peers[0].header("Authorization") == f"Bearer {'k' * 20}"


async def test_one_that_has_no_server_is_not_ready() -> None:
    shelf = Shelf()
    made = shelf.deployment(SPEC)
    with pytest.raises(ProviderFailed, match="none was started"):
        await made.ready()
    await made.start()
    await made.stop()
    with pytest.raises(ProviderFailed, match="it was stopped"):
        await made.ready()


async def test_waiting_for_readiness_begins_with_the_start() -> None:
    async with serving(answers) as place:
        shelf = Shelf(place.url)
        shelf.start_stop = await on_shared(_stop())
        made = shelf.deployment(SPEC)
        starting = asyncio.ensure_future(made.start())
        await on_shared(shelf.start_stop.reached.wait())
        with pytest.raises(NotReady, match="still being started"):
            await made.ready(0.05)
        waiting = asyncio.ensure_future(made.ready())
        await asyncio.sleep(0)
        shared_loop().loop.call_soon_threadsafe(shelf.start_stop.open.set)
        await asyncio.gather(starting, waiting)
        assert len(place.peers) == 1
        await made.stop()


async def test_the_first_server_that_ends_ends_the_wait() -> None:
    shelf = Shelf()
    shelf.log = "\n".join(f"line {number}" for number in range(100)) + "\nno model for hush-hush"
    spec = SPEC.changed(replicas=2, env_vars={"MY_TOKEN": "hush-hush"})
    async with await shelf.launch(spec) as made:
        shelf.ends[made.servers[1].name] = "ended with exit code 3"
        with pytest.raises(LaunchFailed, match=r"ended with exit code 3(.|\n)*no model for \*\*\*") as caught:
            await made.ready(60.0)
        assert len(str(caught.value).splitlines()) == 1 + deployment.TAIL_LINES


async def test_a_stop_ends_the_wait() -> None:
    async with serving(Peer.ended) as place:
        made = await Shelf(place.url).launch(SPEC)
        waiting = asyncio.ensure_future(made.ready(60.0))
        await until(lambda: bool(place.peers))
        await made.stop()
        with pytest.raises(LaunchFailed, match="was stopped before it was ready"):
            await waiting


async def test_a_log_that_cannot_be_read_does_not_hide_the_reason() -> None:
    class Mute(Shelf):
        async def read_log(self, server: Any, lines: int) -> str:
            raise ProviderFailed("no connection to the place")

    async with await Mute().launch(SPEC) as made:
        with pytest.raises(NotReady, match="could not be read: no connection to the place"):
            await made.ready(0.05)
        with pytest.raises(ProviderFailed, match="no connection"):
            await made.logs()


# Logs, keys and labels.


async def test_logs_of_one_and_of_all() -> None:
    shelf = Shelf()
    shelf.log = "first\nkey: hush-hush"
    async with await shelf.launch(SPEC.changed(replicas=2, env_vars={"A_SECRET": "hush-hush"})) as made:
        assert await made.logs(made.servers[0]) == "first\nkey: ***"
        assert await made.logs(made.servers[0], lines=1) == "key: ***"
        both = await made.logs()
        assert all(f"{server.name}:\nfirst" in both for server in made.servers)
        with pytest.raises(UsageError, match="lines"):
            await made.logs(lines=0)
        with pytest.raises(UsageError, match=r"one of deployment\.servers, got 20"):
            await made.logs(20)
    assert await made.logs() == ""


def test_each_has_a_key_of_its_own_unless_told_otherwise() -> None:
    shelf = Shelf()
    first, second = shelf.deployment(SPEC), shelf.deployment(SPEC)
    assert first.api_key != second.api_key
    assert first.api_key is not None
    assert len(first.api_key) >= 32
    assert first.variables["OPENENV_API_KEYS"] == f"control:{first.api_key}"
    assert first.api_key in first.secrets
    given = shelf.deployment(SPEC.changed(api_key="k" * 20, env_vars={"OPENENV_API_KEYS": "none"}))
    assert given.api_key == "k" * 20
    none = shelf.deployment(SPEC.changed(api_key=""))
    assert (none.api_key, none.variables["OPENENV_API_KEYS"]) == (None, "none")
    own = shelf.deployment(SPEC.changed(env_vars={"OPENENV_API_KEYS": "agent:" + "a" * 20}))
    assert (own.api_key, own.variables["OPENENV_API_KEYS"]) == (None, "agent:" + "a" * 20)


def test_no_secret_is_in_what_is_printed() -> None:
    spec = SPEC.changed(api_key="hush-hush-hush-hush", env_vars={"MY_TOKEN": "hush-hush"})
    made = Shelf().deployment(spec)
    assert "hush" not in f"{spec!r} {made!r} {made.servers!r}"


def test_its_labels_say_whose_it_is() -> None:
    made = Shelf().deployment(SPEC)
    assert made.labels == {PROVIDER: "Shelf", DEPLOYMENT: made.name, OWNER: str(OwnerProcess.this())}
    assert all(len(value) <= 63 for value in made.labels.values())


# Processes.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
async def test_a_fork_leaves_it_to_its_parent() -> None:
    shelf = Shelf()
    made = await shelf.launch(SPEC)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            made.wait(made.stop())
            assert len(shelf.standing) == 1
            assert made.urls == ["http://127.0.0.1:1"]
            for call in (made.scale(2), made.ready(), made.refresh(), made.logs(), made.start()):
                with pytest.raises(UsageError, match="another process"):
                    made.wait(call)
            other = made.wait(shelf.launch(SPEC))
            other.wait(other.stop())
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222 - it ends at once
    await made.stop()
    assert shelf.standing == set()


PROGRAM = """
import asyncio, os, signal, sys
sys.path.insert(0, "tests/..")
from openenv.errors import ProviderFailed
from tests.providers.shelf import SPEC, Shelf

class Telling(Shelf):
    async def stop_server(self, server):
        await super().stop_server(server)
        print("stopped", flush=True)

shelf = Telling()
if "clings" in sys.argv:
    shelf.clinging = [ProviderFailed("it clings")]
made = asyncio.run(shelf.launch(SPEC.changed(replicas=2)))
print("started", flush=True)
if "interrupt" in sys.argv:
    raise KeyboardInterrupt
if "asked" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as the documentation says
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize("how", ["ends", "interrupt", "asked"])
def test_what_is_forgotten_goes_with_the_process(how: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.split() == ["started", "stopped", "stopped"]


def test_what_cannot_be_stopped_at_the_end_is_told() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, "clings"], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.split() == ["started", "stopped"]
    assert "it clings" in ended.stderr
    assert "openenv providers gc" in ended.stderr
