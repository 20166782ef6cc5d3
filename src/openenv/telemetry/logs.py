"""Log records of a server process, for people or as JSON lines, and warnings that are logged once."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, Literal

# Of one process. Their arguments are names of types and the like, of which there are few.
MOST_WARNINGS = 1000
_logged: set[tuple[str, ...]] = set()


def warn_once(logger: logging.Logger, message: str, *arguments: str) -> None:
    """Logs a warning the first time that this process says it of these arguments."""
    warning = (message, *arguments)
    if warning not in _logged and len(_logged) < MOST_WARNINGS:
        _logged.add(warning)
        logger.warning(message, *arguments)


# What a record may be about, beside its text: attributes that `log_extra` gives it.
_SUBJECTS = ("session", "episode", "request", "job", "stage")
_NO_ID = ("-", "(")
# C0, DEL and C1; what Python and terminals take for the end of a line; and what turns the direction of writing.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# uvicorn's own loggers, as it names them.
_UVICORN = ("uvicorn", "uvicorn.error", "uvicorn.access")


def log_extra(
    session: str | None = None, episode: str | None = None, request: str | int | None = None
) -> dict[str, Any]:
    """What a record is about, to be passed to a logger as `extra`.

    Args:
        session: Its id. What stands there for a connection of none or many, a dash or a bracket, is left out.
        episode: The id that the client gave its episode.
        request: Id of the client's request; of protocol v1, which has none, the number of the message.
    """
    named = session if session is None or not session.startswith(_NO_ID) else None
    return {"session": named, "episode": episode, "request": request}


def logging_config(log_format: Literal["console", "json"], log_level: str) -> dict[str, Any]:
    """The whole configuration of a serving process, for `logging.config.dictConfig` or uvicorn's `log_config`."""
    level = log_level.upper()
    stderr = {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "default"}
    # The environment's own records go to the root; on a console they are left as the environment has them.
    root: dict[str, Any] = {"handlers": ["stderr"], "level": "WARNING"}
    own = {"handlers": ["stderr"], "level": level, "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"default": {"()": JsonLines if log_format == "json" else ConsoleFormatter}},
        "handlers": {"stderr": stderr},
        "loggers": {
            "openenv": own,
            "uvicorn": own,
            **{name: {"level": level, "propagate": True} for name in _UVICORN[1:]},
        },
        **({"root": root} if log_format == "json" else {}),
    }


def configure_logging(log_format: Literal["console", "json"], log_level: str) -> None:
    """Has this process log that way from here on."""
    import logging.config  # noqa: PLC0415 - clients need none of what it loads

    logging.config.dictConfig(logging_config(log_format, log_level))
    if log_format == "json":
        logging.captureWarnings(True)  # on a line of their own they would be no JSON


def json_line(text: str) -> str:
    """A message of a command to its user, as a line of JSON like those of its loggers."""
    return JsonLines().format(logging.LogRecord("openenv.cli", logging.INFO, "", 0, text, None, None))


class JsonLines(logging.Formatter):
    """A record as one line of JSON: `time` (UTC), `level`, `logger`, `message`, `pid`; where there are any `session`,
    `episode`, `request`, `job` and its `stage`, and `exception` with its traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
            **_subjects(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, default=str)


class ConsoleFormatter(logging.Formatter):
    """A record for people: when, how bad, what, and which episode and request it is about.

    Texts of clients are part of messages and tracebacks. A message stays on its line, a traceback is indented, and
    control characters are written as escapes. So no text looks like a record or moves the terminal's cursor.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of logging.Formatter's method
        line = _escaped(super().formatMessage(record))
        # The session is in the text.
        found = {name: value for name, value in _subjects(record).items() if name != "session"}
        subjects = ", ".join(f"{name} {_escaped(str(value))}" for name, value in found.items())
        return f"{line} ({subjects})" if found else line

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name of logging.Formatter's method
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - the name of logging.Formatter's method
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(f"    {_escaped(line)}" for line in text.split("\n"))


def _escaped(text: str) -> str:
    """A text without control characters: neither lines of its own nor escape sequences of terminals."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def _subjects(record: logging.LogRecord) -> dict[str, Any]:
    values = {name: getattr(record, name, None) for name in _SUBJECTS}
    return {name: value for name, value in values.items() if value is not None}
