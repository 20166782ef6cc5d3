"""Log records of a server process, for people or as JSON lines, and warnings that are logged once."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, Literal

# The warnings that this process has logged. Their arguments are type names and the like, so the set stays small.
MOST_WARNINGS = 1000
_logged: set[tuple[str, ...]] = set()


def warn_once(logger: logging.Logger, message: str, *arguments: str) -> None:
    """Logs a warning once in this process for each combination of arguments."""
    warning = (message, *arguments)
    if warning not in _logged and len(_logged) < MOST_WARNINGS:
        _logged.add(warning)
        logger.warning(message, *arguments)


# Attributes of a record that `log_extra` sets.
_SUBJECTS = ("session", "episode", "request", "job", "stage")
_NO_ID = ("-", "(")
# C0, DEL and C1; characters that Python or terminals treat as line ends; and characters that set the text direction.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def log_extra(
    session: str | None = None, episode: str | None = None, request: str | int | None = None
) -> dict[str, Any]:
    """The session, episode and request of a log record, to pass to a logger as `extra`.

    Args:
        session: The id of the session. A placeholder for no session or several, a dash or a bracket, is omitted.
        episode: The id that the client gave its episode.
        request: The id of the client's request; in protocol v1, which has no ids, the number of the message.
    """
    named = session if session is None or not session.startswith(_NO_ID) else None
    return {"session": named, "episode": episode, "request": request}


def logging_config(log_format: Literal["console", "json"], log_level: str) -> dict[str, Any]:
    """The logging configuration of a server process, for `logging.config.dictConfig` or uvicorn's `log_config`."""
    level = log_level.upper()
    stderr = {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "default"}
    # Records of the environment go to the root logger. On a console, their format is left to the environment.
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
            **{name: {"level": level, "propagate": True} for name in ("uvicorn.error", "uvicorn.access")},
        },
        **({"root": root} if log_format == "json" else {}),
    }


def configure_logging(log_format: Literal["console", "json"], log_level: str) -> None:
    """Configures the logging of this process."""
    import logging.config  # noqa: PLC0415 - clients do not need the modules that it loads

    logging.config.dictConfig(logging_config(log_format, log_level))
    if log_format == "json":
        logging.captureWarnings(True)  # otherwise they would be lines that are not JSON


def json_line(text: str) -> str:
    """A message of a command to its user, as a line of JSON in the format of its log records."""
    return JsonLines().format(logging.LogRecord("openenv.cli", logging.INFO, "", 0, text, None, None))


class JsonLines(logging.Formatter):
    """A record as one line of JSON: `time` (UTC), `level`, `logger`, `message`, `pid`; if present `session`,
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
    """A record for people: time, level, message, episode and request.

    Texts of clients are part of messages and tracebacks. A message stays on its line, a traceback is indented, and
    control characters are written as escapes. So no text looks like a record or moves the terminal's cursor.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of logging.Formatter's method
        line = _escaped(super().formatMessage(record))
        # The message contains the session.
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
    """A text with escaped control characters, so that it has no line breaks and no terminal escape sequences."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def _subjects(record: logging.LogRecord) -> dict[str, Any]:
    values = {name: getattr(record, name, None) for name in _SUBJECTS}
    return {name: value for name, value in values.items() if value is not None}
