"""`openenv deploy kubernetes`: what it prints, and what a cluster has then."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from openenv.cli import main

from ..providers.kubernetes.api import NAMESPACE, Cluster, standing_in

SERVE = [sys.executable, "-m", "openenv.testing.misbehaving", "serve"]
KINDS = ["NetworkPolicy", "Service", "Service", "Deployment", "PodDisruptionBudget"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["openenv", "deploy", "kubernetes", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return run


def manifests_of(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


# Printed.


def test_what_is_printed_is_valid_and_holds_no_secret(run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MODEL_TOKEN", "hush-hush")
    more = ["--max-replicas", 8, "--cpus", 1.5, "--memory", "2g", "--gpus", 1, "--prepull", "--env", "MODEL_TOKEN"]
    code, out, err = run("my-env:1", "--dry-run", "-n", "training", "--create-namespace", *more)
    assert (code, err) == (0, "")
    kinds = [each["kind"] for each in manifests_of(out)]
    assert kinds == ["Namespace", *KINDS, "HorizontalPodAutoscaler", "DaemonSet"]
    assert "MODEL_TOKEN" in out
    assert "hush-hush" not in out
    assert all(each["metadata"].get("namespace", "training") == "training" for each in manifests_of(out))
    file = tmp_path / "manifests.yaml"
    file.write_text(out)
    validate = [sys.executable, "-m", "kubernetes_validate", "--strict"]
    checked = subprocess.run([*validate, str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("passed") == len(kinds)
    assert "WARN" not in checked.stdout


def test_the_secret_is_printed_when_asked_for(run: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("OPENENV_API_KEYS", "control:a-key-that-is-long-enough")
    _, out, _ = run("my-env:1", "--dry-run", "--show-secrets", "--env", "OPENENV_API_KEYS")
    (secret,) = (each for each in manifests_of(out) if each["kind"] == "Secret")
    assert base64.b64decode(secret["data"]["OPENENV_API_KEYS"]) == b"control:a-key-that-is-long-enough"


def test_a_file_says_what_the_command_line_does_not(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "env.yaml"
    file.write_text(
        "image: my-env:2\nname: mine\nreplicas: 3\nport: 9000\ncommand: [serve, it]\nresources: {cpus: 2}\n"
        "env_vars: {LEVEL: 3}\noptions: {node_selector: {pool: envs}, user: null}\n"
    )
    _, out, _ = run(file, "--dry-run", "--show-secrets", "--replicas", 5, "--option", "pull_policy=Always")
    found = {each["kind"]: each for each in manifests_of(out)}
    spec = found["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    assert (spec["replicas"], pod["nodeSelector"], pod["containers"][0]["image"]) == (5, {"pool": "envs"}, "my-env:2")
    assert pod["containers"][0]["imagePullPolicy"] == "Always"
    assert pod["containers"][0]["command"] == ["serve", "it"]
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "2"}
    assert "runAsUser" not in pod["securityContext"]
    assert base64.b64decode(found["Secret"]["data"]["LEVEL"]) == b"3"
    assert all(each["metadata"]["name"].startswith("mine") for each in found.values())


def test_a_base_for_kustomize(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    code, out, _ = run("my-env:1", "--dry-run", "-o", folder, "-n", "training")
    assert (code, "kubectl apply -k" in out) == (0, True)
    base = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert base["namespace"] == "training"
    assert sorted(base["resources"]) == sorted(each.name for each in folder.iterdir() if each.name[0] != "k")
    assert [yaml.safe_load((folder / name).read_text())["kind"] for name in base["resources"]] == KINDS


def test_a_folder_that_cannot_be_written_to(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = run("my-env:1", "--dry-run", "-o", tmp_path / "file" / "base")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "--output" in err


def test_a_secret_in_a_base_is_for_its_owner_alone(run: Any, tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").touch(mode=0o644)
    assert run("my-env:1", "--dry-run", "--show-secrets", "-o", tmp_path)[0] == 0
    assert "OPENENV_API_KEYS" in (tmp_path / "secret.yaml").read_text()
    assert (tmp_path / "secret.yaml").stat().st_mode & 0o777 == 0o600


RECIPES = Path(__file__).parents[2] / "deploy" / "kubernetes"


def test_the_base_in_the_repository_is_what_is_written(run: Any, tmp_path: Path) -> None:
    """The command stands in its README."""
    (command,) = re.findall(
        r"^openenv deploy kubernetes (.* -o \S+)$", (RECIPES / "README.md").read_text(), re.MULTILINE
    )
    arguments = command.split()
    folder = Path(arguments[-1])
    assert folder.resolve().name == "base"
    assert run(*arguments[:-1], tmp_path / "base")[0] == 0
    written = {file.name: file.read_text() for file in (tmp_path / "base").iterdir()}
    assert {file.name: file.read_text() for file in (RECIPES / "base").iterdir()} == written


def test_all_manifests_in_the_repository_are_valid() -> None:
    files = [file for file in RECIPES.rglob("*.yaml") if file.parent.name != "monitoring" and file.name[0] != "k"]
    assert len(files) >= 10
    checked = subprocess.run(
        [sys.executable, "-m", "kubernetes_validate", "--strict", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    assert "WARN" not in checked.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--env", "MODEL_TOKEN=hush"], "set MODEL_TOKEN in this shell"),
        (["--env", "NOT_SET_HERE"], "NOT_SET_HERE"),
        (["--option", "colour=red"], "colour"),
        (["--option", "nothing"], "NAME=YAML"),
        (["--option", "user=[1"], "--option user"),
        (["--replicas", "0"], "replicas"),
        (["--replicas", "4", "--max-replicas", "2"], "maximum of replicas (2)"),
        (["--memory", "much"], "memory"),
        (["--name", "9-lives"], "--name"),
        (["--create-namespace"], "--namespace"),
    ],
)
def test_bad_arguments_are_named(run: Any, arguments: list[str], named: str) -> None:
    code, _, err = run("my-env:1", "--dry-run", *arguments)
    assert code == 1
    assert named in err
    assert "hush" not in err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("image: [", "cannot be read"),
        ("name: a", "image"),
        ("image: a\ncolour: red", "colour"),
        ("[1]", "image"),
        ("image: a\nenv_vars:", "env_vars must be"),
        ("image: a\nresources: 3", "resources must be"),
        ("image: a\nmax_replicas: many", "max_replicas must be"),
        ("image: a\nreplicas: true", "replicas must be a whole number"),
        ("image: a\nname: 7", "name must be a text, got 7"),
        ("image: a\nresources: {cpus: many}", "env.yaml: resources: cpus must be a number, as 2 or 0.5, got 'many'"),
        ("image: a\nresources: {gpus: two}", "resources: gpus must be a whole number"),
        ("image: a\nresources: {memory: [1]}", "resources: memory must be bytes or a size"),
        ("image: a\nresources: {cpu: 1}", "resources has cpus, memory, gpus, processes, got cpu"),
    ],
)
def test_bad_files_are_named(run: Any, tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "env.yaml"
    file.write_text(text)
    code, _, err = run(file, "--dry-run")
    assert (code, named in err) == (1, True)


def test_what_is_only_for_printing(run: Any, tmp_path: Path) -> None:
    code, _, err = run("my-env:1", "-o", tmp_path)
    assert (code, "--dry-run" in err) == (1, True)


# On a cluster.


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster()
    with standing_in(cluster, tmp_path) as cluster.kubeconfig:
        yield cluster
        assert cluster.wrong == []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "env.yaml"
    file.write_text(yaml.safe_dump({"image": "my-env:1", "command": SERVE, "options": {"start_s": 60}}))
    return file


def keys_of(cluster: Cluster) -> str:
    secret = cluster.store.get("Secret", NAMESPACE, "my-env")
    assert secret is not None
    return base64.b64decode(secret["data"]["OPENENV_API_KEYS"]).decode()


@pytest.mark.slow
def test_servers_are_put_on_a_cluster_and_changed_there(run: Any, cluster: Cluster, file: Path) -> None:
    where = ["--kubeconfig", cluster.kubeconfig]
    code, out, err = run(file, *where, "--replicas", 2)
    assert (code, err) == (0, "")
    assert "http://my-env.training.svc:8000" in out
    assert len(cluster.names("Pod")) == 2
    keys = keys_of(cluster)
    assert keys.startswith("control:")
    assert keys.partition(",")[0].partition(":")[2] not in out
    labels = [thing["metadata"].get("labels", {}) for thing in list(cluster.store.things.values())]
    assert not any("openenv.owner" in each for each in labels)  # or `providers gc` would remove it
    assert run(file, *where, "--replicas", 3)[0] == 0
    assert len(cluster.names("Pod")) == 3
    assert keys_of(cluster) == keys
    assert sorted({kind for kind, _, _ in cluster.store.things}) == sorted({"Namespace", "Secret", "Pod", *KINDS})


def test_a_cluster_that_is_too_old_is_not_changed(run: Any, cluster: Cluster, file: Path) -> None:
    cluster.version = "1.29"
    code, _, err = run(file, "--kubeconfig", cluster.kubeconfig)
    assert (code, "need 1.30 or newer" in err) == (1, True)
    assert cluster.methods("PATCH|POST|DELETE") == []


@pytest.mark.slow
def test_a_deployment_that_gets_an_autoscaler_keeps_its_servers(run: Any, cluster: Cluster, file: Path) -> None:
    where = ["--kubeconfig", cluster.kubeconfig]
    assert run(file, *where, "--replicas", 3)[0] == 0
    assert run(file, *where, "--replicas", 2, "--max-replicas", 5)[0] == 0
    deployment = cluster.store.get("Deployment", NAMESPACE, "my-env")
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 3
    # What the autoscaler made of it stays, within the bounds.
    cluster.on_loop(lambda: deployment["spec"].update(replicas=5))
    assert run(file, *where, "--replicas", 2, "--max-replicas", 4, "--no-wait")[0] == 0
    deployment = cluster.store.get("Deployment", NAMESPACE, "my-env")
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 4


@pytest.mark.slow
def test_what_is_no_longer_wanted_is_removed(run: Any, cluster: Cluster, file: Path) -> None:
    where = ["--kubeconfig", cluster.kubeconfig, "--no-wait"]
    assert run(file, *where, "--max-replicas", 3, "--prepull", "--env", "A=1", "--env", "B=2")[0] == 0
    assert {"HorizontalPodAutoscaler", "DaemonSet", "NetworkPolicy"} <= {kind for kind, _, _ in cluster.store.things}
    assert run(file, *where, "--env", "A=1", "--option", "policy=false")[0] == 0
    kinds = {kind for kind, _, _ in cluster.store.things}
    assert not kinds & {"HorizontalPodAutoscaler", "DaemonSet", "NetworkPolicy"}
    secret = cluster.store.get("Secret", NAMESPACE, "my-env")
    assert secret is not None
    assert secret["data"].keys() >= {"A", "OPENENV_API_KEYS"}
    assert "B" not in secret["data"]


@pytest.mark.slow
def test_servers_that_fail_are_told_of(run: Any, cluster: Cluster) -> None:
    where = ["--kubeconfig", cluster.kubeconfig]
    code, _, err = run("missing:1", *where)
    assert code == 1
    assert "ImagePullBackOff" in err
    assert "Failed to pull image" in err
    assert run("missing:1", *where, "--no-wait")[0] == 0


def test_a_namespace_that_is_not_there_is_made_when_asked_for(run: Any, cluster: Cluster) -> None:
    where = ["--kubeconfig", cluster.kubeconfig, "-n", "other", "--no-wait"]
    code, _, err = run("any:1", *where)
    assert (code, 'namespaces "other" not found' in err) == (1, True)
    assert run("any:1", *where, "--create-namespace")[0] == 0
    assert "other" in cluster.names("Namespace")


def test_what_somebody_else_has_made_is_left_alone(run: Any, cluster: Cluster) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "my-env", "namespace": NAMESPACE},
        "data": {"password": "aHVzaA=="},
    }
    cluster.on_loop(lambda: cluster.store.put(theirs, NAMESPACE))
    code, _, err = run("my-env:1", "--kubeconfig", cluster.kubeconfig, "--no-wait")
    assert code == 1
    assert "Secret my-env that openenv did not create" in err
    assert cluster.names("Deployment") == []
    secret = cluster.store.get("Secret", NAMESPACE, "my-env")
    assert secret is not None
    assert secret["data"] == {"password": "aHVzaA=="}
