"""The file in `deploy/compose`, by Docker Compose on an engine of the tests' own: metrics, reload, upgrade, logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from openenv.client import GenericEnvClient
from openenv.errors import ConnectionFailed, StepFailed
from openenv.providers.process import free_port

from ..server.wires import eventually
from .parts import release
from .parts.dockerd import Dockerd, dockerd
from .parts.image import CHECKOUT, QUICK, quick
from .test_observability import asked, program, queries

pytestmark = pytest.mark.real

DEPLOY = CHECKOUT / "deploy"
FILE = DEPLOY / "compose" / "compose.yaml"
KEY, VIEW_KEY = "a-key-that-is-long-enough", "another-key-that-is-long-enough"
# A busy machine starts the interpreters of two servers and a gateway, or of one server.
START_S, SOON_S = 240.0, 120.0
# What a step evaluates: whether its own server accepts connections.
LISTENS = "__import__('socket').socket().connect_ex(('127.0.0.1', 8000))"


class Stack:
    """The services of the file, but Grafana, from images that are this machine's own programs.

    Attributes:
        address: Of the gateway.
        prometheus: URL of Prometheus.
    """

    def __init__(self, engine: Dockerd, folder: Path):
        self.engine = engine
        self.address, prometheus = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.prometheus = f"http://{prometheus}"
        self._variables = {
            "DOCKER_HOST": engine.host,
            "OPENENV_IMAGE": self.image(1),
            "OPENENV_GATEWAY_IMAGE": QUICK.image,
            "PROMETHEUS_IMAGE": QUICK.image,
            "OPENENV_KEY": KEY,
            "OPENENV_VIEW_KEY": VIEW_KEY,
            "LISTEN": self.address,
            "PROMETHEUS_LISTEN": prometheus,
            "LOG_MAX_SIZE": "20k",
        }
        # The scrapes of a minute in a second.
        (folder / "prometheus.yaml").write_text(
            (FILE.parent / "prometheus.yaml").read_text().replace("15s", "250ms"), encoding="utf-8"
        )
        here = {"volumes": QUICK.mounts, "working_dir": "/"}
        server = {**here, "environment": QUICK.variables, "command": QUICK.serving(f"{release.__name__}:Released")}
        gateway = [sys.executable, "-m", *self.file["services"]["gateway"]["command"].split()]
        mounts = [*QUICK.mounts, f"{folder}/prometheus.yaml:/etc/prometheus/prometheus.yaml:ro"]
        ours = {
            "server-a": server,
            "server-b": server,
            "gateway": {**here, "environment": QUICK.variables, "command": gateway},
            "prometheus": {"volumes": mounts, "entrypoint": [program("prometheus")], "user": "0"},
        }
        (folder / "here.json").write_text(json.dumps({"services": ours}), encoding="utf-8")
        self._command = ["docker", "compose", "--file", str(FILE), "--file", str(folder / "here.json")]

    @property
    def file(self) -> Any:
        return yaml.safe_load(FILE.read_text(encoding="utf-8"))

    def image(self, number: int) -> str:
        """The image of a release of the environment."""
        client = self.engine.client()
        base, name = client.images.get(QUICK.image), f"openenv-test-release:{number}"
        container = client.containers.create(base, command=["none"])
        container.commit(*name.split(":"), changes=f"ENV RELEASE={number}")
        container.remove()
        client.close()
        return name

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Starts a command of Compose."""
        return subprocess.Popen(
            [*self._command, *command],
            env={**os.environ, **self._variables, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str, **variables: str) -> str:
        """What a command of Compose prints."""
        process = self.start(*command, **variables)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
        return said

    def client(self) -> Any:
        return GenericEnvClient(f"http://{self.address}", api_key=KEY).sync()

    def release(self) -> str:
        """Of the server that a new session comes to; "" before the gateway has found one."""
        try:
            with self.client() as env:
                return str(env.reset().observation["release"])
        except ConnectionFailed:
            return ""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    pytest.importorskip("docker")
    pytest.importorskip("envoy")
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("Docker Compose is not installed: run scripts/install_infra")
    with dockerd() as engine:
        client = engine.client()
        quick(client)
        client.close()
        stack = Stack(engine, tmp_path_factory.mktemp("compose"))
        try:
            stack.run("up", "--detach", "server-a", "server-b", "gateway", "prometheus")
            eventually(lambda: stack.release() == "1", START_S)
            yield stack
        finally:
            stack.run("down", "--volumes", "--timeout", "0")


def step(env: Any, expression: str = "None") -> dict[str, Any]:
    view: dict[str, Any] = env.step({"expression": expression}).observation
    return view


def service_of(stack: Stack, env: Any) -> str:
    """The service that an episode is on."""
    name = step(env, "os.uname().nodename")["value"].strip("'")
    for service in ("server-a", "server-b"):
        if stack.run("ps", "--quiet", service).startswith(name):
            return service
    raise AssertionError(name)


def test_every_query_of_the_dashboard_has_an_answer(stack: Stack) -> None:
    with stack.client() as env:
        env.reset()
        with pytest.raises(StepFailed, match="nothing"):
            step(env, "{}['nothing']")
    for query in queries():
        eventually(lambda: asked(stack.prometheus, query) != [], SOON_S)  # noqa: B023 - called at once
    both = {"server-a:8000", "server-b:8000"}
    eventually(lambda: {each["metric"]["instance"] for each in asked(stack.prometheus, "up == 1")} == both, SOON_S)


def test_grafana_is_given_the_dashboard_and_a_prometheus_that_there_is(stack: Stack) -> None:
    services = json.loads(stack.run("config", "--format", "json"))["services"]
    mounts = {volume["target"]: volume["source"] for volume in services["grafana"]["volumes"]}
    provisioning = Path(mounts["/etc/grafana/provisioning"])
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    service, _, port = source["url"].removeprefix("http://").partition(":")
    assert [each["target"] for each in services[service]["ports"]] == [int(port)]
    (provider,) = yaml.safe_load((provisioning / "dashboards/openenv.yaml").read_text())["providers"]
    dashboards = {Path(target): Path(file) for target, file in mounts.items() if target.endswith(".json")}
    assert [target.parent for target in dashboards] == [Path(provider["options"]["path"])]
    (file,) = dashboards.values()
    dashboard = json.loads(file.read_text())
    (choice,) = [each for each in dashboard["templating"]["list"] if each["type"] == "datasource"]
    assert choice["query"] == source["type"] == "prometheus"


def test_servers_send_spans_to_the_collector_whose_pipelines_name_parts_that_there_are(stack: Stack) -> None:
    services = json.loads(stack.run("--profile", "tracing", "config", "--format", "json"))["services"]
    (volume,) = [each for each in services["otel-collector"]["volumes"] if each["type"] == "bind"]
    assert services["otel-collector"]["command"] == [f"--config={volume['target']}"]
    collector = yaml.safe_load(Path(volume["source"]).read_text())
    address = services["server-a"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"].removeprefix("http://")
    port = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    assert address == f"otel-collector:{port}"
    ends = {*collector["connectors"]}
    for pipeline in collector["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert {*names} <= {*collector[kind], *(ends if kind != "processors" else ())}
    port = collector["exporters"]["prometheus"]["endpoint"].rpartition(":")[2]
    scrapes = yaml.safe_load((FILE.parent / "prometheus.yaml").read_text())["scrape_configs"]
    assert {"names": ["otel-collector"], "type": "A", "port": int(port)} in scrapes[1]["dns_sd_configs"]


def test_sighup_replaces_the_workers_of_a_server_and_no_episode(stack: Stack) -> None:
    def worker() -> tuple[str, int]:
        """The container and the process: numbers of processes repeat in the other server."""
        view = step(env, "os.uname().nodename")
        return view["value"], view["pid"]

    with stack.client() as env:
        env.reset()
        first, service = worker(), service_of(stack, env)
        stack.run("kill", "--signal", "HUP", service)
        assert [worker() for _ in range(2)] == [first, first]
        eventually(lambda: env.reset() is not None and worker() != first, SOON_S)
    eventually(lambda: "all workers are new" in stack.run("logs", service), SOON_S)


def test_logs_rotate_while_an_episode_is_played(stack: Stack) -> None:
    def files() -> list[Path]:
        return list((stack.engine.folder / "data/containers").glob("*/*-json.log.1"))

    with stack.client() as env:
        env.reset()
        while not files():
            with pytest.raises(StepFailed, match="x"):
                step(env, "{}['" + "x" * 3000 + "']")
        assert env.reset().observation["steps"] == 0


def test_an_upgrade_lets_episodes_end_and_the_next_ones_begin_in_the_other_server(stack: Stack) -> None:
    image = stack.image(2)
    with stack.client() as env:
        assert env.reset().observation["release"] == "1"
        first = service_of(stack, env)
        with stack.start("up", "--detach", "--no-deps", first, OPENENV_IMAGE=image) as upgrade:
            eventually(lambda: step(env, LISTENS)["value"] != "0", SOON_S)  # it drains, and the episode goes on
            steps = step(env)["steps"]
            assert [step(env)["steps"] for _ in range(2)] == [steps + 1, steps + 2]
            eventually(lambda: env.reset() is not None and service_of(stack, env) != first, SOON_S)
            # The old server ends when its last session has left, long before its grace is over.
            assert upgrade.wait(SOON_S) == 0
        eventually(lambda: stack.release() == "2", SOON_S)
