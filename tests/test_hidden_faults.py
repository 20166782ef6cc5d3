"""What an author's type or signature hides from a server, the log tells, once."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pydantic_core import core_schema

from openenv.protocol.errors import error_facts
from openenv.protocol.json_schema import schema_of
from openenv.runtime.profile import class_of
from openenv.server.metadata import _reset_schema
from openenv.server.page.episode import _plain
from openenv.telemetry.logs import _logged

from .environments import Plain


class Stubborn:
    """No schema, no text, no JSON."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        raise LookupError("no schema today")

    def __repr__(self) -> str:
        raise LookupError("no text today")


class Unreadable(Plain):
    def reset(self, seed=None, episode_id=None, **kwargs):
        return super().reset(seed, episode_id)

    reset.__signature__ = "none"


def unreadable() -> Nowhere:  # noqa: F821 - that is the point
    return Plain()


class Data(dict):
    def items(self):
        raise LookupError("no items today")


def data():
    from openenv.errors import StepFailed

    error = StepFailed("broken")
    error.data = Data(x=1)
    return error


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (lambda: schema_of(Stubborn), ("Stubborn", "no schema today")),
        (lambda: _reset_schema(Unreadable), ("Unreadable", "signature")),
        (lambda: class_of(unreadable), ("unreadable", "Nowhere")),
        (lambda: error_facts(data()), ("StepFailed", "LookupError")),
        (lambda: _plain(Stubborn()), ("Stubborn",)),
    ],
    ids=["schema", "reset", "factory", "data", "action"],
)
def test_the_log_says_it_once(cause, words, caplog):
    _logged.clear()
    with caplog.at_level(logging.WARNING, "openenv"):
        cause()
        cause()
    (record,) = [record for record in caplog.records if all(word in record.getMessage() for word in words)]
    assert record.levelname == "WARNING"
