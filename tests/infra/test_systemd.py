"""The units of `deploy/systemd`, under a systemd that runs: sandbox, reload, drain, upgrade, logs."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import StepFailed
from openenv.providers.process import free_port

from ..server.wires import eventually
from .parts import release
from .parts.image import CHECKOUT
from .parts.machine import Machine, machine

pytestmark = pytest.mark.real

UNITS = CHECKOUT / "deploy" / "systemd"
KEY = "a-key-that-is-long-enough"
GATEWAY = "openenv-gateway"
# A busy machine starts the interpreters of two servers and a gateway, or of one server.
START_S, SOON_S = 240.0, 120.0
# By the count of `systemd-analyze security`, in which a unit without a sandbox has 9.6, and in tenths.
TENTHS_EXPOSED = 15


class Servers:
    """Two servers and a gateway on a machine, installed as the README says."""

    def __init__(self, host: Machine):
        self.host = host
        self.ports = [str(free_port()), str(free_port())]
        self.address = f"127.0.0.1:{free_port()}"
        for unit in UNITS.glob("*.service"):
            shutil.copy(unit, host.root / "etc/systemd/system")
        self.write("my_env/release.py", Path(release.__file__).read_text())
        settings = (UNITS / "server.env").read_text().replace("CHOOSE-A-SECRET", KEY)
        settings = settings.replace("my_env.server.app:app", "release:Released") + "PYTHONPATH=/opt/my_env\n"
        self.write("../etc/openenv/server.env", settings)
        self.write("../etc/openenv/gateway.env", f"LISTEN={self.address}\n")
        backends = (UNITS / "backends").read_text()
        for sample, port in zip(("8001", "8002"), self.ports, strict=True):
            backends = backends.replace(sample, port)
        self.write("../etc/openenv/backends", backends)
        host.run("systemctl", "daemon-reload")
        self.control("start", *self.units, GATEWAY)
        eventually(lambda: all(map(self.ready, [*self.ports, self.address.rpartition(":")[2]])), START_S)

    @property
    def units(self) -> list[str]:
        return [f"openenv-server@{port}" for port in self.ports]

    def write(self, name: str, text: str) -> None:
        file = self.host.root / "opt" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def control(self, *command: str) -> None:
        self.host.run("systemctl", *command)

    def ready(self, port: str) -> bool:
        try:
            with closing(urllib.request.urlopen(f"http://127.0.0.1:{port}/ready")) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def client(self, address: str = "") -> Any:
        return GenericEnvClient(f"http://{address or self.address}", api_key=KEY).sync()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    pytest.importorskip("envoy")
    with machine() as host:
        yield Servers(host)


def step(env: Any, expression: str = "None") -> dict[str, Any]:
    view: dict[str, Any] = env.step({"expression": expression}).observation
    return view


def unit_of(env: Any) -> str:
    """The server that an episode is on."""
    path = step(env, "open('/proc/self/cgroup').read()")["value"]
    return str(path.partition("openenv-server@")[2].partition(".service")[0])


def step_pid(env: Any) -> int:
    """The process that an episode is in."""
    return int(step(env)["pid"])


def test_systemd_takes_every_word_of_the_units(servers: Servers) -> None:
    for unit in [*servers.units, GATEWAY]:
        path = f"/run/{unit}.service"
        said = servers.host.run("sh", "-c", f"systemctl cat {unit} > {path}; systemd-analyze verify --man=no {path}")
        assert said == ""
        servers.host.run("systemd-analyze", "security", "--offline=yes", f"--threshold={TENTHS_EXPOSED}", path)


def test_a_server_and_its_environments_are_in_a_sandbox(servers: Servers) -> None:
    with servers.client() as env:
        env.reset()
        user, home = step(env, "(os.getuid(), os.environ['HOME'])")["value"].strip("()").split(", ")
        assert int(user) > 60000  # made by systemd for this unit
        assert step(env, f"open({home} + '/notes', 'w').write('kept')")["value"] == "4"
        env.reset()
        for expression, refusal in {
            "open('/etc/openenv/mine', 'w')": "Read-only file system",
            "os.listdir('/root')": "Permission denied",
            "__import__('mmap').mmap(-1, 4096, prot=7)": "Operation not permitted",
            "os.chroot('/tmp')": "Operation not permitted",
        }.items():
            with pytest.raises(StepFailed, match=refusal):
                step(env, expression)


def test_a_reload_replaces_the_code_and_no_episode(servers: Servers) -> None:
    unit, address = servers.units[0], f"127.0.0.1:{servers.ports[0]}"
    parent = servers.host.property(unit, "MainPID")
    with servers.client(address) as env:
        old = env.reset().observation
        assert old["release"] == "1"
        source = Path(release.__file__).read_text()
        servers.write("my_env/release.py", source.replace('"RELEASE", "1"', '"RELEASE", "2"'))
        servers.control("reload", unit)

        def replaced() -> bool:
            with servers.client(address) as other:
                return bool(other.reset().observation["release"] == "2")

        eventually(replaced, SOON_S)
        # The episode goes on where it is, and the next one moves.
        assert [step(env)["steps"] for _ in range(3)] == [1, 2, 3]
        assert step_pid(env) == old["pid"]
        eventually(lambda: env.reset().observation["release"] == "2", SOON_S)
    assert servers.host.property(unit, "MainPID") == parent


def test_an_episode_survives_the_restart_of_the_gateway(servers: Servers) -> None:
    with servers.client() as env:
        before = env.reset().observation["pid"]
        servers.control("restart", GATEWAY)
        assert [step(env)["steps"] for _ in range(3)] == [1, 2, 3]
        assert step_pid(env) == before


def test_the_journal_has_each_line_once_also_when_it_rotates(servers: Servers) -> None:
    unit, address = servers.units[0], f"127.0.0.1:{servers.ports[0]}"

    def failures() -> list[str]:
        lines = [json.loads(line) for line in servers.host.journal(unit).splitlines() if line.startswith("{")]
        return [line["message"] for line in lines if "no such" in line["message"]]

    with servers.client(address) as env:
        for number in range(2):
            env.reset()
            with pytest.raises(StepFailed, match="no such"):
                step(env, f"{{}}['no such {number}']")
            eventually(lambda: len(failures()) > number)  # noqa: B023 - called at once
            servers.host.run("journalctl", "--rotate")
    assert [f"no such {number}" in line for number, line in enumerate(failures())] == [True, True]


def test_a_restart_lets_episodes_end_and_the_next_ones_begin_elsewhere(servers: Servers) -> None:
    with servers.client() as env:
        env.reset()
        port = unit_of(env)
        unit = f"openenv-server@{port}"
        parent = servers.host.property(unit, "MainPID")
        servers.control("restart", "--no-block", unit)
        eventually(lambda: servers.host.property(unit, "ActiveState") == "deactivating")
        eventually(lambda: not servers.ready(port))
        assert [step(env)["steps"] for _ in range(2)] == [2, 3]
        eventually(lambda: env.reset() is not None and unit_of(env) != port, 5)
        # The old server ends when its last session has left, long before its grace is over.
        eventually(lambda: servers.host.property(unit, "MainPID") not in {parent, "0"}, SOON_S)
        assert servers.host.property(unit, "Result") == "success"


def test_a_server_that_dies_is_started_again(servers: Servers) -> None:
    unit = servers.units[1]
    servers.control("kill", f"--signal={signal.SIGKILL.name}", "--kill-who=main", unit)
    eventually(lambda: servers.host.property(unit, "NRestarts") == "1", SOON_S)
