"""Why a server does not start, or has ended: a real cluster's words in our errors, long before a wait is over."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, OpenEnvError
from openenv.providers import LaunchSpec, Resources
from openenv.testing.misbehaving import DIE

from .conftest import Space, space_of
from .parts.cluster import Cluster
from .parts.servers import READY_S, at_length, fails, gone, plays, serving

pytestmark = pytest.mark.real

SOON_S = 180.0
WRITES = "open('/tmp/much', 'wb').write(b'x' * 8_000_000); import time; time.sleep(600)"


def running(code: str, **changes: Any) -> LaunchSpec:
    spec = serving(**changes)
    assert spec.command is not None
    return spec.changed(command=[spec.command[0], "-c", code])


NEVER = {
    "no such image": (
        serving(image="127.0.0.1:1/missing:1", options={"pull_policy": "IfNotPresent"}),
        ['ImagePullBackOff: Back-off pulling image "127.0.0.1:1/missing:1"', "connection refused"],
    ),
    "no image of that name": (serving(image="Bad//Name:"), ["InvalidImageName"]),
    "an image that may not be pulled": (serving(image="openenv.test/other:1"), ["ErrImageNeverPull"]),
    "no node": (serving(resources=Resources(gpus=99)), ["Unschedulable: 0/1 nodes", "nvidia.com/gpu"]),
    "no such program": (
        serving(command=["no-such-program"]),
        ["StartError", '"no-such-program": executable file not found in $PATH'],
    ),
    "no such configuration": (
        serving(
            options={
                "container": {
                    "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "no-such-map", "key": "a"}}}]
                },
            }
        ),
        ['CreateContainerConfigError: configmap "no-such-map" not found'],
    ),
    "a crash": (serving("crash"), ["exit code 3", "crashing on purpose"]),
    "crashes, again and again": (
        serving("crash", options={"restart": True}),
        ["exit code 3, repeatedly (CrashLoopBackOff)", "crashing on purpose"],
    ),
    "too little memory": (
        running("x = bytearray(10**9)", resources=Resources(memory="64m")),
        ["exit code 137 (OOMKilled"],
    ),
    "the image's user is root": (serving(options={"user": None}), ["CreateContainerConfigError", "root"]),
    "a lifetime that is over before it is ready": (
        serving("hang", options={"lifetime_s": 5}),
        ["was ended by the cluster (DeadlineExceeded: Pod was active on the node longer than the specified deadline"],
    ),
}
REFUSED = {
    "no such runtime class": (serving(options={"runtime_class": "gvisor"}), 'RuntimeClass "gvisor" not found'),
    "requests beyond limits": (
        serving(resources=Resources(cpus=1), options={"requests": {"cpu": "2"}}),
        "must be less than or equal to cpu limit",
    ),
    "variables of 1.2 MB": (serving(env_vars={"BIG": "x" * 1_200_000}), "must have at most 1048576 bytes"),
}


@pytest.fixture(scope="module")
def said(cluster: Cluster) -> dict[str, str]:
    """What `ready` says of each of those that will never be one: all at once, as their ends take long."""

    async def of_one(space: Space, spec: LaunchSpec) -> str:
        async with await space.provider(reach="forward").launch(spec) as deployment:
            return await fails(deployment, SOON_S)

    async def of_all(space: Space) -> list[str]:
        return await asyncio.gather(*(of_one(space, spec) for spec, _ in NEVER.values()))

    with space_of(cluster) as space:
        return dict(zip(NEVER, asyncio.run(of_all(space)), strict=True))


@pytest.mark.parametrize("why", NEVER)
def test_a_server_that_will_never_be_one_ends_the_wait_with_the_clusters_reason(
    said: dict[str, str], why: str
) -> None:
    for each in NEVER[why][1]:
        assert each in said[why]


@pytest.mark.parametrize("why", REFUSED)
@at_length
async def test_what_the_cluster_refuses_fails_the_launch_with_its_words(space: Space, why: str) -> None:
    spec, told = REFUSED[why]
    with pytest.raises(LaunchFailed, match=told):
        await space.provider().launch(spec)


@at_length
async def test_a_pod_that_uses_more_disk_than_it_may_is_evicted_and_says_so(space: Space) -> None:
    limit = {"resources": {"limits": {"ephemeral-storage": "2Mi"}}}
    container = {**serving().options["container"], **limit}
    spec = running(WRITES, options={"container": container})
    async with await space.provider().launch(spec) as deployment:
        said = await gone(deployment, 120.0)
    assert said.startswith("was ended by the cluster (Evicted: ")
    assert "ephemeral" in said or "emptyDir" in said


@at_length
async def test_a_pod_that_is_evicted_by_request_is_gone(space: Space) -> None:
    async with await space.provider().launch(serving()) as deployment:
        await deployment.ready(READY_S)
        name = deployment.servers[0].name
        what = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{space.name}/pods/{name}/eviction"
        await asyncio.to_thread(space.kubectl, "create", "--raw", path, "-f", "-", given=json.dumps(what))
        said = await gone(deployment, 30.0)
        assert "is being removed from the cluster" in said or "its Pod was deleted" in said
        assert deployment.urls == []


@at_length
async def test_a_server_whose_lifetime_is_over_while_it_serves_says_so(space: Space) -> None:
    async with await space.provider().launch(serving(options={"lifetime_s": 45})) as deployment:
        await deployment.ready(READY_S)
        await plays(deployment)
        said = await gone(deployment, SOON_S)
    assert said.startswith("was ended by the cluster (DeadlineExceeded: ")


@at_length
async def test_one_that_is_started_again_is_never_gone_between_two_lives(space: Space) -> None:
    spec = serving("die-on-step", options={"restart": True}, env_vars={"OPENENV_RESUME_WINDOW_S": "1"})
    async with await space.provider().launch(spec) as deployment:
        await deployment.ready(READY_S)
        server, seen = deployment.servers[0], set()
        address = server.url

        async def looks() -> None:
            while True:
                await deployment.refresh()
                seen.add(server.gone)
                await asyncio.sleep(0.02)

        looking = asyncio.ensure_future(looks())
        async with GenericEnvClient(deployment.url, api_key=deployment.api_key) as env:
            await env.reset()
            with pytest.raises(OpenEnvError):
                await env.step({"message": DIE})
        await deployment.ready(READY_S)
        looking.cancel()
        await asyncio.wait([looking])
        assert seen == {None}
        assert server.url == address
        await plays(deployment)


# Rights.


@pytest.mark.parametrize("verbs", [[], ["get"], ["create"]])
@at_length
async def test_without_the_right_to_forward_ports_the_wait_ends_with_what_is_missing(
    space: Space, verbs: list[str]
) -> None:
    rules = [rule for rule in space.cluster.rules(space.name) if rule["resources"] != ["pods/portforward"]]
    if verbs:
        rules.append({"apiGroups": [""], "resources": ["pods/portforward"], "verbs": verbs})
    space.cluster.set_rules(space.name, rules)
    async with await space.provider(reach="forward").launch(serving()) as deployment:
        if verbs == ["get"]:  # which is what a WebSocket asks for, before 1.30
            await deployment.ready(READY_S)
            await plays(deployment)
            return
        said = await fails(deployment, SOON_S)
    assert "cannot be reached: the cluster's API answers 403 to a port-forward" in said
    assert f'User "system:serviceaccount:{space.name}:trainer" cannot get resource "pods/portforward"' in said
    assert "the role of this account needs create and get of pods/portforward" in said


@at_length
async def test_an_account_without_any_rights_fails_the_launch_with_what_is_missing(space: Space) -> None:
    space.cluster.set_rules(space.name, [])
    deployment = space.provider().deployment(serving())
    with pytest.raises(LaunchFailed, match='cannot create resource "secrets"'):
        await deployment.start()
    await deployment.stop()  # there is nothing to be removed, which this account may not do either
