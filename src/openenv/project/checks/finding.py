"""What one check saw."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

__all__ = ["Finding", "Level", "Outcome"]


class Level(StrEnum):
    """How far checks go; each level includes those before it. `URL` is for servers of any implementation."""

    STATIC = "static"
    RUNTIME = "runtime"
    LOAD = "load"
    URL = "url"


class Outcome(StrEnum):
    """What came of a check. Only `FAIL` fails the whole; what was skipped says why in `saw`."""

    PASS = "pass"  # noqa: S105 - the name of an outcome
    WARNING = "warning"
    FAIL = "fail"
    SKIPPED = "skipped"


class Finding(BaseModel):
    """What one check saw.

    Attributes:
        check: Its id, of `level.what-is-checked` form, as in `runtime.seed`; it never changes its meaning.
        level: Of the check.
        outcome: What came of it.
        saw: What was seen, in one line: the values, the file and the line.
        mend: What to do about it; None where there is nothing to do.
        seconds: How long it took.
    """

    model_config = ConfigDict(frozen=True)

    check: str
    level: Level
    outcome: Outcome
    saw: str
    mend: str | None = None
    seconds: float = 0.0
