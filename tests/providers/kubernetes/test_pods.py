"""What has become of a Pod."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.providers.kubernetes.pods import address_of, end_of, never_ran, unplaced


def pod(*states: dict[str, Any], **status: Any) -> dict[str, Any]:
    containers = [{"name": "server", "state": state} for state in states]
    return {"metadata": {"name": "a"}, "status": {"phase": "Running", "containerStatuses": containers, **status}}


def waiting(reason: str, message: str = "why") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


@pytest.mark.parametrize("state", [waiting("ContainerCreating"), waiting("ErrImagePull"), {"running": {}}, {}])
def test_one_on_its_way_is_there(state: dict[str, Any]) -> None:
    assert end_of(pod(state)) is None
    assert end_of({"metadata": {}}) is None


@pytest.mark.parametrize(
    "reason", ["ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"]
)
def test_one_that_cannot_start_says_why(reason: str) -> None:
    assert end_of(pod(waiting(reason))) == f"cannot start ({reason}: why)"
    assert end_of(pod({"waiting": {"reason": reason}})) == f"cannot start ({reason}: no reason given)"


def test_one_that_crashes_again_and_again() -> None:
    container = {
        "state": waiting("CrashLoopBackOff"),
        "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}},
    }
    found = pod(containerStatuses=[container])
    assert end_of(found) == "ended with exit code 3, repeatedly (CrashLoopBackOff)"
    assert not never_ran(found)


def test_one_that_ended() -> None:
    assert (
        end_of(pod({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}))
        == "ended with exit code 137 (OOMKilled)"
    )
    assert end_of(pod({"terminated": {"exitCode": 0, "reason": "Completed"}})) == "ended with exit code 0"
    evicted = pod(phase="Failed", reason="Evicted", message="the node was low on memory")
    assert end_of(evicted) == "was ended by the cluster (Evicted: the node was low on memory)"
    assert end_of(pod(phase="Failed")) == "was ended by the cluster (Failed)"


@pytest.mark.parametrize(
    ("reason", "message"),
    [("Evicted", "The node was low on resource: memory."), ("DeadlineExceeded", "Pod was active longer than 60 s")],
)
@pytest.mark.parametrize("code", [0, 137])
def test_one_that_the_cluster_ended_says_why_whatever_its_exit_code(reason: str, message: str, code: int) -> None:
    found = pod(
        {"terminated": {"exitCode": code, "reason": "Completed"}}, phase="Failed", reason=reason, message=message
    )
    assert end_of(found) == f"was ended by the cluster ({reason}: {message})"


def test_one_whose_program_could_not_be_started_says_why() -> None:
    message = 'exec: "no-such-program": executable file not found in $PATH'
    found = pod({"terminated": {"exitCode": 128, "reason": "StartError", "message": message}})
    assert end_of(found) == f"ended with exit code 128 (StartError: {message})"


@pytest.mark.parametrize(
    "message", ["failed to sync secret cache: timed out waiting for the condition", "etcdserver: request timed out"]
)
def test_one_whose_kubelet_has_no_answer_yet_is_on_its_way(message: str) -> None:
    assert end_of(pod({"waiting": {"reason": "CreateContainerConfigError", "message": message}})) is None
    told = end_of(pod({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "a" not found'}}))
    assert told == 'cannot start (CreateContainerConfigError: secret "a" not found)'


def test_one_that_is_started_again_is_not_at_its_end_between_two_lives() -> None:
    found = pod({"terminated": {"exitCode": 1, "reason": "Error"}})
    assert end_of(found) == "ended with exit code 1"
    found["spec"] = {"restartPolicy": "Always"}
    assert end_of(found) is None


def test_a_container_that_prepared_the_others_and_is_done_is_no_end() -> None:
    prepared = [{"state": {"terminated": {"exitCode": 0}}, "ready": True}]
    assert end_of(pod({"running": {}}, initContainerStatuses=prepared)) is None


def test_one_that_makes_way() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drain"}
    found = pod({"running": {}}, conditions=[condition])
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    removed = "is being removed from the cluster (EvictionByEvictionAPI: drain)"
    assert end_of(found) == removed
    found["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 137, "reason": "Error"}}
    assert end_of(found) == f"{removed}; it ended with exit code 137"


def test_one_that_no_node_takes() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert unplaced(pod(conditions=[condition])) == "fits on no node (Unschedulable: 0/3 nodes)"
    assert unplaced(pod(conditions=[condition | {"reason": "SchedulerError"}])) is None
    assert unplaced(pod(conditions=[condition | {"status": "True"}])) is None
    assert unplaced(pod()) is None


def test_addresses() -> None:
    assert address_of(pod()) is None
    assert address_of(pod(podIP="10.1.2.3")) == "10.1.2.3"
    assert address_of(pod(podIP="fd00::3")) == "[fd00::3]"
