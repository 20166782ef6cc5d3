"""Types of a client that do not fit its server's are told when it connects, and types that do are not spoken of."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from openenv.client import EnvClient, GenericEnvClient, VectorEnvClient, memory, payloads, schema_check
from openenv.envs.benchmark import BenchmarkEnv
from openenv.envs.echo import EchoEnv
from openenv.errors import OpenEnvError, ProtocolViolation, SchemaMismatch, UsageError
from openenv.types import Action, Observation, State, StepResult

from .environments import CounterAction, CounterEnv, CounterObservation, CounterState, app_of
from .scripted import HELLO, ScriptedApp, fault

TOLD = r"observation\.total: string here, integer on the server"


class TextObservation(Observation):
    total: str


class TextEnv(EnvClient[CounterAction, TextObservation, CounterState]):
    """A client of another version of the environment."""


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "_warned", set())
    monkeypatch.setattr(schema_check, "_found", {})


@pytest.fixture(params=["openenv.v2.json", "openenv.v2.msgpack"], autouse=True)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What client and server speak."""
    monkeypatch.setattr(memory, "SUBPROTOCOL", request.param)
    found: str = request.param
    return found


@pytest.fixture
def silence() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def hello_of(**schemas: str) -> dict[str, Any]:
    return {**HELLO, "schema": schemas}


async def test_a_mismatch_is_a_warning_that_names_the_field() -> None:
    with pytest.warns(SchemaMismatch, match=TOLD) as told:
        await TextEnv(app=app_of()).connect()
    (warning,) = told
    assert isinstance(warning.message, UsageError)
    assert warning.message.data == {"place": "observation.total", "mine": "string", "theirs": "integer"}
    assert "TextEnv" in str(warning.message)


async def test_a_class_and_a_server_are_warned_about_once() -> None:
    app, other = app_of(), app_of()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for each in (app, app, other):
            async with TextEnv(app=each):
                pass
    assert [warning.category for warning in told] == [SchemaMismatch, SchemaMismatch]


async def test_a_strict_client_is_refused_and_leaves_nothing() -> None:
    app = app_of()
    client = TextEnv(app=app, strict=True)
    for _ in range(2):
        with pytest.raises(SchemaMismatch, match=TOLD):
            await client.connect()
        with pytest.raises(SchemaMismatch, match=TOLD):
            await client.reset()
    assert app.state.openenv.active_sessions == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_warning_that_is_made_an_error_is_raised_where_one_connects(silence: None) -> None:
    app = app_of()
    with pytest.raises(SchemaMismatch, match=TOLD):
        await TextEnv(app=app).reset()
    assert app.state.openenv.active_sessions == 0


@pytest.mark.parametrize("connections", [1, 2])
async def test_a_vector_warns_once_and_a_strict_one_is_refused(connections: int) -> None:
    app = app_of()
    with pytest.warns(SchemaMismatch, match=TOLD) as told:
        async with VectorEnvClient(TextEnv, num_envs=2, connections=connections, app=app):
            pass
    assert len(told) == 1
    strict = VectorEnvClient(TextEnv, num_envs=2, connections=connections, app=app, strict=True)
    with pytest.raises(SchemaMismatch, match=TOLD):
        await strict.reset()
    assert app.state.openenv.active_sessions == 0


def test_a_synchronous_client_is_told_too() -> None:
    with pytest.warns(SchemaMismatch, match=TOLD):
        with TextEnv(app=app_of()):
            pass
    with pytest.raises(SchemaMismatch, match=TOLD):
        TextEnv(app=app_of(), strict=True).sync().connect()


async def test_the_action_is_compared_with_what_the_server_takes() -> None:
    class Faster(CounterAction):
        speed: int = 1

    class FasterEnv(EnvClient[Faster, CounterObservation, CounterState]):
        pass

    with pytest.raises(SchemaMismatch, match=r"action\.speed: integer here, not known on the server"):
        await FasterEnv(app=app_of(), strict=True).connect()


async def test_the_state_is_compared_with_what_the_server_gives() -> None:
    class Worded(State):
        total: str

    class WordedEnv(EnvClient[CounterAction, CounterObservation, Worded]):
        pass

    app = app_of()
    with pytest.raises(SchemaMismatch, match=r"state\.total: string here, integer on the server"):
        await WordedEnv(app=app, strict=True).connect()


# What must be silent.


async def test_the_same_types_cost_no_request(silence: None) -> None:
    asked: list[Any] = []
    client = CounterEnv(app=app_of(), strict=True)
    link: Any = await client._dial()
    link.request = lambda *question: asked.append(question)
    await link.greeting(1.0)
    assert asked == []
    await link.aclose()


@pytest.mark.parametrize(("client", "name"), [(EchoEnv, "echo"), (BenchmarkEnv, "benchmark")])
async def test_bundled_environments_fit_themselves(silence: None, client: Any, name: str) -> None:
    from openenv.project.target import load

    async with client(app=load(name), strict=True) as env:
        await env.reset()


async def test_a_subclass_of_a_client_fits_as_it_does(silence: None) -> None:
    class Mine(CounterEnv):
        def score(self) -> int:
            return 1

    async with Mine(app=app_of(), strict=True) as env:
        await env.reset()


async def test_what_a_client_parses_itself_is_not_compared(silence: None) -> None:
    class ParsingEnv(TextEnv):
        def _parse_result(self, payload: dict[str, Any]) -> StepResult[TextObservation]:
            return StepResult(TextObservation(total=str(payload["observation"]["total"])), payload["reward"])

    class SendingEnv(EnvClient[Action, CounterObservation, CounterState]):
        def _step_payload(self, action: Action) -> dict[str, Any]:
            return {"by": 1}

    for client in (ParsingEnv, SendingEnv):
        async with client(app=app_of(), strict=True) as env:
            await env.reset()
            assert (await env.step(CounterAction(by=1))).reward == 1.0


async def test_a_client_without_types_compares_nothing(silence: None) -> None:
    class Loose(EnvClient):
        pass

    class AnyEnv(EnvClient[Any, dict[str, Any], Any]):
        pass

    for client in (GenericEnvClient, Loose, AnyEnv):
        assert schema_check.declared_contract(client).parts == {}
        async with client(app=app_of(), strict=True) as env:
            await env.reset()


async def test_an_action_type_that_has_subclasses_stands_for_them(silence: None) -> None:
    class Base(Action):
        pass

    class Move(Base):
        by: int = 1

    class MovesEnv(EnvClient[Base, CounterObservation, CounterState]):
        pass

    async with MovesEnv(app=app_of(), strict=True) as env:
        await env.reset()
        assert (await env.step(Move(by=2))).observation.total == 2


async def test_optional_fields_that_the_server_never_sends_are_no_mismatch(silence: None) -> None:
    class Newer(CounterObservation):
        hint: str | None = None

    class NewerEnv(EnvClient[CounterAction, Newer, CounterState]):
        pass

    async with NewerEnv(app=app_of(), strict=True) as env:
        assert (await env.reset()).observation.hint is None


async def test_a_server_of_protocol_v1_is_not_compared_with(silence: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SUBPROTOCOL", None)
    async with TextEnv(app=app_of(), strict=True) as env:
        await env.connect()


@pytest.mark.parametrize("said", [None, [], "abc", {}, {"observation": 3}, {"observation": None}, {"board": "a"}])
async def test_a_server_that_says_nothing_of_use_is_not_compared_with(silence: None, said: Any) -> None:
    app = ScriptedApp()
    app.hello = {**HELLO, "schema": said}
    client = TextEnv(app=app, strict=True)
    await client.connect()
    peer = await app.peer(0)
    assert [request["op"] for request in peer.requests] == ["open"]
    await client.close()


@pytest.mark.parametrize(
    "reply",
    [
        fault("UnknownMessage", "unknown op", "UNKNOWN_TYPE"),
        {"ok": True},
        {"ok": True, "schemas": 3},
        {"ok": True, "schemas": {"observation": "text"}},
        {"ok": True, "schemas": {"observation": {"$ref": "#/$defs/No"}}},
        {"ok": True, "schemas": {"observation": {"type": "object", "properties": {"total": {"$ref": "#/$defs/No"}}}}},
    ],
)
async def test_schemas_that_cannot_be_had_or_read_are_no_mismatch(silence: None, reply: dict[str, Any]) -> None:
    app = ScriptedApp()
    app.hello = hello_of(observation="another")
    client = TextEnv(app=app, strict=True)
    connecting = asyncio.ensure_future(client.connect())
    peer = await app.peer(0)
    peer.reply(await peer.asked(1), reply)
    await connecting
    assert [request["op"] for request in peer.requests] == ["schema", "open"]
    await client.close()


async def test_a_connection_that_ends_meanwhile_is_no_mismatch(silence: None) -> None:
    app = ScriptedApp()
    app.hello = hello_of(observation="another")
    client = TextEnv(app=app, strict=True)
    connecting = asyncio.ensure_future(client.connect())
    peer = await app.peer(0)
    await peer.asked(1)
    peer.hang_up()
    await connecting
    with pytest.raises(OpenEnvError):
        await client.step(CounterAction(by=1))
    await client.close()


async def test_a_server_that_says_no_hello_is_given_up_in_time() -> None:
    app = ScriptedApp()
    app.hello = None
    client = TextEnv(app=app, connect_timeout_s=0.01)
    with pytest.raises(ProtocolViolation, match="no hello"):
        await client.connect()
    assert [peer.closed for peer in app.peers] == [True]


async def test_connecting_that_is_cancelled_leaves_no_connection() -> None:
    app = ScriptedApp()
    app.hello = hello_of(observation="another")
    connecting = asyncio.ensure_future(TextEnv(app=app).connect())
    peer = await app.peer(0)
    await peer.asked(1)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert peer.closed


async def test_what_was_found_is_not_asked_for_again() -> None:
    app = app_of()
    with pytest.warns(SchemaMismatch):
        await TextEnv(app=app).connect()
    (found,) = schema_check._found.values()
    assert found is not None
    with pytest.raises(SchemaMismatch, match=TOLD):
        await TextEnv(app=app, strict=True).connect()
    assert len(schema_check._found) == 1
