"""The cluster that these tests run on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from .conftest import PROGRAMS
from .parts.cluster import Cluster, cluster_of
from .parts.images import PAUSE
from .parts.programs import until

pytestmark = pytest.mark.real


def remains(name: str) -> list[str]:
    """What the machine has of a cluster."""
    found = [f"process {file.parent.name}" for file in Path("/proc").glob("[0-9]*/cmdline") if named(file, name)]
    found += [f"cgroup {folder}" for folder in Path("/sys/fs/cgroup").glob(f"*/{name}")]
    found += [f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if name in line]
    links = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout
    return found + [f"link {line}" for line in links.splitlines() if name in line]


def named(file: Path, name: str) -> bool:
    try:
        return name.encode() in file.read_bytes()
    except OSError:  # it has just ended
        return False


def test_it_is_the_version_that_it_says(cluster: Cluster) -> None:
    assert cluster.version == "v1.20.2"


def test_nothing_is_left_of_one_after_a_failure_with_pods_that_run(cluster: Cluster) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pause"},
        "spec": {"containers": [{"name": "pause", "image": PAUSE, "imagePullPolicy": "Never"}]},
    }
    settings = {
        file: file.read_text() for file in map(Path, ("/proc/sys/kernel/panic", "/proc/sys/net/ipv4/ip_forward"))
    }
    with pytest.raises(ZeroDivisionError):
        with cluster_of(PROGRAMS) as another:
            another.kubectl("apply", "-f", "-", given=json.dumps(pod))
            phase = ("get", "pod", "pause", "-o", "jsonpath={.status.phase}")
            until(lambda: another.kubectl(*phase) == "Running", 60.0, "the Pod does not run")
            assert len(remains(another.name)) > 5
            raise ZeroDivisionError
    assert remains(another.name) == []
    assert {file: file.read_text() for file in settings} == settings
