"""What a specification means in the words of the Docker SDK."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.errors import UsageError
from openenv.providers import Capabilities, Deployment, LaunchSpec, Resources, Server, SingleServerProvider, StartRate
from openenv.providers.docker import KEPT_CAPABILITIES, container_port, gpus_for, request

pytest.importorskip("docker")


class Place(SingleServerProvider):
    capabilities = Capabilities(forms=frozenset({"image"}), gpus=True, options=None)
    start_rate = StartRate()

    async def start_server(self, deployment: Deployment, server: Server) -> None: ...

    async def stop_server(self, server: Server) -> None: ...

    async def why_gone(self, server: Server) -> str | None: ...

    async def read_log(self, server: Server, lines: int) -> str: ...

    async def find_leftovers(self) -> list[Any]: ...

    async def remove_leftover(self, leftover: Any) -> None: ...


def asked(network: str | None = None, **facts: Any) -> dict[str, Any]:
    """What is asked for a server of an image with these facts."""
    deployment = Deployment(Place(), LaunchSpec(image="img", **facts))
    return request(deployment, deployment.new_server(), gpus_for(deployment), network)


def test_what_nobody_has_spoken_of() -> None:
    given = asked()
    assert given["name"].startswith("openenv-img-")
    assert given["ports"] == {"8000/tcp": ("127.0.0.1", None)}
    assert given["environment"]["OPENENV_API_KEYS"].startswith("control:")
    assert given["labels"]["openenv.provider"] == "Place"
    assert given["cap_drop"] == ["ALL"]
    assert given["cap_add"] == [*KEPT_CAPABILITIES]
    assert given["security_opt"] == ["no-new-privileges"]
    assert not given.keys() & {"mem_limit", "nano_cpus", "pids_limit", "device_requests", "command", "tmpfs"}


def test_limits_and_a_command() -> None:
    given = asked(resources=Resources(cpus=1.5, memory="1g", processes=9), command=["serve", "it"], port=9000)
    assert (given["nano_cpus"], given["pids_limit"], given["command"]) == (1_500_000_000, 9, ["serve", "it"])
    assert given["mem_limit"] == given["memswap_limit"] == 1 << 30
    assert given["ports"] == {"9000/tcp": ("127.0.0.1", None)}


def test_options_win() -> None:
    options = {"mem_limit": "2g", "command": "other", "shm_size": "1g", "labels": {"team": "a"}, "host_port": 4711}
    given = asked(resources=Resources(memory="1g"), command=["serve"], options=options)
    assert (given["mem_limit"], given["command"], given["shm_size"]) == ("2g", "other", "1g")
    assert given["labels"]["team"] == "a"
    assert given["ports"] == {"8000/tcp": ("127.0.0.1", 4711)}
    assert "host_port" not in given


def test_labels_of_ours_cannot_be_changed() -> None:
    given = asked(options={"labels": {"openenv.owner": "somebody"}})
    assert given["labels"]["openenv.owner"] != "somebody"
    assert asked(options={"labels": ["team"]})["labels"]["team"] == ""


@pytest.mark.parametrize(
    ("options", "dropped", "added", "security"),
    [
        ({"cap_drop": ["ALL"]}, ["ALL"], None, ["no-new-privileges"]),
        ({"cap_drop": ["NET_RAW"], "cap_add": ["SYS_PTRACE"]}, ["NET_RAW"], ["SYS_PTRACE"], ["no-new-privileges"]),
        ({"cap_add": ["SYS_PTRACE"]}, ["ALL"], [*KEPT_CAPABILITIES, "SYS_PTRACE"], ["no-new-privileges"]),
        ({"security_opt": []}, ["ALL"], [*KEPT_CAPABILITIES], []),
        ({"privileged": True}, None, None, None),
    ],
)
def test_privileges(options: dict[str, Any], dropped: Any, added: Any, security: Any) -> None:
    given = asked(options=options)
    assert (given.get("cap_drop"), given.get("cap_add"), given.get("security_opt")) == (dropped, added, security)


def test_a_read_only_root_has_a_tmp() -> None:
    assert asked(options={"read_only": True})["tmpfs"] == {"/tmp": ""}
    assert asked(options={"read_only": True, "tmpfs": {"/run": ""}})["tmpfs"] == {"/run": ""}


def test_without_a_network_no_port_is_published() -> None:
    given = asked("line", options={"network": "none"})
    assert given["network"] == "line"
    assert "ports" not in given
    with pytest.raises(UsageError, match="4711.*leave out one"):
        asked("line", options={"network": "none", "host_port": 4711})


@pytest.mark.parametrize(("name", "instead"), [("environment", "env_vars"), ("ports", "port"), ("image", "image")])
def test_what_is_said_elsewhere_is_no_option(name: str, instead: str) -> None:
    with pytest.raises(UsageError, match=f"the option {name} is not supported.*{instead}"):
        asked(options={name: {}})


def test_gpus_are_had_by_one_server_each() -> None:
    deployment = Deployment(Place(), LaunchSpec(image="img", resources=Resources(gpus=2), one_per_gpu=True))
    seen = []
    for _ in range(2):
        server = deployment.new_server()
        gpus = gpus_for(deployment)
        server.handle = type("Handle", (), {"gpus": gpus})
        (wanted,) = request(deployment, server, gpus, None)["device_requests"]
        seen.append(wanted["DeviceIDs"])
    assert seen == [["0"], ["1"]]


def test_a_server_more_than_was_asked_for_has_gpus_of_its_own_too() -> None:
    deployment = Deployment(Place(), LaunchSpec(image="img", resources=Resources(gpus=2)))
    seen = []
    for _ in range(3):
        deployment.new_server().handle = handle = type("Handle", (), {"gpus": gpus_for(deployment)})
        seen.append(handle.gpus)
    assert seen == [("0", "1"), ("2", "3"), ("4", "5")]


def test_the_port_inside() -> None:
    assert container_port(LaunchSpec(image="img")) == 8000
    assert container_port(LaunchSpec(image="img", port=80)) == 80
