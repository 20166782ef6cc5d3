"""Long answers of the engine, each of which is ended when nobody reads it any more."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["streamed"]


@contextmanager
def streamed(api: Any, call: Callable[[], Any]) -> Iterator[Iterator[Mapping[str, Any]]]:
    """What the engine says meanwhile, in its order. Left early, it ends what it was asked for.

    Args:
        api: The SDK's API client.
        call: Asks the engine, and returns the SDK's iterator of its answer.
    """
    answers: list[Any] = []

    def keep(answer: Any, *_: Any, **__: Any) -> None:
        answers.append(answer)

    api.hooks["response"].append(keep)
    try:
        # Nothing bounds the time between two events.
        limit, api.timeout = api.timeout, None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a store of credentials that is not there: it fails then
                events = iter(call())
            yield events
        finally:
            api.timeout = limit
    finally:
        api.hooks["response"].remove(keep)
        # The SDK's iterators leave the connection open, and the engine at work.
        for answer in answers:
            answer.close()
