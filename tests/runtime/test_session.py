"""The life of one session, as its user sees it."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

import pytest

from openenv import errors
from openenv.errors import InvalidAction, SessionLost, StepFailed
from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionManager
from openenv.runtime.session import SessionState
from openenv.types import Action

from ..asynchronous import Gate, Witness, open_session, outcome, until
from ..environments import AsyncPlain, Gated, InlinePlain, MixedPlain, Plain

pytestmark = pytest.mark.usefixtures("no_threads_left")

EVERY_KIND = pytest.mark.parametrize("cls", [InlinePlain, AsyncPlain, Plain, MixedPlain])


def manager_of(factory, **limits):
    return SessionManager(factory, Limits(**{"max_sessions": 4, **limits}))


def raising(failure):
    """Three classes whose step raises: inline, on the loop, on a thread."""

    def step(self, action, timeout_s=None):
        raise failure

    async def step_async(self, action, timeout_s=None):
        raise failure

    return (
        type("InlineFailing", (InlinePlain,), {"step": step}),
        type("AsyncFailing", (AsyncPlain,), {"step_async": step_async}),
        type("Failing", (Plain,), {"step": step}),
    )


@EVERY_KIND
class TestCalls:
    async def test_an_episode(self, cls):
        manager = manager_of(cls)
        session, _ = await open_session(manager)
        observation, error = await outcome(partial(session.reset, {"seed": 3, "level": "hard"}))
        assert error is None
        assert observation.metadata == {"seed": 3, "episode_id": None, "level": "hard"}
        for number in (1, 2):
            observation, error = await outcome(partial(session.step, Action()))
            assert (observation.reward, error) == (float(number), None)
        state, error = await outcome(session.read_state)
        assert (state.step_count, error) == (2, None)
        assert session.steps == 2
        await manager.aclose()

    async def test_a_step_with_further_arguments(self, cls):
        manager = manager_of(cls)
        session, _ = await open_session(manager)
        observation, error = await outcome(partial(session.step_with, Action(), {"timeout_s": 2.0, "hint": "x"}))
        assert error is None
        assert observation.metadata == {"timeout_s": 2.0, "hint": "x"}
        assert session.steps == 1
        await manager.aclose()

    async def test_anything_else(self, cls):
        manager = manager_of(cls)
        session, _ = await open_session(manager)
        answer = await outcome(
            partial(session.call, lambda environment, argument: (environment.steps, argument), "a")
        )
        assert answer == ((0, "a"), None)
        assert session.steps == 0
        await manager.aclose()

    async def test_the_states_it_goes_through(self, cls):
        manager = manager_of(cls)
        witness = Witness()
        session = manager.create(witness.opened, witness.lost)
        assert session.state is SessionState.STARTING
        assert session.idle_since is None
        manager.open(session)
        await witness.heard()
        assert witness.verdicts == [None]
        assert session.state is SessionState.LIVE
        during, _ = await outcome(
            partial(session.call, lambda environment, _: (session.state, session.idle_since), None)
        )
        assert during == (SessionState.EXECUTING, None)
        assert session.state is SessionState.LIVE
        session.close()
        assert session.state in (SessionState.CLOSING, SessionState.GONE)
        await manager.aclose()
        assert session.state is SessionState.GONE
        assert session.executor is None
        assert session.idle_since is None
        assert witness.losses == []

    async def test_the_time_of_its_last_call(self, cls):
        manager = manager_of(cls)
        before = time.monotonic()
        session, _ = await open_session(manager)
        assert before <= session.created_at <= session.idle_since <= time.monotonic()
        opened = session.idle_since
        await outcome(partial(session.step, Action()))
        assert opened <= session.idle_since == session.used_at <= time.monotonic()
        await manager.aclose()

    async def test_sessions_have_names_of_their_own(self, cls):
        manager = manager_of(cls)
        ids = {(await open_session(manager))[0].id for _ in range(3)}
        assert len(ids) == 3
        await manager.aclose()


class TestFailures:
    @pytest.mark.parametrize("kind", [0, 1, 2], ids=["inline", "loop", "thread"])
    @pytest.mark.parametrize(
        ("failure", "message"),
        [
            (ValueError("wrong square"), "ValueError: wrong square"),
            (ValueError(), "ValueError"),
            (KeyError("x"), "KeyError: 'x'"),
            (SystemExit(2), "SystemExit: 2"),
            (TimeoutError("too slow"), "TimeoutError: too slow"),
        ],
        ids=["with words", "without", "KeyError", "SystemExit", "TimeoutError"],
    )
    async def test_what_a_step_raises_is_its_environments_failure(self, kind, failure, message):
        failure.with_traceback(None)  # the three kinds share it
        manager = manager_of(raising(failure)[kind])
        session, _ = await open_session(manager)
        result, error = await outcome(partial(session.step, Action()))
        assert result is None
        assert type(error) is StepFailed
        line = raising.__code__.co_firstlineno + (7 if kind == 1 else 4)
        assert error.message == f"{message} (tests/runtime/test_session.py:{line})"
        assert error.__cause__ is failure
        state, error = await outcome(session.read_state)
        assert (state.step_count, error) == (0, None)
        await manager.aclose()

    @pytest.mark.parametrize("kind", [0, 1, 2], ids=["inline", "loop", "thread"])
    async def test_what_is_no_exception_is_too(self, kind):
        """A panic of a library written in Rust arrives as a BaseException."""

        class Panic(BaseException):
            pass

        manager = manager_of(raising(Panic("at the disco"))[kind])
        session, _ = await open_session(manager)
        _, error = await outcome(partial(session.step, Action()))
        assert type(error) is StepFailed
        await manager.aclose()

    @pytest.mark.parametrize("kind", [0, 1, 2], ids=["inline", "loop", "thread"])
    async def test_an_exception_that_cannot_be_printed(self, kind):
        class Mute(Exception):
            def __str__(self):
                raise LookupError("no words")

        manager = manager_of(raising(Mute())[kind])
        session, _ = await open_session(manager)
        _, error = await outcome(partial(session.step, Action()))
        assert type(error) is StepFailed
        assert "Mute" in error.message
        await manager.aclose()

    @pytest.mark.parametrize(
        "failure",
        [
            InvalidAction("column 9 does not exist", data={"errors": []}),
            errors.InvalidArgument("no split 'tain': there are train, test"),
        ],
    )
    async def test_what_the_environment_says_of_the_callers_mistake_stays_what_it_is(self, failure):
        manager = manager_of(raising(failure)[0])
        session, _ = await open_session(manager)
        assert await outcome(partial(session.step, Action())) == (None, failure)
        await manager.aclose()

    @pytest.mark.parametrize("failure", [errors.ConnectionLost("to another server"), errors.ServerFull(1, 1)])
    async def test_an_environments_own_road_is_not_the_clients(self, failure):
        """An environment that is itself a client: its failure to reach another server is not ours to retry."""
        manager = manager_of(raising(failure)[0])
        session, _ = await open_session(manager)
        _, error = await outcome(partial(session.step, Action()))
        assert isinstance(error, errors.EnvironmentFailed)
        await manager.aclose()

    async def test_a_mixed_class_that_declares_inline_still_answers_with_observations(self):
        class Odd(MixedPlain):
            execution = "inline"

        manager = manager_of(Odd)
        session, _ = await open_session(manager)
        observation, error = await outcome(partial(session.step, Action()))
        assert error is None
        assert observation.reward == 1.0
        await manager.aclose()


class TestOneCallAtATime:
    async def test_a_second_call_is_refused_and_the_first_goes_on(self):
        gate = Gate()
        manager = manager_of(partial(Gated, stepping=gate))
        session, _ = await open_session(manager)
        step = asyncio.ensure_future(outcome(partial(session.step, Action())))
        await gate.reached()
        _, error = await outcome(session.read_state)
        assert isinstance(error, errors.OpenEnvError)
        assert "executing" in error.message
        gate.open()
        observation, error = await step
        assert (observation.reward, error) == (1.0, None)
        await manager.aclose()

    async def test_a_session_that_starts_takes_no_call(self):
        gate = Gate()
        manager, witness = manager_of(partial(Gated, making=gate)), Witness()
        session = witness.asks(manager)
        _, error = await outcome(session.read_state)
        assert type(error) is SessionLost
        gate.open()
        await witness.heard()
        await manager.aclose()

    @EVERY_KIND
    async def test_a_session_that_is_gone_takes_no_call(self, cls):
        manager = manager_of(cls)
        session, _ = await open_session(manager)
        await manager.aclose()
        for call in (
            partial(session.reset, {}),
            partial(session.step, Action()),
            partial(session.step_with, Action(), {}),
            session.read_state,
        ):
            result, error = await outcome(call)
            assert result is None
            assert type(error) is SessionLost
            assert session.id in error.message


class TestClose:
    @EVERY_KIND
    async def test_it_closes_the_environment_once(self, cls):
        made = []

        def factory():
            made.append(cls())
            return made[-1]

        manager = manager_of(factory)
        session, witness = await open_session(manager)
        session.close()
        session.close()
        session.end(errors.Draining("too late to say so"))
        await manager.aclose()
        session.close()
        assert [environment.closings for environment in made] == [1]
        assert (witness.verdicts, witness.losses) == ([None], [])
        assert manager.active == 0

    async def test_before_it_was_opened(self):
        manager, witness = manager_of(Plain), Witness()
        session = manager.create(witness.opened, witness.lost)
        session.close()
        assert session.state is SessionState.GONE
        assert (witness.verdicts, witness.losses, manager.active) == ([], [], 0)

    @pytest.mark.parametrize("cls", [Gated, "AsyncGated"], ids=["thread", "loop"])
    async def test_while_its_environment_is_made(self, cls):
        class AsyncGated(Gated, AsyncPlain):
            pass

        gate, made = Gate(), []
        actual = AsyncGated if cls == "AsyncGated" else cls

        def factory() -> actual:
            made.append(actual(making=gate))
            return made[-1]

        factory.__annotations__["return"] = actual
        manager, witness = manager_of(factory), Witness()
        session = witness.asks(manager)
        await gate.reached()
        session.close()
        assert session.state is SessionState.CLOSING
        assert manager.active == 1
        gate.open()
        await until(lambda: manager.active == 0)
        assert session.state is SessionState.GONE
        assert made[0].closings == 1
        assert witness.verdicts == []

    async def test_while_an_environment_is_made_that_cannot_be(self):
        gate = Gate()

        class Doomed(Plain):
            def __init__(self):
                gate.wait()
                raise ValueError("no")

        manager, witness = manager_of(Doomed), Witness()
        session = witness.asks(manager)
        await gate.reached()
        session.close()
        gate.open()
        await until(lambda: manager.active == 0)
        assert session.state is SessionState.GONE
        assert witness.verdicts == []

    async def test_during_a_call_on_a_thread_the_call_ends_first(self):
        gate, made = Gate(), []

        def factory():
            made.append(Gated(stepping=gate))
            return made[-1]

        manager = manager_of(factory)
        session, _ = await open_session(manager)
        step = asyncio.ensure_future(outcome(partial(session.step, Action())))
        await gate.reached()
        session.close()
        assert session.state is SessionState.CLOSING
        assert made[0].closings == 0
        gate.open()
        observation, error = await step
        assert (observation.reward, error) == (1.0, None)
        await until(lambda: session.state is SessionState.GONE)
        assert made[0].closings == 1

    @pytest.mark.parametrize("at_once", [True, False])
    async def test_during_a_call_on_the_loop_the_call_is_cancelled(self, at_once):
        began = asyncio.Event()

        class Endless(AsyncPlain):
            async def step_async(self, action, timeout_s=None):
                began.set()
                await asyncio.Event().wait()

        manager = manager_of(Endless)
        session, _ = await open_session(manager)
        step = asyncio.ensure_future(outcome(partial(session.step, Action())))
        if at_once:
            await asyncio.sleep(0)  # the call has been made, and nothing else
        else:
            await began.wait()
        session.close()
        result, error = await step
        assert result is None
        assert type(error) is StepFailed
        assert isinstance(error.__cause__, asyncio.CancelledError)
        await until(lambda: session.state is SessionState.GONE)
        assert manager.active == 0

    @EVERY_KIND
    async def test_in_the_same_breath_as_a_call(self, cls):
        """A client that sends its last request and leaves."""
        manager, answers = manager_of(cls), []
        session, _ = await open_session(manager)
        session.step(Action(), lambda *answer: answers.append(answer))
        session.close()
        await until(lambda: manager.active == 0)
        assert len(answers) == 1

    @EVERY_KIND
    async def test_from_the_answer_to_a_call(self, cls):
        manager = manager_of(cls)
        session, _ = await open_session(manager)
        session.step(Action(), lambda *_: session.close())
        await until(lambda: manager.active == 0)

    @EVERY_KIND
    async def test_from_the_news_that_it_is_open(self, cls):
        manager = manager_of(cls)
        session = manager.create(lambda error: session.close())
        manager.open(session)
        await until(lambda: session.state is SessionState.GONE)
        assert manager.active == 0

    @EVERY_KIND
    async def test_an_environment_that_cannot_close_is_logged_and_its_slot_freed(self, cls, caplog):
        class Clinging(cls):
            def close(self):
                raise LookupError("lost the handle")

        manager = manager_of(Clinging)
        session, _ = await open_session(manager)
        with caplog.at_level(logging.WARNING, "openenv.sessions"):
            session.close()
            await manager.aclose()
        assert manager.active == 0
        (record,) = caplog.records
        assert session.id in record.getMessage()
        assert isinstance(record.exc_info[1], LookupError)


class TestEnd:
    async def test_its_user_hears_why_once(self):
        manager = manager_of(Plain)
        session, witness = await open_session(manager)
        reason = errors.Draining("stopping")
        session.end(reason)
        session.end(errors.Draining("again"))
        await manager.aclose()
        assert witness.losses == [reason]

    async def test_a_user_who_does_not_listen_is_not_told(self):
        manager = manager_of(InlinePlain)
        opened = []
        session = manager.create(opened.append)
        manager.open(session)
        session.end(errors.Draining("stopping"))
        assert (opened, session.state) == ([None], SessionState.GONE)
