"""`openenv.create_app`: the types of an environment, and what it says where they are not known."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from openenv import Environment, Observation, State, UsageError, create_app
from openenv.envs.echo import EchoAction, EchoObservation
from openenv.envs.echo.server.echo_environment import EchoEnvironment
from openenv.mcp import CallToolAction, CallToolObservation, MCPEnvironment
from openenv.server import HTTPEnvServer


class Count(State):
    count: int = 0


class Welcome(Observation):
    text: str


class Tools(MCPEnvironment):
    """Its base declares no types."""

    def reset(self, **kwargs: Any) -> Welcome:
        return Welcome(text="hello")

    @property
    def state(self) -> Count:
        return Count()


class Annotated(Environment):  # existing code
    def reset(self) -> EchoObservation:
        return EchoObservation(echoed_message="", message_length=0)

    def step(self, action: EchoAction) -> EchoObservation:
        return self.reset()

    @property
    def state(self) -> State:
        return State()


class Untyped(Annotated):
    def step(self, action):
        return self.reset()


def make() -> EchoEnvironment:
    return EchoEnvironment()


def make_some() -> Environment[EchoAction, EchoObservation, Count]:
    raise NotImplementedError


def make_any():
    return EchoEnvironment()


def server_of(*args: Any, **kwargs: Any) -> HTTPEnvServer:
    server: HTTPEnvServer = create_app(*args, **kwargs).state.openenv
    return server


@pytest.mark.parametrize(
    ("environment", "state"),
    [
        (EchoEnvironment, State),
        (functools.partial(EchoEnvironment), State),
        (make, State),
        (make_some, Count),
        (Annotated, State),
    ],
)
def test_the_types_are_those_of_the_class_or_of_the_annotations(environment: Any, state: Any) -> None:
    server = server_of(environment)
    assert (server.action_cls, server.observation_cls, server.state_cls) == (EchoAction, EchoObservation, state)


def test_what_is_given_goes_before_what_is_declared() -> None:
    server = server_of(Tools, action=CallToolAction, observation=CallToolObservation, name="tools", max_sessions=1)
    assert (server.action_cls, server.observation_cls) == (CallToolAction, CallToolObservation)
    assert (server.state_cls, server.reset_observation_cls) == (Count, Welcome)
    assert (server.env_name, server.max_concurrent_envs) == ("tools", 1)
    assert server_of(make_any, action=EchoAction, observation=EchoObservation).action_cls is EchoAction


@pytest.mark.parametrize(
    ("environment", "given", "says"),
    [
        (make_any, {}, "types of make_any are not declared: write a function with a return annotation"),
        (make_any, {"action": EchoAction}, "pass observation=MyObservation to create_app"),
        (Untyped, {}, "write class Untyped(Environment[MyAction, MyObservation, State]), or pass action=MyAction"),
    ],
)
def test_types_that_are_not_known(environment: Any, given: Any, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        create_app(environment, **given)


def test_a_limit_below_one() -> None:
    with pytest.raises(UsageError, match="max_sessions is 0: it must be at least 1"):
        create_app(EchoEnvironment, max_sessions=0)


def test_an_instance_is_no_environment_to_serve() -> None:
    instance: Any = EchoEnvironment()
    with pytest.raises(TypeError, match="pass the class or a function"):
        create_app(instance)
