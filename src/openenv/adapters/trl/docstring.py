"""Docstrings with Google sections: read from functions and tools, written for methods that have none."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Doc", "read_doc", "write_doc"]

_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Return|Raises|Yields|Example|Examples|Note|Notes|Attributes):[ \t]*",
    re.MULTILINE,
)
_ENTRY = re.compile(r"^\*{0,2}(\w+)[ \t]*(?:\([^)\n]*\))?:[ \t]*(.*)")
_RETURN = frozenset({"Returns", "Return"})
_ARGUMENTS = frozenset({"Args", "Arguments", "Parameters"})


class Doc(NamedTuple):
    """What a docstring says.

    Attributes:
        summary: Everything before the first section.
        arguments: What is said of each argument, on one line.
        returns: What is said of the result, on one line.
    """

    summary: str
    arguments: Mapping[str, str]
    returns: str


def read_doc(text: str | None) -> Doc:
    """Reads a docstring; one without sections is all summary."""
    sections = _SECTION.split(inspect.cleandoc(text or ""))
    summary, arguments, returns = sections[0].strip(), {}, ""
    for title, body in zip(sections[1::2], sections[2::2], strict=True):
        if title in _ARGUMENTS:
            arguments = _entries(body)
        elif title in _RETURN:
            returns = _one_line(body)
    return Doc(summary, arguments, returns)


def write_doc(doc: Doc) -> str:
    """A docstring of three sections at most, from which a reader gets these words and no others."""
    text = _harmless(doc.summary)
    if doc.arguments:
        lines = (f"    {name}: {_harmless(_one_line(words))}" for name, words in doc.arguments.items())
        text += "\n\nArgs:\n" + "\n".join(lines)
    if doc.returns:
        text += f"\n\nReturns:\n    {_harmless(_one_line(doc.returns))}"
    return text


def _entries(body: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    lines = inspect.cleandoc("\n" + body.expandtabs()).splitlines()
    name = ""
    for line in lines:
        found = None if line.startswith(" ") else _ENTRY.match(line)
        if found:
            name = found[1]
            entries[name] = found[2].strip()
        elif name:
            entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _harmless(text: str) -> str:
    """Without what would begin a section in the middle of a text, or a list of choices at its end."""
    text = re.sub(r"\b(Args|Returns|Raises):", r"\1 -", text)
    return re.sub(r"(\(choices:.*\))\s*$", r"\1.", text, flags=re.IGNORECASE | re.DOTALL)
