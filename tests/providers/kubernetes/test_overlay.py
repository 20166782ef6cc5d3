"""The example of an overlay in `deploy/kubernetes`, as `kubectl kustomize` builds it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from .rules import breaches, restricted
from .schemas import faults_of
from .test_manifests import VERSIONS

DEPLOY = Path(__file__).parents[3] / "deploy" / "kubernetes"
KEYS = "OPENENV_API_KEYS=control:a-key,view:another\nOPENENV_VIEW_KEY=another\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """Its objects, by kind and name."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl 1.30 or newer, whose kustomize has patches")
    folder = tmp_path_factory.mktemp("kubernetes")
    for part in ("base", "overlay"):
        shutil.copytree(DEPLOY / part, folder / part)
    (folder / "overlay" / "keys.env").write_text(KEYS, encoding="utf-8")
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder / "overlay")], capture_output=True, text=True, check=False
    )
    if "unknown field" in done.stderr:
        pytest.skip("needs kubectl 1.30 or newer, whose kustomize has patches")
    assert done.returncode == 0, done.stderr
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_every_version_takes_every_object(built: dict[tuple[str, str], dict[str, Any]], version: str) -> None:
    for thing in built.values():
        assert faults_of(thing, version) == []
        assert breaches(thing) == []


def test_every_choice_reaches_its_object(built: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert {each["metadata"].get("namespace", "training") for each in built.values()} == {"training"}
    scaler = built["HorizontalPodAutoscaler", "environments"]["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (4, 32)
    pod = built["Deployment", "environments"]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    assert server["image"] == "registry.example/my-env:1"
    assert server["resources"]["limits"] == {"cpu": "4", "memory": "4Gi"}
    assert {"secretRef": {"name": "environments"}} in server["envFrom"]
    assert built["Secret", "environments"]["data"].keys() == {"OPENENV_API_KEYS", "OPENENV_VIEW_KEY"}
    grace = {each["name"]: each["value"] for each in server["env"]}["OPENENV_GRACE_S"]
    assert pod["terminationGracePeriodSeconds"] > float(grace) + server["lifecycle"]["preStop"]["sleep"]["seconds"]


def test_clients_come_from_the_ingress_to_the_gateway_and_from_there_to_every_server(
    built: dict[tuple[str, str], dict[str, Any]],
) -> None:
    (rule,) = built["Ingress", "gateway"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    service = built["Service", path["backend"]["service"]["name"]]["spec"]
    pod = built["Deployment", "gateway"]["spec"]["template"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert restricted(pod["spec"]) == []
    command = pod["spec"]["containers"][0]["command"]
    name, _, port = command[command.index("--backends") + 1].partition(":")
    servers = built["Service", name]["spec"]
    assert (servers["clusterIP"], servers["ports"][0]["port"]) == ("None", int(port))
