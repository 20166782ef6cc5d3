from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from openenv._exceptions import from_signal, keep_running


@contextlib.contextmanager
def handling(handler: Any, number: int = signal.SIGINT) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - what it is, is the question
        return error
    raise AssertionError("nothing was raised")


def interrupt() -> None:
    """Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def raises() -> None:
    raise KeyboardInterrupt


def leaves() -> None:
    sys.exit(3)


class Handler:
    def __call__(self, number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def method(self, number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def with_more(self, number: int, frame: object, more: int) -> None:
        raises()


HANDLERS = [
    signal.default_int_handler,
    Handler(),
    Handler().method,
    functools.partial(Handler().with_more, more=1),
    lambda number, frame: raises(),
]


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_signal_is_told_from_code_that_raises_the_same(handler: Any) -> None:
    with handling(handler):
        assert from_signal(caught(interrupt))
        assert not from_signal(caught(raises))
        assert not from_signal(caught(leaves))


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None])
def test_a_handler_that_raises_nothing_has_raised_nothing(handler: Any) -> None:
    with handling(handler):
        assert not from_signal(caught(raises))


def test_a_signal_that_ends_the_process_in_order() -> None:
    with handling(lambda number, frame: sys.exit(143), signal.SIGTERM):
        assert from_signal(caught(lambda: signal.raise_signal(signal.SIGTERM)))
        assert not from_signal(caught(leaves))


def test_an_alarm_of_the_environments_own_is_its_failure() -> None:
    def late(number: int, frame: object) -> None:
        raise TimeoutError

    with handling(late, signal.SIGALRM):
        assert not from_signal(caught(lambda: signal.raise_signal(signal.SIGALRM)))


def test_no_signal_reaches_another_thread() -> None:
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(from_signal(caught(raises))))
    with handling(signal.default_int_handler):
        thread.start()
        thread.join()
    assert answers == [False]


@pytest.mark.usefixtures("loop_factory")
class TestKeepRunning:
    def test_a_task_that_raises_does_not_end_the_loop(self, loop_factory: Any, caplog: Any) -> None:
        async def failing(exit_: type[BaseException]) -> None:
            raise exit_

        async def main() -> list[type[BaseException]]:
            tasks = [asyncio.ensure_future(failing(each)) for each in (KeyboardInterrupt, SystemExit)]
            await asyncio.wait(tasks)
            return [type(task.exception()) for task in tasks]

        with asyncio.Runner(loop_factory=loop_factory) as runner, caplog.at_level(logging.ERROR):
            loop = runner.get_loop()
            task = loop.create_task(main())
            assert keep_running(lambda: loop.run_until_complete(task)) == [KeyboardInterrupt, SystemExit]
        assert {record.name for record in caplog.records} == {"openenv.interrupts"}

    def test_a_signal_does(self, loop_factory: Any) -> None:
        async def main() -> None:
            interrupt()

        with asyncio.Runner(loop_factory=loop_factory) as runner, handling(signal.default_int_handler):
            loop = runner.get_loop()
            task = loop.create_task(main())
            with pytest.raises(KeyboardInterrupt):
                keep_running(lambda: loop.run_until_complete(task))
