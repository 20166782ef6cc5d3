"""What a Dockerfile says, as far as it matters for a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Dockerfile", "Instruction", "Stage"]

_CONTINUED = re.compile(r"\\[ \t]*$")
_PORT_OPTION = re.compile(r"--port[\"',=\s]+(\d+)")
_ADDRESS = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0)(?:\]|):(\d+)")


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
        line: Where it begins, from 1.
        name: In capitals.
        text: The rest, on one line.
    """

    line: int
    name: str
    text: str


@dataclass
class Stage:
    """One image of several that a file builds.

    Attributes:
        base: What it starts from.
        name: What it is called, if it has a name.
        instructions: Its own, and before them those of the stage that it starts from.
    """

    base: str
    name: str | None
    instructions: list[Instruction] = field(default_factory=list)

    def last(self, name: str) -> Instruction | None:
        """The last instruction of a name, which is the one that counts."""
        return next((each for each in reversed(self.instructions) if each.name == name), None)


class Dockerfile:
    """A Dockerfile.

    Args:
        text: Its contents.

    Attributes:
        stages: In their order; the last one is what is built.
    """

    def __init__(self, text: str):
        self.stages: list[Stage] = []
        named: dict[str, Stage] = {}
        for each in _instructions(text):
            if each.name == "FROM":
                words = [word for word in each.text.split() if not word.startswith("--")]
                name = words[2].lower() if len(words) > 2 and words[1].upper() == "AS" else None
                base = words[0] if words else ""
                inherited = named.get(base.lower())
                stage = Stage(base, name, list(inherited.instructions) if inherited else [])
                self.stages.append(stage)
                if name is not None:
                    named[name] = stage
            elif self.stages:
                self.stages[-1].instructions.append(each)

    @property
    def final(self) -> Stage | None:
        """The image that is built; None for a file that builds none."""
        return self.stages[-1] if self.stages else None

    def ports(self) -> dict[str, tuple[int, int]]:
        """Ports that the final image names: by what names them, the port and the line."""
        found: dict[str, tuple[int, int]] = {}
        if self.final is None:
            return found
        for each in self.final.instructions:
            if each.name == "EXPOSE":
                for word in each.text.split():
                    number = word.partition("/")[0]
                    if number.isdigit():
                        found[f"EXPOSE {word}"] = (int(number), each.line)
        for name, pattern in (("CMD", _PORT_OPTION), ("ENTRYPOINT", _PORT_OPTION), ("HEALTHCHECK", _ADDRESS)):
            last = self.final.last(name)
            for number in pattern.findall(last.text) if last is not None else ():
                assert last is not None
                found[name] = (int(number), last.line)
        return found


def _instructions(text: str) -> Iterator[Instruction]:
    began = 0
    parts: list[str] = []
    for line, written in enumerate(text.splitlines(), 1):
        if not written.strip() or written.lstrip().startswith("#"):  # within an instruction too
            continue
        began = began if parts else line
        parts.append(_CONTINUED.sub("", written).strip())
        if not _CONTINUED.search(written):
            yield _instruction(began, parts)
            parts = []
    if parts:
        yield _instruction(began, parts)


def _instruction(line: int, parts: list[str]) -> Instruction:
    name, _, rest = " ".join(parts).partition(" ")
    return Instruction(line, name.upper(), rest.strip())
