"""A YAML file that people write: what it says, and where in it each thing stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml

from ..errors import UsageError

__all__ = ["Place", "YamlText"]


class Place(NamedTuple):
    """Where something stands, counted from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"

    @classmethod
    def of(cls, mark: Any) -> Self:
        """That of a mark of yaml's."""
        return cls(mark.line + 1, mark.column + 1)


class YamlText:
    """The contents of a file.

    Attributes:
        value: What it says, as plain data.
    """

    def __init__(self, value: Any, root: yaml.Node | None):
        self.value = value
        self._root = root

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file.

        Raises:
            UsageError: There is none, it cannot be read, or it is no YAML; the message has line and column.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UsageError(f"there is no {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None
        try:
            return cls(yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader))
        except yaml.YAMLError as error:
            raise UsageError(f"{path} is no YAML: {_fault(error, text)}") from None
        except RecursionError:
            raise UsageError(f"{path} is nested too deeply") from None
        except ValueError as error:  # of a date that is none
            raise UsageError(f"{path} is no YAML: {error}; put texts that look like dates in quotes") from None

    def place(self, keys: Sequence[str | int]) -> Place | None:
        """Where a value stands, or else what is nearest to it of that which holds it.

        Args:
            keys: The way to it: keys of mappings, numbers of items.
        """
        node = self._root
        for key in keys:
            inner = _inner(node, key)
            if inner is None:
                break
            node = inner
        return None if node is None else Place.of(node.start_mark)

    def written(self, key: str) -> str | None:
        """The text of a value at the top as it is written: `1.10`, which YAML reads as 1.1."""
        node = _inner(self._root, key)
        return node.value if isinstance(node, yaml.ScalarNode) else None

    def keys(self, *way: str) -> Iterator[tuple[str, Place]]:
        """The keys at the top, or of the mapping at a way, as often as they are given."""
        node = self._root
        for key in way:
            node = _inner(node, key)
        if isinstance(node, yaml.MappingNode):
            for key_node, _ in node.value:
                if isinstance(key_node, yaml.ScalarNode):
                    yield key_node.value, Place.of(key_node.start_mark)


def _inner(node: yaml.Node | None, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        found: yaml.Node = node.value[key]
        return found
    if isinstance(node, yaml.MappingNode):
        # Of keys that are given twice, the last one counts.
        return next((value for name, value in reversed(node.value) if getattr(name, "value", None) == str(key)), None)
    return None


def _fault(error: yaml.YAMLError, text: str) -> str:
    """What is wrong with it, and where, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        words = error.problem or error.context or "it cannot be read"
        tab = "; indent with spaces, not with tabs" if "'\\t'" in words else ""
        context = "" if not error.context or error.context == words else f" ({_within(error)})"
        return f"{Place.of(error.problem_mark)}: {words}{context}{tab}"
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        place = Place(before.count("\n") + 1, len(before) - before.rfind("\n"))
        return f"{place}: the character {chr(error.character)!r} may not be there"
    return " ".join(str(error).split())


def _within(error: yaml.MarkedYAMLError) -> str:
    begun = "" if error.context_mark is None else f" that begins in line {error.context_mark.line + 1}"
    return f"{error.context}{begun}"
