"""Tools of an MCP environment as methods for a trainer."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from typing import Any, Literal, get_type_hints

import pytest

pytest.importorskip("fastmcp")

from fastmcp import FastMCP

from openenv.adapters.trl import environment_factory
from openenv.client import GenericEnvClient
from openenv.client.mcp_client import MCPToolClient
from openenv.errors import ConnectionFailed, UsageError
from openenv.mcp.environment import MCPEnvironment
from openenv.mcp.types import CallToolAction, CallToolObservation
from openenv.server import create_app
from openenv.types import Observation, State
from tests.server.wires import served

from .test_trl_episode import ChatEnv, chat_app

pytestmark = pytest.mark.real


class Desk(MCPEnvironment):
    """Four tools; none gives a reward."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        desk: FastMCP[Any] = FastMCP("desk")

        @desk.tool
        def add(a: int, b: int = 2) -> int:
            """Adds.

            Args:
                a: The first.
                b: The second.
            """
            return a + b

        @desk.tool
        def file(papers: list[dict[str, str]], drawer: Literal["top", "bottom"], note: str | None = None) -> str:
            """Files papers."""
            return f"{len(papers)} in {drawer}"

        @desk.tool
        def fail(why: str) -> str:
            """Fails."""
            raise ValueError(why)

        @desk.tool(name="look-up")
        def look_up() -> str:
            """Looks up."""
            return "the ceiling"

        super().__init__(desk)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()


TOOLS = {"add": "add", "file": "file", "fail": "fail", "look_up": "look-up"}


def desk_app() -> Any:
    return create_app(Desk, CallToolAction, CallToolObservation, max_concurrent_envs=8)


@pytest.fixture
def address() -> Iterator[str]:
    with served(desk_app()) as at:
        yield at


def test_tools_of_the_server_become_methods_with_its_types_and_words(address: str) -> None:
    factory: Any = environment_factory(GenericEnvClient, TOOLS, base_url=address)

    assert get_type_hints(factory.add) == {"a": int, "b": int, "return": str}
    assert inspect.signature(factory.add).parameters["b"].default == 2
    assert "Adds." in factory.add.__doc__
    assert "a: The first." in factory.add.__doc__
    assert get_type_hints(factory.file) == {
        "papers": list[dict[str, str]],
        "drawer": Literal["top", "bottom"],
        "note": str | None,
        "return": str,
    }


def test_a_call_gives_the_model_the_tools_result(address: str) -> None:
    episode: Any = environment_factory(GenericEnvClient, TOOLS, len, base_url=address)()

    assert episode.reset(prompt="Hi") is None
    assert episode.add(1) == "3"
    assert episode.file([{"name": "bill"}], drawer="top") == "1 in top"
    assert episode.look_up() == "the ceiling"
    assert episode.get_reward() == 3


def test_an_error_of_a_tool_is_told_to_the_model_and_the_episode_goes_on(address: str) -> None:
    episode: Any = environment_factory(GenericEnvClient, TOOLS, len, base_url=address)()
    episode.reset()

    with pytest.raises(UsageError, match="no paper"):
        episode.fail("no paper")
    with pytest.raises(UsageError, match="invalid_args"):
        episode.add("one")
    assert episode.add(2) == "4"
    assert episode.get_reward() == 3


def test_without_any_reward_an_episode_goes_unscored(address: str) -> None:
    episode: Any = environment_factory(GenericEnvClient, TOOLS, base_url=address)()
    episode.reset()
    episode.add(2)
    assert episode.get_reward() is None


def test_all_tools_are_those_that_the_server_lists(address: str) -> None:
    with pytest.raises(UsageError, match=r"'look-up'.*tools=\{'another_name': 'look-up'\}"):
        environment_factory(GenericEnvClient, "mcp", base_url=address)
    factory = environment_factory(GenericEnvClient, ["add", "fail"], base_url=address)
    assert {"add", "fail"} <= vars(factory).keys()
    assert "file" not in vars(factory)


def test_the_client_of_an_mcp_environment_needs_no_more_than_its_address(address: str) -> None:
    factory: Any = environment_factory(MCPToolClient, ["add", "fail"], len, base_url=address)
    episode = factory()
    episode.reset()
    assert episode.add(1, b=5) == "6"
    with pytest.raises(UsageError, match="no paper"):
        episode.fail(why="no paper")
    assert episode.get_reward() == 2

    with pytest.raises(UsageError, match="look-up"):  # it asks for all of them
        environment_factory(MCPToolClient, base_url=address)


def test_a_tool_that_the_server_does_not_have_is_refused_with_those_it_has(address: str) -> None:
    with pytest.raises(UsageError, match="no tool 'subtract'; it has add, file, fail, look-up"):
        environment_factory(GenericEnvClient, ["subtract"], base_url=address)


def test_the_server_is_asked_once_and_not_by_those_who_unpickle() -> None:
    with served(desk_app()) as address:
        factory = environment_factory(GenericEnvClient, TOOLS, base_url=address)

    copy: Any = pickle.loads(pickle.dumps(factory))
    assert inspect.signature(copy.add) == inspect.signature(vars(factory)["add"])


def test_a_server_that_is_not_there_or_has_no_tools_says_so() -> None:
    with pytest.raises(ConnectionFailed):
        environment_factory(GenericEnvClient, "mcp", base_url="127.0.0.1:1")
    with served(chat_app()) as address, pytest.raises(UsageError, match="MCP environment"):
        environment_factory(ChatEnv, "mcp", base_url=address)
