"""What the swarm provider asks an engine for, and what it makes of its answers. `tests/infra` has a real swarm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, NotReady, ProviderBusy, ProviderFailed, UsageError
from openenv.providers import DockerSwarmProvider, LaunchSpec, Resources, StartRate, swarm_api
from openenv.providers.owner import OwnerProcess
from openenv.providers.swarm_api import logged_by, slots_of

from ..asynchronous import until
from .engine import Engine

pytest.importorskip("docker")
SECRETS = {"MY_TOKEN": "hush-hush"}
SPEC = LaunchSpec(image="img:1")


def without_nulls(value: Any) -> Any:
    """As an engine tells it again."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return value


@pytest.fixture(params=["ingress", "host"])
def swarm(engine: Engine, request: pytest.FixtureRequest) -> Iterator[DockerSwarmProvider]:
    with DockerSwarmProvider(publish=request.param, start_rate=StartRate(pause_s=0.01)) as provider:
        yield provider


@pytest.fixture
def hosts(engine: Engine) -> Iterator[DockerSwarmProvider]:
    with DockerSwarmProvider(publish="host", start_rate=StartRate(pause_s=0.01), start_timeout_s=0.3) as provider:
        yield provider


def test_an_episode_in_a_swarm(swarm: DockerSwarmProvider, engine: Engine) -> None:
    """The stand-in asks for no key; that one was made for it is what counts."""
    with GenericEnvClient.from_docker_image("img:1", swarm, replicas=3) as env:
        env.reset()
        assert env.step({"by": 2}).observation["total"] == 2
        asked = engine.made["service"]
    assert asked["Mode"] == {"replicated": {"Replicas": 3}}
    variables = asked["TaskTemplate"]["ContainerSpec"]["Env"]
    assert set(variables) == {f"OPENENV_API_KEYS=control:{swarm.api_key}", "OPENENV_GRACE_S=0"}
    assert swarm.api_key is not None
    assert engine.made["swarm"]["AdvertiseAddr"] == "127.0.0.1"
    assert "DELETE /services/s1" in engine.asked


def test_replicas_of_a_published_environment_are_a_swarm(engine: Engine) -> None:
    with GenericEnvClient.from_hub("team/env", replicas=2) as env:
        env.reset()
        assert engine.made["service"]["Mode"] == {"replicated": {"Replicas": 2}}
    assert "service" not in engine.made


def test_what_a_service_is_asked_for(engine: Engine) -> None:
    with DockerSwarmProvider(overlay_network="net", publish="ingress", grace_s=20) as swarm:
        swarm.start_container(
            "img:1",
            4711,
            {"A": "b"},
            cpu_limit=0.5,
            memory_limit="512m",
            constraints=["node.role==worker"],
            labels={"team": "a"},
            command="serve echo",
        )
        asked, task = engine.made["service"], engine.made["service"]["TaskTemplate"]
        assert (engine.made["network"]["Name"], engine.made["network"]["Driver"]) == ("net", "overlay")
        with pytest.raises(UsageError, match="already"):
            swarm.start_container("img:1")
    assert asked["EndpointSpec"] == {
        "Mode": "vip",
        "Ports": [{"Protocol": "tcp", "TargetPort": 8000, "PublishMode": "ingress", "PublishedPort": 4711}],
    }
    labels = {"openenv.provider": "DockerSwarmProvider", "openenv.owner": str(OwnerProcess.this())}
    labels["openenv.deployment"] = asked["Name"]
    assert asked["Labels"] == {"team": "a", **labels}
    assert task["ContainerSpec"]["Labels"] == labels
    assert task["Resources"]["Limits"] == {"NanoCPUs": 500_000_000, "MemoryBytes": 512 * 1024 * 1024}
    assert task["Placement"] == {"Constraints": ["node.role==worker"]}
    assert task["ContainerSpec"]["Args"] == ["serve", "echo"]
    assert task["ContainerSpec"]["Image"] == "img:1"
    assert "OPENENV_GRACE_S=20" in task["ContainerSpec"]["Env"]
    assert task["ContainerSpec"]["StopGracePeriod"] == 25 * 10**9
    assert task["RestartPolicy"]["Condition"] == "any"
    assert asked["UpdateConfig"]["Order"] == "start-first"
    assert "network" not in engine.made  # it was ours


def test_what_a_specification_asks_for(hosts: DockerSwarmProvider, engine: Engine) -> None:
    resources = Resources(cpus=2, memory="1g", processes=64, gpus=3)
    options = {"preferences": [("spread", "node.labels.rack")], "maxreplicas": 2, "secrets": ["of-the-model"]}
    spec = SPEC.changed(port=9000, resources=resources, one_per_gpu=True, command=["a", "b c"], options=options)
    deployment = asyncio.run(hosts.launch(spec))
    asked, task = engine.made["service"], engine.made["service"]["TaskTemplate"]
    assert asked["Mode"] == {"replicated": {"Replicas": 3}}
    assert asked["EndpointSpec"] == {
        "Mode": "dnsrr",
        "Ports": [{"Protocol": "tcp", "TargetPort": 9000, "PublishMode": "host"}],
    }
    assert task["Resources"]["Limits"] == {"NanoCPUs": 2 * 10**9, "MemoryBytes": 1 << 30, "Pids": 64}
    gpus = [{"DiscreteResourceSpec": {"Kind": "NVIDIA-GPU", "Value": 1}}]
    assert task["Resources"]["Reservations"] == {"GenericResources": gpus}
    assert task["Placement"]["Preferences"] == [{"Spread": {"SpreadDescriptor": "node.labels.rack"}}]
    assert task["Placement"]["MaxReplicas"] == 2
    assert task["ContainerSpec"]["Args"] == ["a", "b c"]
    assert [secret["SecretID"] for secret in task["ContainerSpec"]["Secrets"]] == ["secret-1"]
    assert len(deployment.urls) == 3
    asyncio.run(deployment.stop())


def test_an_endpoint_of_ones_own_says_how_it_is_published(engine: Engine) -> None:
    from docker.types import EndpointSpec

    ports = [{"Protocol": "tcp", "TargetPort": 8000, "PublishedPort": 4711, "PublishMode": "host"}]
    with DockerSwarmProvider(publish="ingress") as swarm:
        swarm.start_container("img:1", replicas=2, endpoint_spec=EndpointSpec(ports=ports))
        assert engine.made["service"]["EndpointSpec"]["Ports"] == ports
        assert swarm.current is not None
        assert len(swarm.current.servers) == 2


def test_an_image_that_was_never_at_a_registry_is_not_looked_for_at_one(
    hosts: DockerSwarmProvider, engine: Engine
) -> None:
    engine.images.add("built-here")
    hosts.start_container("built-here")
    assert engine.made["service"]["TaskTemplate"]["ContainerSpec"]["Image"] == "sha256:1"


def test_scaling_repeats_what_the_service_is(hosts: DockerSwarmProvider, engine: Engine) -> None:
    deployment = asyncio.run(hosts.launch(SPEC))
    before = without_nulls(engine.made["service"])
    engine.excuses = [(500, "rpc error: code = Unknown desc = update out of sequence")] * 2
    asyncio.run(deployment.scale(3))
    after = engine.made["service"]
    assert after["Mode"] == {"Replicated": {"Replicas": 3}}
    for name in ("Name", "Labels", "TaskTemplate", "EndpointSpec", "UpdateConfig"):
        assert after[name] == before[name]
    assert len(deployment.servers) == 3
    asyncio.run(deployment.scale(1))
    assert len(deployment.servers) == 1
    asyncio.run(deployment.stop())
    assert deployment.servers == []


def test_many_are_started_in_waves(engine: Engine) -> None:
    with DockerSwarmProvider(publish="host", start_rate=StartRate(at_once=4)) as swarm:
        deployment = asyncio.run(swarm.launch(SPEC.changed(replicas=10)))
        assert engine.asked.count("POST /services/s1/update") == 2
        assert len(deployment.urls) == 10
        asyncio.run(deployment.stop())


def test_an_engine_that_is_busy_is_asked_again(hosts: DockerSwarmProvider, engine: Engine) -> None:
    engine.excuses = [(503, "the swarm has no leader at the moment")] * 2
    hosts.start_container("img:1")
    hosts.stop_container()
    engine.excuses = [(503, "the swarm has no leader at the moment")] * 3
    with pytest.raises(ProviderBusy, match="no leader"):
        hosts.start_container("img:1")


@pytest.mark.parametrize("manages", [False, True])
def test_a_swarm_that_is_not_to_be_made(engine: Engine, manages: bool) -> None:
    with pytest.raises(ProviderFailed, match="docker swarm init"):
        DockerSwarmProvider(auto_init_swarm=False)
    engine.in_swarm, engine.manages = True, manages
    with DockerSwarmProvider(auto_init_swarm=False) as swarm:
        if manages:
            swarm.start_container("img:1")
        else:
            with pytest.raises(ProviderFailed, match="set DOCKER_HOST to a manager"):
                swarm.start_container("img:1")
    assert "POST /swarm/init" not in engine.asked


def test_looking_for_leftovers_makes_no_swarm(engine: Engine) -> None:
    with DockerSwarmProvider() as swarm:
        assert asyncio.run(swarm.leftovers()) == []
    assert "POST /swarm/init" not in engine.asked


def test_leftovers_are_told_by_their_labels_and_discarded(engine: Engine) -> None:
    with DockerSwarmProvider(overlay_network="net", publish="host") as swarm:
        deployment = asyncio.run(swarm.launch(SPEC))
        found = asyncio.run(swarm.leftovers())
        assert [(each.kind, each.name) for each in found] == [("service", deployment.name), ("network", "net")]
        assert {(each.deployment, each.owner) for each in found} == {(deployment.name, OwnerProcess.this())}
        for each in found:
            asyncio.run(swarm.discard(each))
            asyncio.run(swarm.discard(each))
        assert not engine.made.keys() & {"service", "network"}
        asyncio.run(deployment.refresh())
        with pytest.raises(ProviderFailed, match="was removed from the swarm"):
            _ = deployment.url
        asyncio.run(deployment.stop())


def test_a_service_that_fails_says_why_at_once(hosts: DockerSwarmProvider, engine: Engine) -> None:
    engine.status, engine.log = "rejected", "no model for hush-hush\n"
    with pytest.raises(LaunchFailed, match=r"was rejected \(no such program, key \*\*\*\)(.|\n)*no model for \*\*\*"):
        hosts.start_container("img:1", env_vars=SECRETS)
    assert "service" not in engine.made


def test_a_service_that_fails_before_it_is_ready(swarm: DockerSwarmProvider, engine: Engine) -> None:
    engine.port = 1
    url = swarm.start_container("img:1", env_vars=SECRETS)
    engine.status = "failed"
    with pytest.raises(LaunchFailed, match=r"failed \(no such program, key \*\*\*\)(.|\n)*ends with:\nup"):
        swarm.wait_for_ready(url)
    swarm.stop_container()
    swarm.stop_container()
    with pytest.raises(UsageError, match="start it first"):
        swarm.wait_for_ready(url)


def test_an_image_that_nodes_do_not_have(hosts: DockerSwarmProvider, engine: Engine) -> None:
    engine.status, engine.reason = "rejected", "No such image: img:1"
    with pytest.raises(LaunchFailed, match="load it on every node, push it to a registry, or set constraints"):
        hosts.start_container("img:1")


def test_a_swarm_without_room(hosts: DockerSwarmProvider, engine: Engine) -> None:
    engine.status, engine.reason = "pending", "no suitable node (insufficient resources on 2 nodes)"
    with pytest.raises(NotReady, match=r"start_timeout_s\): the state of one is pending: no suitable node"):
        hosts.start_container("img:1")
    assert "service" not in engine.made


def test_a_service_that_somebody_removed_is_made_again(hosts: DockerSwarmProvider, engine: Engine) -> None:
    deployment = asyncio.run(hosts.launch(SPEC.changed(replicas=2)))
    del engine.made["service"]
    asyncio.run(deployment.refresh())
    assert [server.gone for server in deployment.servers] == ["was removed from the swarm"] * 2
    asyncio.run(deployment.scale(3))
    assert len(deployment.urls) == len(deployment.servers) == 3
    asyncio.run(deployment.stop())


def test_what_is_on_its_way_is_not_gone_and_what_was_stopped_stays_so(
    hosts: DockerSwarmProvider, engine: Engine
) -> None:
    async def test() -> None:
        deployment = hosts.deployment(SPEC.changed(replicas=2))
        hosts._start_timeout_s, engine.status = 10.0, "preparing"
        starting = asyncio.ensure_future(deployment.start())
        await until(lambda: "GET /tasks" in engine.asked)
        await deployment.refresh()
        assert [(server.gone, server.url) for server in deployment.servers] == [(None, None)] * 2
        engine.status = "running"
        await starting
        assert len(deployment.urls) == 2
        engine.status = "preparing"
        await deployment.refresh()
        assert all("is being restarted (preparing" in str(server.gone) for server in deployment.servers)
        await asyncio.gather(deployment.refresh(), deployment.stop(), deployment.refresh())
        await deployment.refresh()
        assert deployment.servers == []

    asyncio.run(test())


def test_a_service_that_is_refused(hosts: DockerSwarmProvider, engine: Engine) -> None:
    engine.refusal = "port is already in use for hush-hush"
    with pytest.raises(LaunchFailed, match=r"starting a service of .* failed: .*in use for \*\*\*"):
        hosts.start_container("img:1", env_vars=SECRETS)
    assert engine.asked.count("POST /services/create") == 1


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"replicas": 0}, "replicas"),
        ({"nonsense": 1}, "nonsense"),
        ({"cpu_limit": 0}, "cpus"),
        ({"memory_limit": "much"}, "memory"),
    ],
)
def test_what_cannot_be_asked_for(hosts: DockerSwarmProvider, engine: Engine, given: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        hosts.start_container("img:1", **given)
    assert "service" not in engine.made


@pytest.mark.parametrize(
    ("given", "named"),
    [({"publish": "mesh"}, "mesh"), ({"publish": "dnsrr"}, "overlay_network"), ({"grace_s": -1}, "grace_s")],
)
def test_what_no_provider_can_be_made_with(engine: Engine, given: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        DockerSwarmProvider(**given)


def test_a_secret_that_the_swarm_does_not_have(hosts: DockerSwarmProvider, engine: Engine) -> None:
    with pytest.raises(ProviderFailed, match="no secret of-nobody: run docker secret create"):
        hosts.start_container("img:1", secrets=["of-nobody"])


def test_a_service_with_a_mode_of_its_own_is_not_scaled(hosts: DockerSwarmProvider, engine: Engine) -> None:
    from docker.types import ServiceMode

    options = {"mode": ServiceMode("replicated", 2)}
    deployment = asyncio.run(hosts.launch(SPEC.changed(options=options)))
    assert len(deployment.urls) == 2
    with pytest.raises(UsageError, match="the option `mode`"):
        asyncio.run(deployment.scale(3))
    asyncio.run(deployment.stop())


@pytest.mark.parametrize(("works", "publish"), [(True, "ingress"), (False, "host")])
def test_how_it_is_published_is_up_to_the_kernel(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, works: bool, publish: str
) -> None:
    monkeypatch.setattr("openenv.providers.swarm.mesh_works", lambda: works)
    with DockerSwarmProvider() as swarm:
        swarm.start_container("img:1")
    assert isinstance(swarm_api.mesh_works(), bool)
    del swarm


# Tasks.


def task(number: int, state: str, desired: str = "running", slot: int = 1, **more: Any) -> dict[str, Any]:
    status = {"State": state, "Err": more.pop("err", None), "Message": "told"}
    return {
        "ID": f"t{number}",
        "Slot": slot,
        "CreatedAt": f"2026-01-01T00:00:{number:02}.5Z",
        "DesiredState": desired,
        "Status": status,
        **more,
    }


def test_the_task_that_runs_is_the_server_and_the_youngest_is_the_one_to_come() -> None:
    ended = task(1, "failed", "shutdown", err="task: non-zero exit (7)")
    (slot,) = slots_of([task(2, "running"), ended]).values()
    assert (slot.running, slot.failure, slot.tasks) == (True, None, ("t1", "t2"))
    (slot,) = slots_of([ended, task(2, "preparing", "ready")]).values()
    assert (slot.running, slot.failure) == (False, "failed (task: non-zero exit (7))")
    assert slot.state == "preparing: told"
    (slot,) = slots_of([task(1, "preparing")]).values()
    assert (slot.running, slot.failure) == (False, None)
    # Of a rolling update that starts the new one first, the old one is still the server.
    (slot,) = slots_of([task(1, "running", NodeID="old"), task(2, "starting", "ready", NodeID="new")]).values()
    assert (slot.running, slot.node) == (True, "old")
    # A node that was drained, or does not answer any more.
    (slot,) = slots_of([task(1, "running", "shutdown"), task(2, "assigned")]).values()
    assert (slot.running, slot.failure) == (False, None)
    (slot,) = slots_of([task(1, "complete", "shutdown")]).values()
    assert slot.failure == "has ended (told)"


def test_slots_that_are_taken_away_do_not_count_and_the_others_are_in_order() -> None:
    tasks = [task(1, "running", "remove", slot=2), task(2, "running", slot=10), task(3, "running", slot=9)]
    assert list(slots_of(tasks)) == ["9", "10"]
    everywhere = {"ID": "t", "NodeID": "a-node", "DesiredState": "running", "Status": {"State": "running"}}
    assert list(slots_of([everywhere])) == ["a-node"]


def test_times_of_the_engine_are_compared_as_times() -> None:
    early = {**task(1, "failed", err="early"), "CreatedAt": "2026-01-01T00:00:01.75Z"}
    late = {**task(2, "failed", err="late"), "CreatedAt": "2026-01-01T00:00:01.7514Z"}
    (slot,) = slots_of([late, early]).values()
    assert slot.failure == "failed (late)"


def test_the_log_of_a_service_is_told_apart_by_task() -> None:
    log = b"a=1,com.docker.swarm.task.id=t1 hello there\ncom.docker.swarm.task.id=t11 not mine\n\n"
    assert logged_by(["t1"], log) == "hello there"
    assert logged_by([], log) == ""
