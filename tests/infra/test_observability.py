"""Alert rules and the dashboard, against Prometheus' own programs and a server that runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from openenv.client import GenericEnvClient
from openenv.providers import LocalProvider
from openenv.providers.process import free_port

pytestmark = pytest.mark.real
DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARD = DEPLOY / "grafana" / "openenv.json"
PATIENCE_S = 40.0
_METRIC = re.compile(r"\bopenenv_\w+")
_VARIABLES = {"$__rate_interval": "5s", "$job": ".*", "$instance": ".*"}


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: it is in Debian's package prometheus")
    return found


def promtool(*arguments: object) -> str:
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def panels() -> list[dict[str, Any]]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    """Every query of the dashboard, with something in place of its variables."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    for variable, value in _VARIABLES.items():
        found = [query.replace(variable, value) for query in found]
    return found


def rules() -> dict[str, str]:
    document = yaml.safe_load((PROMETHEUS / "rules.yaml").read_text())
    return {rule["alert"]: rule["expr"] for group in document["groups"] for rule in group["rules"]}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server that has stepped, and failed once."""
    with LocalProvider("benchmark", workers=2) as provider:
        with GenericEnvClient(provider.base_url) as env:
            env.reset()
            env.step({"wait_seconds": 0.0})
            with pytest.raises(Exception, match="wait_seconds"):
                env.step({"wait_seconds": -1.0})
        yield provider.base_url


@pytest.fixture(scope="module")
def metrics(server: str) -> set[str]:
    """The names of everything that a server tells of itself, as Prometheus stores it."""
    with urlopen(f"{server}/metrics") as answer:
        text = answer.read().decode()
    return {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


@pytest.fixture(scope="module")
def prometheus(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with our configuration that has read the server a few times."""
    folder = tmp_path_factory.mktemp("prometheus")
    for file in PROMETHEUS.glob("*.yaml"):
        shutil.copy(file, folder)
    configuration = (folder / "prometheus.yaml").read_text().replace("15s", "250ms")
    (folder / "prometheus.yaml").write_text(configuration)
    (folder / "targets.yaml").write_text(yaml.safe_dump([{"targets": [server.removeprefix("http://")]}]))
    address = f"127.0.0.1:{free_port()}"
    command = [program("prometheus"), f"--config.file={folder / 'prometheus.yaml'}"]
    command += [f"--web.listen-address={address}", f"--storage.tsdb.path={folder / 'data'}", "--log.level=error"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            limit = time.monotonic() + PATIENCE_S
            while not asked(f"http://{address}", "count_over_time(openenv_workers[1m]) > 8"):
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < limit, "Prometheus does not read the server"
                time.sleep(0.05)
            yield f"http://{address}"
        finally:
            process.terminate()
            process.communicate()


def asked(url: str, query: str) -> list[Any]:
    """What Prometheus answers; nothing while it does not."""
    try:
        with urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}") as answer:
            document = json.load(answer)
    except ConnectionError:
        return []
    except OSError as error:
        if isinstance(getattr(error, "reason", None), ConnectionError) or getattr(error, "code", 0) == 503:
            return []
        raise AssertionError(f"{query}: {error}") from error
    found: list[Any] = document["data"]["result"]
    return found


def test_the_rules_are_rules() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", "rules.yaml")
    assert "SUCCESS" in promtool("check", "config", "prometheus.yaml")


def test_each_alert_comes_when_it_must_and_not_before() -> None:
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yaml")


def test_every_alert_is_tested_both_ways() -> None:
    tests = yaml.safe_load((PROMETHEUS / "rules_test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == rules().keys()
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == rules().keys()


def test_every_metric_of_rules_and_dashboard_is_one_that_servers_have(metrics: set[str]) -> None:
    for query in [*queries(), *rules().values()]:
        assert set(_METRIC.findall(query)) <= metrics, query


def test_every_metric_of_a_server_is_on_the_dashboard(metrics: set[str]) -> None:
    shown = {name for query in queries() for name in _METRIC.findall(query)}
    assert {name for name in metrics if name.startswith("openenv_")} <= shown


def test_every_query_of_the_dashboard_has_an_answer(prometheus: str) -> None:
    for query in queries():
        assert asked(prometheus, query), query


def test_no_alert_comes_of_a_server_that_is_well(prometheus: str) -> None:
    assert asked(prometheus, "up") != []
    assert asked(prometheus, "ALERTS") == []
    for query in rules().values():
        asked(prometheus, query)  # each can be evaluated


def test_panels_do_not_lie_upon_one_another() -> None:
    places = [panel["gridPos"] for panel in panels()]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels()}) == len(places)
