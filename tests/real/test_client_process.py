"""What becomes of synchronous clients when their process forks, is interrupted, or simply ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from ..client.environments import Bell, RingingCounter, ThreadCounter, app_of
from ..server.wires import served

pytestmark = [pytest.mark.real, pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")]

# Starting an interpreter on a busy machine.
LIMIT_S = 30


@pytest.fixture
def address():
    with served(app_of(ThreadCounter, sessions=8), ws="openenv.server.transports.uvicorn:FastPath") as address:
        yield address


def run(script, address):
    """Runs a script in a process of its own; it must end well, and have nothing to complain about."""
    # Without what asyncio, in development mode, says of a machine that is busy.
    quiet = 'import logging; logging.getLogger("asyncio").setLevel("ERROR")'
    program = quiet + textwrap.dedent(script)
    result = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program, address],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout.split()


def test_a_process_that_never_closes_its_clients_ends_at_once_and_in_silence(address):
    output = run(
        """
        import sys
        from openenv import GenericEnvClient
        clients = [GenericEnvClient(sys.argv[1]) for _ in range(3)]
        for client in clients:
            client.reset()
            print(client.step({"by": 2}).reward)
        """,
        address,
    )
    assert output == ["1.0"] * 3


@pytest.mark.parametrize("dropped", ["client.reset()", "client.sync().new_session()", "client.new_session().reset()"])
@pytest.mark.parametrize("version", [1, 2])
def test_clients_that_nobody_has_any_more_are_closed_in_silence_too(address, version, dropped):
    output = run(
        f"""
        import gc, sys
        from openenv import GenericEnvClient
        from openenv.client import websocket
        if {version} == 1:
            websocket.SUBPROTOCOLS = ("none",)
        client = GenericEnvClient(sys.argv[1])
        {dropped}
        del client
        gc.collect()
        print("over")
        """,
        address,
    )
    assert output == ["over"]


@pytest.mark.parametrize(
    "begin",
    ["CounterEnv.from_docker_image('img', Containers(url)).reset()", "CounterEnv(provider=Runtime(url)).reset()"],
)
def test_a_server_whose_client_nobody_closed_is_stopped_with_the_process(address, begin):
    output = run(
        f"""
        import sys
        from tests.client.environments import CounterEnv
        from tests.providers import places
        url = "http://" + sys.argv[1]

        class Telling:
            def _end(self):
                print("stopped")

        class Containers(Telling, places.Containers): ...
        class Runtime(Telling, places.Runtime): ...

        {begin}
        """,
        address,
    )
    assert output == ["stopped"]


def test_a_client_made_after_a_fork_works_in_both_processes(address):
    output = run(
        """
        import os, sys
        from openenv import GenericEnvClient

        def play():
            with GenericEnvClient(sys.argv[1]) as env:
                env.reset()
                return env.step({"by": 2}).reward

        play()
        child = os.fork()
        reward = play()
        if child == 0:
            os._exit(int(reward))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), reward)
        """,
        address,
    )
    assert output == ["1", "1.0"]


@pytest.mark.slow
@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("thread", ["asyncio.to_thread", "at_once"])
@pytest.mark.parametrize("loop", ["plain", "asyncio"])
def test_a_client_made_before_a_fork_has_lost_its_session_in_the_child(address, loop, thread, close):
    """The parent goes on with it; the child must neither hang nor write into the parent's connection."""
    output = run(
        f"""
        import asyncio, os, signal, sys, traceback
        from openenv import GenericEnvClient
        from openenv.errors import SessionLost

        async def at_once(function):
            return function()

        env = GenericEnvClient(sys.argv[1])

        def in_the_child():
            signal.alarm(10)
            try:
                env.close() if {close} else env.step({{"by": 1}})
            except SessionLost:
                assert not {close}
            env.reset(start=100)
            return env.step({{"by": 1}}).observation["total"]

        def fork():
            child = os.fork()
            if child == 0:
                try:
                    os._exit(in_the_child())
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        async def asynchronously():
            await env.reset()
            await env.step({{"by": 1}})
            code = await {thread}(fork)
            print(code, (await env.step({{"by": 1}})).reward)
            await env.close()

        def plainly():
            env.reset()
            env.step({{"by": 1}})
            print(fork(), env.step({{"by": 1}}).reward)
            env.close()

        plainly() if {loop!r} == "plain" else asyncio.run(asynchronously())
        """,
        address,
    )
    assert output == ["101", "2.0"]


@pytest.mark.parametrize("first", ["step", "recv", "close"])
def test_a_vector_made_before_a_fork_has_lost_its_sessions_in_the_child(address, first):
    output = run(
        f"""
        import gc, os, signal, sys, traceback
        from openenv.client import GenericEnvClient, VectorEnvClient
        from openenv.errors import SessionLost

        envs = VectorEnvClient(GenericEnvClient, sys.argv[1], num_envs=2).sync()
        actions = [{{"by": 1}}] * 2

        def in_the_child():
            signal.alarm(10)
            if {first!r} == "step":
                assert all(isinstance(result.error, SessionLost) for result in envs.step(actions))
            elif {first!r} == "recv":
                # What had come before the fork is a result of the child's too.
                results = [done.result for done in envs.recv(2)]
                assert all(isinstance(result.error, SessionLost) or result.reward == 1.0 for result in results)
            else:
                envs.close()
            envs.reset(start=100)
            gc.collect()
            return envs.step(actions)[1].observation["total"]

        envs.reset()
        if {first!r} == "recv":
            envs.send(actions)
        child = os.fork()
        if child == 0:
            try:
                os._exit(in_the_child())
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        results = [done.result for done in envs.recv(2)] if {first!r} == "recv" else envs.step(actions)
        print(code, *(result.reward for result in results))
        envs.close()
        """,
        address,
    )
    assert output == ["101", "1.0", "1.0"]


def test_ctrl_c_ends_a_process_that_waits_for_a_step():
    program = textwrap.dedent(
        """
        import sys
        from openenv import GenericEnvClient
        with GenericEnvClient(sys.argv[1], message_timeout_s=None) as env:
            env.reset()
            print("ready", flush=True)
            env.step({"by": 1})
        """
    )
    bells = []

    def factory():
        bells.append(Bell())
        return RingingCounter(bells[-1])

    with served(app_of(factory, sessions=2)) as address:
        process = subprocess.Popen(
            [sys.executable, "-c", program, address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout.readline() == "ready\n"
            limit = time.monotonic() + LIMIT_S
            while not bells[0].waiting and time.monotonic() < limit:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT
    assert complaints.rstrip().endswith("KeyboardInterrupt")
    assert "never" not in complaints
