"""Parse and change a Dockerfile. Changes keep the line numbers."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..errors import UsageError

BASE = "BASE_IMAGE"
"""The build argument for the base image in Dockerfiles of projects."""
_FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(?P<image>\S+)(?:\s+AS\s+(?P<stage>\S+))?\s*$", re.IGNORECASE)
_ESCAPE = re.compile(r"#\s*escape\s*=\s*(\S)", re.IGNORECASE)
_PORT_OPTION = re.compile(r"--port[\"',=\s]+(\d+)")
_ADDRESS = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0)(?:\]|):(\d+)")
# Options that speed up a build without changing its result. Engines without BuildKit do not have them.
_CACHE_MOUNT = re.compile(r"--mount=(?=\S*\btype=cache\b)\S+ ?")
_LINK = re.compile(r"--link(=\S+)? ?")
_HEREDOC = re.compile(r"(?<=\s)<<-?(['\"]?)[A-Za-z_]\w*\1")
# A pattern, a variable, or a URL.
_NO_NAME = re.compile(r"[*?\[$<]|://")
# Features that need BuildKit, by keyword.
_NEEDS_BUILDKIT = {
    "RUN": re.compile(r"--(mount|network|security)=\S+"),
    "COPY": re.compile(r"--(chmod|parents|exclude)\b\S*"),
    "ADD": re.compile(r"--(chmod|keep-git-dir|checksum|exclude)\b\S*"),
}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        word: The keyword in capitals: FROM, RUN, ...
        text: The whole instruction, in one line.
        first: Number of its first line.
        last: Number of its last line.
    """

    word: str
    text: str
    first: int
    last: int

    @property
    def rest(self) -> str:
        """The text after the word."""
        return self.text[len(self.word) :].strip()

    @property
    def sources(self) -> list[str]:
        """The sources of a COPY or ADD in the context."""
        if self.word not in {"COPY", "ADD"} or "--from=" in self.text:
            return []
        return [word.strip('[]",') for word in self.rest.split() if not word.startswith("--")][:-1]


@dataclass(frozen=True, slots=True)
class BuildStage:
    """One stage of a Dockerfile, which builds an image.

    Attributes:
        name: Its name in lowercase, or its number.
        image: Its base, as written there: `${BASE_IMAGE}`, an image, or another stage.
        instructions: The instructions of its base stage, and then its own.
    """

    name: str
    image: str
    instructions: list[Instruction]

    def last(self, word: str) -> Instruction | None:
        """The last instruction with a keyword, which overrides the earlier ones."""
        return next((each for each in reversed(self.instructions) if each.word == word), None)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A Dockerfile.

    Attributes:
        name: Its name in error messages.
        lines: Its lines, without their ends.
    """

    name: str
    lines: tuple[str, ...]

    @classmethod
    def read(cls, path: Path, name: str | None = None) -> Self:
        """Reads a file.

        Raises:
            UsageError: It cannot be read, or has no FROM.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UsageError(f"there is no {path}: set the Dockerfile with --dockerfile") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None
        found = cls(name or str(path), tuple(text.splitlines()))
        if not any(each.word == "FROM" for each in found.instructions()):
            raise UsageError(f"{found.name} has no FROM: begin it with `FROM python:3.12-slim`")
        return found

    @property
    def text(self) -> str:
        """The whole text."""
        return "\n".join(self.lines) + "\n"

    def instructions(self) -> list[Instruction]:
        """Its instructions, in their order: engines without BuildKit call the first one step 1."""
        directives = itertools.takewhile(lambda line: line.lstrip().startswith("#"), self.lines)
        named = map(_ESCAPE.match, map(str.strip, directives))
        escape = next((match[1] for match in named if match is not None), "\\")
        found: list[Instruction] = []
        parts: list[str] = []
        first = 0
        for number, line in enumerate(self.lines, 1):
            bare = line.strip()
            if bare.startswith("#") or not bare:
                continue
            first = first if parts else number
            goes_on = bare.endswith(escape)
            parts.append(bare.removesuffix(escape).strip() if goes_on else bare)
            if not goes_on:
                found.append(_instruction(parts, first, number))
                parts = []
        if parts:
            found.append(_instruction(parts, first, len(self.lines)))
        return found

    def sources(self) -> list[str]:
        """The paths that it copies from its context, if they are literal."""
        return [word for each in self.instructions() for word in each.sources if not _NO_NAME.search(word)]

    @property
    def base(self) -> str:
        """The base image of the last stage, through all stages, as written: `${BASE_IMAGE}`, or an image."""
        stages = {stage.name: stage.image for stage in self.stages()}
        image = list(stages.values())[-1]
        while image.lower() in stages and stages[image.lower()] != image:
            image = stages[image.lower()]
        return image

    def stages(self) -> list[BuildStage]:
        """The stages in order; the image of the last one is the result.

        Raises:
            UsageError: A FROM names no image.
        """
        stages: list[BuildStage] = []
        for each in self.instructions():
            if each.word == "FROM":
                found = _FROM.match(each.text)
                if found is None:
                    raise UsageError(f"{self.name}, line {each.first}: `{each.text}` names no image")
                name, image = (found["stage"] or str(len(stages))).lower(), found["image"]
                parents = [stage.instructions for stage in stages if stage.name == image.lower()]
                stages.append(BuildStage(name, image, [*parents[-1]] if parents else []))
            elif stages:
                stages[-1].instructions.append(each)
        return stages

    @property
    def command(self) -> str | None:
        """The command line of its image, by its last CMD, if there is one."""
        found = self.stages()[-1].last("CMD")
        if found is None:
            return None
        try:
            words = json.loads(found.rest)
        except ValueError:
            return found.rest
        return shlex.join(words) if isinstance(words, list) else found.rest

    def ports(self) -> dict[str, tuple[int, int]]:
        """Ports in the last stage: the port and the line, by instruction."""
        found: dict[str, tuple[int, int]] = {}
        for stage in self.stages()[-1:]:
            for each in stage.instructions:
                for word in each.rest.split() if each.word == "EXPOSE" else ():
                    number = word.partition("/")[0]
                    if number.isdigit():
                        found[f"EXPOSE {word}"] = (int(number), each.first)
            for name, pattern in (("CMD", _PORT_OPTION), ("ENTRYPOINT", _PORT_OPTION), ("HEALTHCHECK", _ADDRESS)):
                last = stage.last(name)
                for number in pattern.findall(last.rest) if last is not None else ():
                    assert last is not None
                    found[name] = (int(number), last.first)
        return found

    def with_base(self, image: str) -> Self:
        """A copy with another base image, for the last stage and for each stage with the same base."""
        base = self.base
        if base in {f"${{{BASE}}}", f"${BASE}"}:
            for each in self.instructions():
                if each.word == "ARG" and re.match(rf"ARG\s+{BASE}\b", each.text, re.IGNORECASE):
                    return self._replaced(each, f"ARG {BASE}={image}")
        found = self
        for each in self.instructions():
            match = _FROM.match(each.text) if each.word == "FROM" else None
            if match is not None and match["image"] == base:
                at = match.start("image")
                found = found._replaced(each, each.text[:at] + image + each.text[match.end("image") :])
        return found

    def with_variable(self, name: str, value: str) -> Self:
        """A copy with an environment variable added to the last stage."""
        return type(self)(self.name, (*self.lines, f"ENV {name}={value}"))

    def for_any_engine(self) -> Self:
        """A copy for engines without BuildKit, without the features that only speed up builds.

        Raises:
            UsageError: Another feature needs BuildKit; the message has the line.
        """
        lines = list(self.lines)
        for each in self.instructions():
            for at in range(each.first - 1, each.last):
                if each.word == "RUN":
                    lines[at] = _CACHE_MOUNT.sub("", lines[at])
                elif each.word in {"COPY", "ADD"}:
                    lines[at] = _LINK.sub("", lines[at])
        found = type(self)(self.name, tuple(lines))
        for each in found.instructions():
            wanted = _NEEDS_BUILDKIT.get(each.word)
            # Only options directly after the keyword: commands may contain the same words.
            flags = re.match(r"\S+((?:\s+--\S+)*)", each.text)
            if wanted is None or flags is None:
                continue
            needed = wanted.search(flags[1]) or _HEREDOC.search(each.text)
            if needed is not None:
                raise UsageError(
                    f"{self.name}, line {each.first}: `{needed[0]}` needs BuildKit, which is not used here: leave it "
                    f"out, or build with `docker buildx build -f {self.name} .`"
                )
        return found

    def _replaced(self, old: Instruction, text: str) -> Self:
        """A copy with another instruction in its place, on the same number of lines."""
        empty = ("",) * (old.last - old.first)
        return type(self)(self.name, (*self.lines[: old.first - 1], text, *empty, *self.lines[old.last :]))


def _instruction(parts: list[str], first: int, last: int) -> Instruction:
    text = " ".join(part for part in parts if part)
    return Instruction(text.split(maxsplit=1)[0].upper() if text else "", text, first, last)
