"""`openenv serve --isolation process`: environments that do everything they should not, seen from a client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from openenv.client import GenericEnvClient, websocket
from openenv.errors import EnvironmentCrashed, OpenEnvError, ResetRequired, StepTimeout, UsageError
from openenv.protocol.codecs import SUBPROTOCOLS
from openenv.runtime.process import sandbox

from ..cli.process import LIMIT_S, Serving, serving
from ..runtime.process.wild import alive, descendants

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
WILD = "tests.runtime.process.wild:Wild"


@contextmanager
def wild(*arguments: str, target: str = WILD, **variables: str):
    with serving(target, *arguments, cwd=ROOT, **{"PYTHONPATH": str(ROOT), **variables}) as server:
        yield server


def client_of(server: Serving, **options):
    return GenericEnvClient(base_url=server.url, **options).sync()


def do(client, **metadata):
    """What a step of the wild environment did."""
    return client.step({"metadata": metadata}).observation["metadata"]["done"]


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def memory_mb(pid: int) -> float:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@pytest.fixture(params=[*((name,) for name in SUBPROTOCOLS), ()], ids=lambda offered: offered[0] if offered else "v1")
def subprotocol(request, monkeypatch):
    monkeypatch.setattr(websocket, "SUBPROTOCOLS", request.param)


def test_what_an_environment_does_to_itself_is_told_and_reset_starts_anew(subprotocol):
    with wild("--process-memory-mb", "500") as server:
        with client_of(server) as client:
            first = client.reset().observation["metadata"]["pid"]
            with pytest.raises(EnvironmentCrashed) as crash:
                do(client, do="segfault")
            assert crash.value.signal == "SIGSEGV"
            assert "in segfault" in crash.value.stderr
            assert crash.value.blame == "environment"
            second = client.reset().observation["metadata"]["pid"]
            assert second != first
            with pytest.raises(EnvironmentCrashed) as crash:
                do(client, do="leave", code=9, words="last words")
            assert (crash.value.exit_code, crash.value.stderr) == (9, "last words")
            with pytest.raises(OpenEnvError, match=r"reset\(\)"):
                do(client, do="nothing")
            client.reset()
            with pytest.raises(OpenEnvError):
                do(client, do="allocate")
            client.reset()
            assert do(client, do="say", size=100_000) == "x" * 100_000


def test_a_class_for_one_session_at_a_time_serves_many():
    with wild("--isolation", "process", target="tests.environments:Exclusive") as server:
        with client_of(server) as one, client_of(server) as other:
            one.reset()
            other.reset()
            assert [one.step({}).reward, one.step({}).reward, other.step({}).reward] == [1.0, 2.0, 1.0]
            assert other.state()["step_count"] == 1


def test_every_kind_of_environment_can_be_isolated():
    for target in (
        "tests.environments:AsyncPlain",
        "tests.environments:MixedPlain",
        "tests.environments:InlinePlain",
    ):
        with wild("--isolation", "process", target=target) as server, client_of(server) as client:
            client.reset()
            assert client.step({}).reward == 1.0


def test_a_step_that_hangs_is_answered_in_time_and_its_process_is_gone():
    with wild() as server, client_of(server) as client:
        pid = client.reset().observation["metadata"]["pid"]
        hasty_env = GenericEnvClient(base_url=server.url)
        with hasty_env.sync() as hasty:
            victim = hasty.reset().observation["metadata"]["pid"]
            hasty_env._message_timeout_s = 1.0
            begun = time.monotonic()
            with pytest.raises(StepTimeout):
                do(hasty, do="resist")
            assert time.monotonic() - begun < LIMIT_S
            hasty_env._message_timeout_s = 60.0
            until(lambda: not alive(victim))
            with pytest.raises((ResetRequired, EnvironmentCrashed)):
                do(hasty, do="nothing")
            assert hasty.reset().observation["metadata"]["pid"] != victim
        assert alive(pid)
        assert do(client, do="nothing") is None


def test_the_memory_of_the_server_stays_flat():
    with (
        wild("--process-memory-mb", "300", OPENENV_PROCESS_OUTPUT_MB="5", OPENENV_PROCESS_CHILDREN="30") as server,
        client_of(server) as client,
    ):
        client.reset()
        do(client, do="chatter", stream=2, megabytes=1)
        before = memory_mb(server.pid)
        for _ in range(3):
            do(client, do="chatter", stream=2, megabytes=50)
            do(client, do="chatter", stream=1, megabytes=50)
            for trouble in ("allocate", "multiply"):
                with pytest.raises(OpenEnvError):
                    do(client, do=trouble, **({"times": 100} if trouble == "multiply" else {}))
                client.reset()
            with pytest.raises(EnvironmentCrashed, match="process_output_mb"):
                do(client, do="say", size=20_000_000)
            client.reset()
        assert memory_mb(server.pid) - before < 10


def test_the_end_of_the_server_by_force_is_the_end_of_everything():
    with wild("--process-pool", "3") as server:
        with client_of(server) as client:
            pid = client.reset().observation["metadata"]["pid"]
            do(client, do="escape")
            do(client, do="escape", deep=True)
            # The server, its warm parent, the session, those kept ready, two that escaped.
            until(lambda: len(descendants(server.pid)) > 5)
            family = descendants(server.pid)
            assert pid in family
            os.kill(server.pid, signal.SIGKILL)
            until(lambda: not any(map(alive, family)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_of_the_server_in_good_order_is_too(number):
    with wild(*["--grace", "0"]) as server:
        with client_of(server) as client:
            client.reset()
            do(client, do="escape")
            family = descendants(server.pid)
            code, complaints = server.end(number, group=True)
            assert code in {0, 130}
            assert "Traceback" not in complaints
            until(lambda: not any(map(alive, family)))


def test_workers_have_a_warm_parent_each():
    with wild("--workers", "2") as server:
        clients = [client_of(server) for _ in range(4)]
        for client in clients:
            client.connect()
        pids = {client.reset().observation["metadata"]["pid"] for client in clients}
        assert len(pids) == 4
        family = descendants(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not any(map(alive, family)))
        for client in clients:
            client.close()


def test_in_a_sandbox_too():
    try:
        sandbox.check("bwrap")
    except UsageError as error:
        pytest.skip(str(error))
    with wild("--sandbox", "bwrap") as server:
        with client_of(server) as client:
            client.reset()
            assert do(client, do="write", path="/etc/x") != "written"
            assert do(client, do="write", path="/tmp/of-this-session") == "written"
            family = descendants(server.pid)
            os.kill(server.pid, signal.SIGKILL)
            until(lambda: not any(map(alive, family)))


def test_a_sandbox_that_cannot_be_had_is_said_before_anything_is_served(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "openenv", "serve", "echo", "--sandbox", "bwrap", "--port", "0"],
        env={**os.environ, "PATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode != 0
    assert "install bubblewrap" in ended.stderr
    assert "Traceback" not in ended.stderr
