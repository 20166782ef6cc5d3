"""The stand-in refuses what a cluster would refuse: so what it lets pass means something."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.providers.kubernetes import manifests
from openenv.providers.kubernetes.manifests import PodWorkload

from .api import NAMESPACE, Cluster, standing_in

Post = Callable[..., tuple[int, str]]


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    cluster = Cluster()

    def post(path: str, body: dict[str, Any], **headers: str) -> tuple[int, str]:
        head = {"Authorization": f"Bearer {cluster.token}", **headers}
        request = urllib.request.Request(cluster.url + path, json.dumps(body).encode(), head)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()

    with standing_in(cluster, tmp_path):
        yield post


PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def pod(change: Callable[[dict[str, Any]], Any] = lambda spec: None, name: str = "a") -> dict[str, Any]:
    made = manifests.pod(PodWorkload(name="a", image="i", command=["sleep", "9"], selector={}, labels={}), name)
    change(made["spec"])
    return made


def container(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda spec: spec["containers"][0].update(changes)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (pod(lambda spec: spec.update(colour="red")), "colour"),
        (pod(container(image=7)), "image"),
        (pod(lambda spec: spec.pop("containers")), "containers"),
        (pod(name="Not_A_Name"), "metadata.name"),
        (pod(container(readinessProbe={"httpGet": {"path": "/", "port": "other"}})), "no port"),
        (pod(container(volumeMounts=[{"name": "none", "mountPath": "/x"}])), "volumeMounts"),
        (pod(container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "500m"}})), "cpu limit"),
        (pod(container(securityContext={})), "PodSecurity"),
        (pod(lambda spec: spec.update(hostNetwork=True)), "host namespaces"),
        (pod(lambda spec: spec["securityContext"].update(runAsUser=0)), "runAsUser=0"),
    ],
)
def test_a_pod_that_a_cluster_would_refuse(post: Post, body: dict[str, Any], said: str) -> None:
    status, text = post(PODS, body)
    assert (status, said in text) == (422, True), text


def test_requests_that_a_cluster_would_refuse(post: Post) -> None:
    assert post(PODS, pod(), Authorization="Bearer wrong")[0] == 401
    assert post(f"{PODS}?colour=red", pod())[0] == 422
    assert post(PODS.replace("/api/v1", "/apis/apps/v1"), pod())[0] == 422
    assert post(PODS.replace(NAMESPACE, "elsewhere"), pod())[0] == 404
    assert post("/api/v1/teapots", pod())[0] == 404
    labels = {"openenv.owner": "not a label"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "labels": labels}}
    assert post(PODS.replace("pods", "secrets"), secret)[0] == 422


def test_a_pod_that_a_cluster_takes_once(post: Post) -> None:
    assert post(PODS, pod())[0] == 201
    assert post(PODS, pod())[0] == 409
