from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import openenv
from openenv.auto import AutoAction, AutoEnv
from openenv.client import EnvClient, GenericAction, GenericEnvClient
from openenv.envs.echo import EchoAction, EchoEnv
from openenv.envs.echo.server.app import app as echo
from openenv.errors import UnknownEnvironment, UsageError

from ..server.wires import served
from .distributions import files_of, install

FAST_URL = "http://localhost:8000"


def test_the_names_are_those_of_the_package() -> None:
    assert (openenv.AutoEnv, openenv.AutoAction) == (AutoEnv, AutoAction)


@pytest.mark.parametrize("make", [AutoEnv, AutoAction, lambda: AutoEnv("echo"), lambda: AutoAction(name="echo")])
def test_there_are_no_instances(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="from_env"):
        make()


def test_a_client_of_the_right_class_for_a_server(site: Path) -> None:
    install(site)
    client = AutoEnv.from_env("maze", base_url=FAST_URL, message_timeout_s=3, headers={"x": "y"})
    assert type(client) is AutoEnv.get_env_class("maze")
    assert isinstance(AutoEnv.from_hub("maze-env", FAST_URL), EnvClient)
    assert type(AutoEnv.from_env("echo", base_url=FAST_URL, env_vars={"A": "1"}, wait_timeout=1.0)) is EchoEnv


async def test_it_drives_an_environment(site: Path) -> None:
    with served(echo) as address:
        async with AutoEnv.from_env("echo-env", base_url=address) as env:
            await env.reset()
            result = await env.step(AutoAction.from_env("echo")(message="hi"))
            assert result.observation.echoed_message == "hi"
        await asyncio.to_thread(drive, AutoEnv.from_env("user/space", base_url=address, skip_install=True))


def drive(client: Any) -> None:
    with client.sync() as env:
        env.reset()
        assert env.step(GenericAction(message="hi")).observation["echoed_message"] == "hi"


def test_an_image_is_started_by_the_class_s_own_launcher(site: Path) -> None:
    install(site, files=files_of(client=LAUNCHING))
    launched = AutoEnv.from_env("maze", docker_image="maze:1", container_provider="P", env_vars={"A": "1"}, port=7)
    assert launched == ("maze:1", "P", {"ready_timeout_s": 30.0, "env_vars": {"A": "1"}, "port": 7})
    assert AutoEnv.from_env("openenv-maze", wait_timeout=2.0)[0] == "maze-env:latest"


LAUNCHING = """
from openenv import EnvClient


class MazeEnv(EnvClient):
    @classmethod
    def from_docker_image(cls, image, provider=None, **kwargs):
        return image, provider, kwargs
"""


@pytest.mark.parametrize("name", ["", "  ", 3])
def test_what_is_no_name(name: Any) -> None:
    with pytest.raises(UsageError, match="is not the name of an environment"):
        AutoEnv.get_env_class(name)


def test_unknown_names_are_told_by_each_method(site: Path) -> None:
    calls: list[Callable[[str], Any]] = [
        lambda name: AutoEnv.from_env(name, base_url=FAST_URL),
        AutoEnv.from_hub,
        AutoEnv.get_env_class,
        AutoEnv.get_env_info,
        AutoAction.from_env,
        AutoAction.from_hub,
        AutoAction.get_action_info,
    ]
    for call in calls:
        with pytest.raises(UnknownEnvironment, match="did you mean echo"):
            call("ecko")


def test_what_is_known_of_an_environment(site: Path) -> None:
    install(site, version="3.2")
    info = AutoEnv.get_env_info("maze")
    assert info == {
        "env_key": "maze",
        "name": "maze_env",
        "env_name": "maze_env",
        "package": "openenv-maze_env",
        "version": "3.2",
        "description": "A maze",
        "env_class": "MazeEnv",
        "action_class": "MazeAction",
        "observation_class": "MazeObservation",
        "module": "maze_env.client",
        "default_image": "maze-env:latest",
        "manifest": str(site / "maze_env" / "openenv.yaml"),
        "spec_version": 1,
    }
    action = AutoAction.get_action_info("maze")
    assert (action["action_class"], action["module"]) == ("MazeAction", "maze_env.models")
    assert set(action["fields"]) == {"metadata", "go"}


def test_lists_are_printed_and_returned(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site)
    install(site, "openenv-fog", "fog", files_of(models="import unheard_of\n"))
    assert AutoEnv.list_environments() == ["benchmark", "echo", "fog", "maze"]
    assert "openenv-maze_env" in capsys.readouterr().out
    assert AutoAction.list_actions() == ["benchmark", "echo", "fog", "maze"]
    lines = capsys.readouterr().out.splitlines()
    assert any("maze" in line and "MazeAction" in line for line in lines)
    assert any("fog" in line and "unheard_of" in line for line in lines)


def test_actions_without_their_package() -> None:
    assert AutoAction.from_env("user/space", skip_install=True) is GenericAction
    assert AutoAction.from_hub("whatever", True) is GenericAction
    assert AutoAction.from_env("echo") is EchoAction


def test_clients_without_their_package() -> None:
    client = AutoEnv.from_env("whatever", base_url=FAST_URL, skip_install=True)
    assert type(client) is GenericEnvClient


def test_a_generic_action_says_its_fields() -> None:
    action = GenericAction(message="hi", times=2)
    assert repr(action) == "GenericAction(message='hi', times=2)"
    assert action == {"message": "hi", "times": 2}
    assert repr(GenericAction()) == "GenericAction()"
