"""Synchronous environments whose steps take microseconds: called right where the request arrived."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from ..interrupts import from_signal
from .executor import Done, Operation, close, construct
from .host import Host

__all__ = ["InlineExecutor"]


class InlineExecutor:
    """Runs an environment on the event loop; a step that sleeps here stops every session.

    Args:
        environment: One that another executor made; `start` is then not called.
    """

    stoppable = True
    __slots__ = ("_environment",)

    def __init__(self, environment: Any = None):
        self._environment = environment

    def start(self, factory: Callable[[], Any], done: Done) -> None:
        def made(environment: Any, error: BaseException | None) -> None:
            self._environment = environment
            done(environment, error)

        self.submit(construct, factory, made)

    def submit(self, operation: Operation, argument: Any, done: Done) -> None:
        try:
            result = operation(self._environment, argument)
        except BaseException as error:  # the edge to foreign code
            if from_signal(error):
                raise
            done(None, error)
        else:
            done(result, None)

    def cancel(self) -> bool:
        return True  # nothing is ever running when this can be called

    def close(self, done: Done) -> None:
        def called(ending: Coroutine[Any, Any, None] | None, error: BaseException | None) -> None:
            if ending is None:
                done(None, error)
                return
            host = Host()

            def ended(_: Any, error: BaseException | None) -> None:
                host.close()
                done(None, error)

            host.run(ending, ended)

        self.submit(close, None, called)
        self._environment = None
