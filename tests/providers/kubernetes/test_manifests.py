"""What a cluster is asked for: held against the published schemas of every version, and read."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from openenv.errors import UsageError
from openenv.providers.kubernetes import manifests
from openenv.providers.kubernetes.manifests import PodOptions, PodWorkload
from openenv.providers.spec import LaunchSpec, Resources

from .rules import breaches, restricted
from .schemas import faults_of

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="make infra installs it")

KEY = "control:a-key-that-is-long-enough"
LABELS = {"openenv.deployment": "openenv-echo-1", "openenv.owner": "h" * 20 + "_" + "b" * 23 + "_1234567_1234567890"}
VERSIONS = ["1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37"]


def workload(
    variables: dict[str, str] | None = None, resources: Resources | None = None, **options: Any
) -> PodWorkload:
    return PodWorkload(
        name="openenv-echo-1",
        image="echo:1",
        selector={"openenv.deployment": "openenv-echo-1"},
        labels=LABELS,
        variables=variables or {"OPENENV_API_KEYS": KEY},
        resources=resources or Resources(),
        options=PodOptions(**options),
    )


def everything(of: PodWorkload) -> list[dict[str, Any]]:
    return [
        manifests.namespace("training"),
        manifests.secret(of),
        manifests.pod(of, "openenv-echo-1-a"),
        manifests.deployment(of, 3),
        manifests.deployment(of, None),
        manifests.service(of),
        manifests.headless_service(of),
        manifests.autoscaler(of, 1, 8, 64),
        manifests.disruption_budget(of),
        manifests.network_policy(of),
        manifests.prepull(of),
    ]


FULL = workload(
    resources=Resources(cpus=1.5, memory="512m", gpus=2),
    runtime_class="gvisor",
    pull_policy="IfNotPresent",
    pull_secrets=["registry"],
    node_selector={"pool": "envs"},
    tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    labels={"team": "a"},
    annotations={"note": "with spaces, and more"},
    requests={"cpu": "500m"},
    callers={"app": "trainer"},
    pod={"priorityClassName": "low", "volumes": [{"name": "data", "emptyDir": {}}]},
    container={"volumeMounts": [{"name": "data", "mountPath": "/data"}], "env": [{"name": "A", "value": "b"}]},
)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_takes_every_manifest(version: str) -> None:
    for of in (workload(), FULL):
        for manifest in everything(of):
            kubernetes_validate.validate(manifest, version, strict=True)
            assert faults_of(manifest, version) == []


def test_nothing_is_refused_for_what_schemas_do_not_say() -> None:
    for of in (workload(), FULL):
        for manifest in everything(of):
            assert breaches(manifest) == []


def test_no_pod_may_do_more_than_the_standard_restricted_allows() -> None:
    for of in (workload(), FULL):
        assert restricted(manifests.pod(of, "a")["spec"]) == []
        for made in (manifests.deployment(of, 1), manifests.prepull(of)):
            assert restricted(made["spec"]["template"]["spec"]) == []
    spec = manifests.pod(workload(), "a")["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_key_stands_in_the_secret_alone() -> None:
    for manifest in everything(workload({"OPENENV_API_KEYS": KEY, "WHATEVER": "what-nobody-would-guess"})):
        for value in (KEY, "what-nobody-would-guess"):
            coded = base64.b64encode(value.encode()).decode()
            assert value not in json.dumps(manifest)
            assert (coded in json.dumps(manifest)) == (manifest["kind"] == "Secret")
    assert KEY not in repr(workload())


def test_a_server_has_its_grace_before_its_pod_is_killed() -> None:
    for grace, settled in (("120", True), ("0", False)):
        spec = manifests.pod(workload({"OPENENV_GRACE_S": grace}), "a")["spec"]
        assert spec["terminationGracePeriodSeconds"] > float(grace) + (5 if settled else 0)
        # New connections stop before the server hears of its end: those who open them must have heard first.
        assert ("lifecycle" in spec["containers"][0]) == settled
    with pytest.raises(UsageError, match="OPENENV_GRACE_S"):
        workload({"OPENENV_GRACE_S": "long"})


def test_probes_ask_the_route_that_needs_no_key() -> None:
    container = manifests.pod(workload(start_s=45), "a")["spec"]["containers"][0]
    for probe, path in (("startupProbe", "/health"), ("readinessProbe", "/ready"), ("livenessProbe", "/health")):
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 45


def test_limits_requests_and_gpus() -> None:
    container = manifests.pod(FULL, "a")["spec"]["containers"][0]
    assert container["resources"] == {
        "requests": {"cpu": "500m", "memory": "512Mi"},
        "limits": {"cpu": "1500m", "memory": "512Mi", "nvidia.com/gpu": "2"},
    }
    assert "resources" not in manifests.pod(workload(), "a")["spec"]["containers"][0]
    plain = manifests.pod(workload(resources=Resources(cpus=2048, memory=1000)), "a")["spec"]["containers"][0]
    assert plain["resources"]["limits"] == {"cpu": "2048", "memory": "1000"}


def test_a_policy_lets_in_one_port_and_nothing_out() -> None:
    spec = manifests.network_policy(workload())["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"] == [{"ports": [{"port": 8000, "protocol": "TCP"}]}]
    assert spec["egress"] == []
    assert manifests.network_policy(workload(egress=True))["spec"]["egress"] == [{}]
    from_whom = manifests.network_policy(FULL)["spec"]["ingress"][0]["from"]
    assert from_whom == [{"podSelector": {"matchLabels": {"app": "trainer"}}}]


def test_an_autoscaler_goes_by_the_metric_of_sessions() -> None:
    spec = manifests.autoscaler(workload(), 1, 8, 64)["spec"]
    (metric,) = spec["metrics"]
    assert metric["pods"] == {
        "metric": {"name": "openenv_slots_held"},
        "target": {"type": "AverageValue", "averageValue": "64"},
    }
    assert "replicas" not in manifests.deployment(workload(), None)["spec"]


def test_what_is_given_for_pod_and_container_is_merged() -> None:
    spec = manifests.pod(FULL, "a")["spec"]
    assert spec["priorityClassName"] == "low"
    assert [each["name"] for each in spec["volumes"]] == ["writable-0", "data"]
    assert [each["mountPath"] for each in spec["containers"][0]["volumeMounts"]] == ["/tmp", "/data"]
    assert {"name": "A", "value": "b"} in spec["containers"][0]["env"]


def test_pods_that_only_hold_images_are_found_by_nobody() -> None:
    made = manifests.prepull(FULL)
    assert not made["spec"]["template"]["metadata"]["labels"].keys() & LABELS.keys()
    assert made["metadata"]["labels"].items() >= LABELS.items()
    assert made["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "envs"}


def test_single_pods_end_for_good_unless_asked_otherwise() -> None:
    assert manifests.pod(workload(), "a")["spec"]["restartPolicy"] == "Never"
    assert manifests.pod(workload(restart=True), "a")["spec"]["restartPolicy"] == "Always"
    assert manifests.pod(workload(lifetime_s=60), "a")["spec"]["activeDeadlineSeconds"] == 60


def test_variables_of_the_server_win_over_ours() -> None:
    given = manifests.pod(workload({"PORT": "9000"}), "a")["spec"]["containers"][0]["env"]
    assert given == [{"name": "HOST", "value": "0.0.0.0"}]


def test_what_goes_with_the_pod_of_a_trainer() -> None:
    owned = PodWorkload(
        name="a", image="i", selector={}, labels={}, owner={"name": "trainer-0", "uid": "1-2", "x": "y"}
    )
    for manifest in (manifests.secret(owned), manifests.pod(owned, "b")):
        (reference,) = manifest["metadata"]["ownerReferences"]
        assert reference == {"apiVersion": "v1", "kind": "Pod", "name": "trainer-0", "uid": "1-2"}
        assert faults_of(manifest, "1.34") == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"pull_policy": "Sometimes"}, "pull_policy"),
        ({"user": 0}, "user"),
        ({"lifetime_s": 0}, "lifetime_s"),
        ({"start_s": -1.0}, "start_s"),
        ({"requests": {"cpu": "much"}}, "requests"),
        ({"labels": "a=b"}, "labels must be a mapping"),
        ({"writable": "/tmp"}, "writable must be a list"),
        ({"lifetime_s": "long"}, "lifetime_s must be a number"),
        ({"policy": False, "callers": {"a": "b"}}, "callers"),
    ],
)
def test_options_of_no_such_value(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        PodOptions(**options)


def test_variables_of_names_that_a_cluster_would_leave_out() -> None:
    with pytest.raises(UsageError, match="1st"):
        workload({"1st": "x"})
    with pytest.raises(UsageError, match="WITH SPACE"):
        workload({"WITH SPACE": "x"})


def test_one_server_for_each_gpu() -> None:
    spec = LaunchSpec(image="a", resources=Resources(gpus=4), one_per_gpu=True)
    of = PodWorkload.of(spec, "n", {}, {}, {})
    assert (spec.count, manifests.pod(of, "a")["spec"]["containers"][0]["resources"]["limits"]) == (
        4,
        {"nvidia.com/gpu": "1"},
    )
