from __future__ import annotations

import io
import json
import logging
import logging.config
import re

import pytest

from openenv.telemetry import logs


@pytest.fixture
def logged(monkeypatch):
    """Logs in a format; returns the lines."""

    def log(log_format, say, level="warning"):
        config = logs.logging_config(log_format, level)
        stream = io.StringIO()
        config["handlers"]["stderr"]["stream"] = stream
        logging.config.dictConfig(config)
        say(logging.getLogger("openenv.server"))
        return stream.getvalue().splitlines()

    root, names = logging.getLogger(), ("openenv", "uvicorn", "uvicorn.error", "uvicorn.access")
    before = {name: vars(logging.getLogger(name)).copy() for name in names}
    handlers, level = list(root.handlers), root.level
    yield log
    for name, attributes in before.items():
        vars(logging.getLogger(name)).update(attributes)
    root.handlers[:] = handlers
    root.setLevel(level)


def failing(logger):
    try:
        raise LookupError("no such\nthing")
    except LookupError:
        logger.exception("session %s: it failed\nand how", "s1", extra=logs.log_extra("s1", "e7", 12))


def test_json_has_one_line_a_record_and_a_field_for_each_fact(logged):
    (line,) = logged("json", failing)
    record = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record.pop("time"))
    assert record.pop("pid") > 0
    exception = record.pop("exception")
    assert exception.startswith("Traceback")
    assert exception.endswith("LookupError: no such\nthing")
    assert record == {
        "level": "error",
        "logger": "openenv.server",
        "message": "session s1: it failed\nand how",
        "session": "s1",
        "episode": "e7",
        "request": 12,
    }


def test_what_a_record_is_not_about_is_no_field(logged):
    (line,) = logged("json", lambda logger: logger.warning("it stops", extra=logs.log_extra()))
    assert set(json.loads(line)) == {"time", "level", "logger", "message", "pid"}


def test_json_holds_whatever_is_said(logged):
    odd = "\udc80 \x00 \u2028 é"
    (line,) = logged("json", lambda logger: logger.warning("%s", odd, extra={"session": object()}))
    assert line.isascii()
    assert json.loads(line)["message"] == odd


def test_with_json_no_logger_says_anything_else(logged):
    def say(_):
        for name in ("uvicorn.error", "my_environment"):
            logging.getLogger(name).error("of %s", name)

    lines = logged("json", say)
    assert [json.loads(line)["logger"] for line in lines] == ["uvicorn.error", "my_environment"]


def test_a_console_tells_when_how_bad_and_what(logged):
    first, *rest = logged("console", failing)
    assert re.fullmatch(r"\d\d:\d\d:\d\d ERROR session s1: it failed\\nand how \(episode e7, request 12\)", first)
    assert rest[0] == "    Traceback (most recent call last):"
    assert rest[-2:] == ["    LookupError: no such", "    thing"]


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_the_level_is_obeyed(logged, log_format):
    def say(logger):
        logger.warning("a")
        logger.error("b")

    assert len(logged(log_format, say, "error")) == 1
    assert len(logged(log_format, say, "warning")) == 2


@pytest.mark.parametrize(
    "text",
    ["a\n16:00:00 INFO forged", "\x1b]0;owned\x07", "a\rb", "\x9b31m", "\u2028line", "\u202eleft", "a\x00b\x7f"],
)
def test_no_text_makes_a_line_of_its_own_or_reaches_the_terminal(logged, text):
    def say(logger):
        logger.warning("type %s", text, extra=logs.log_extra("s1", text))
        try:
            raise LookupError(text)
        except LookupError:
            logger.exception("it failed")

    lines = logged("console", say)
    records = [line for line in lines if re.match(r"\d\d:\d\d:\d\d ", line)]
    assert len(records) == 2
    assert all(line.startswith("    ") for line in lines if line not in records)
    assert all(character.isprintable() for line in lines for character in line)
