"""The front matter of a README: what the Hub reads of a Space."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import yaml

from ..errors import UsageError

__all__ = ["FrontMatter"]

_BLOCK = re.compile(r"\A\ufeff?---[ \t]*\r?\n(?P<yaml>.*?)(?:(?<=\n)|\A)---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """A README, and what stands between the two lines `---` at its beginning.

    Attributes:
        text: The whole README.
        values: What its front matter says; empty without one.
    """

    text: str
    values: Mapping[str, Any]

    @classmethod
    def read(cls, text: str, name: str = "README.md") -> Self:
        """Reads a README.

        Args:
            text: Its contents.
            name: What errors call it.

        Raises:
            UsageError: Its front matter is no YAML, or no keys with values; with line and column if they are known.
        """
        block = _BLOCK.match(text)
        if block is None:
            return cls(text, {})
        values = _loaded(block["yaml"], name)
        if not isinstance(values, dict | None):
            raise UsageError(f"{name}: its front matter must have keys and values, as `sdk: docker`")
        return cls(text, {str(key): value for key, value in (values or {}).items()})

    def completed(self, values: Mapping[str, Any]) -> str:
        """The README with keys that it does not have yet; what it says itself stays as it is written."""
        missing = {key: value for key, value in values.items() if self.values.get(key) is None}
        if not missing:
            return self.text
        end = "\r\n" if "\r\n" in self.text.partition("\n---")[0] + "\n" else "\n"
        lines = yaml.safe_dump(missing, sort_keys=False, allow_unicode=True).replace("\n", end)
        block = _BLOCK.match(self.text)
        if block is None:
            return f"---{end}{lines}---{end}{end}{self.text.removeprefix(chr(0xFEFF))}"
        kept = "".join(line for line in block["yaml"].splitlines(keepends=True) if not _is_empty(line, missing))
        return f"---{end}{kept}{lines}---{end}{self.text[block.end() :]}"


def _loaded(text: str, name: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        # The first line of the file is that of the dashes.
        where = f", line {mark.line + 2}, column {mark.column + 1}" if mark is not None else ""
        words = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UsageError(f"{name}{where}: its front matter is no YAML: {words}") from None
    except RecursionError:
        raise UsageError(f"{name}: its front matter is nested too deeply") from None
    except ValueError as error:  # of a date that is none
        raise UsageError(
            f"{name}: its front matter is no YAML: {error}; put texts that look like dates in quotes"
        ) from None


def _is_empty(line: str, missing: Mapping[str, Any]) -> bool:
    """Whether a line is that of a key without a value, which would be there twice."""
    key, colon, _ = line.partition(":")
    return bool(colon) and key.strip("'\"") in missing
