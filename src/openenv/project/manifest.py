"""The manifest of a project: its folder, openenv.yaml, and the front matter of its README."""

from __future__ import annotations

import datetime
import difflib
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ..errors import NotAProject, UsageError
from ..settings import ServerSettings


class YamlPosition(NamedTuple):
    """Line and column, counted from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"

    @classmethod
    def of(cls, mark: Any) -> Self:
        """The position of a mark of PyYAML."""
        return cls(mark.line + 1, mark.column + 1)


def read_text(path: Path, encoding: str = "utf-8", hint: str = "") -> str:
    """The contents of a file, with its line ends.

    Args:
        path: The file.
        encoding: Its encoding.
        hint: The next step if the file is missing, for the end of the message.

    Raises:
        UsageError: It is missing, or cannot be read.
    """
    try:
        return path.read_bytes().decode(encoding)
    except FileNotFoundError:
        raise UsageError(f"there is no {path}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


class YamlText:
    """The contents of a file.

    Attributes:
        value: Its content as plain data.
    """

    def __init__(self, value: Any, root: yaml.Node | None):
        self.value = value
        self._root = root

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file.

        Raises:
            UsageError: The file is missing, cannot be read, or is not YAML; the message has line and column.
        """
        text = read_text(path)
        return cls(_load_yaml(text, str(path)), yaml.compose(text, Loader=yaml.SafeLoader))

    def place(self, keys: Sequence[str | int]) -> YamlPosition | None:
        """The position of a value, or else of its closest parent.

        Args:
            keys: Path to the value: keys of mappings, indices of items.
        """
        node = self._root
        for key in keys:
            inner = _inner(node, key)
            if inner is None:
                break
            node = inner
        return None if node is None else YamlPosition.of(node.start_mark)

    def written(self, key: str) -> str | None:
        """The source text of a top-level value: `1.10`, which YAML reads as 1.1."""
        node = _inner(self._root, key)
        return node.value if isinstance(node, yaml.ScalarNode) else None

    def keys(self, *way: str) -> Iterator[tuple[str, YamlPosition]]:
        """The keys at the top, or of the mapping at a path. Duplicate keys are repeated."""
        node = self._root
        for key in way:
            node = _inner(node, key)
        if isinstance(node, yaml.MappingNode):
            for key_node, _ in node.value:
                if isinstance(key_node, yaml.ScalarNode):
                    yield key_node.value, YamlPosition.of(key_node.start_mark)


def _inner(node: yaml.Node | None, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        found: yaml.Node = node.value[key]
        return found
    if isinstance(node, yaml.MappingNode):
        # The last of duplicate keys has effect.
        return next((value for name, value in reversed(node.value) if getattr(name, "value", None) == str(key)), None)
    return None


def _load_yaml(text: str, name: str) -> Any:
    """The value of a YAML text. Raises `UsageError` if it is not YAML, with its name, line and column."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not valid YAML: {_yaml_error(error, text)}") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
    except ValueError as error:  # an invalid date
        raise UsageError(f"{name} is not valid YAML: {error}; quote strings that look like dates") from None


def _yaml_error(error: yaml.YAMLError, text: str) -> str:
    """The error and its position, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        words = error.problem or error.context or "it cannot be read"
        tab = "; indent with spaces, not with tabs" if "'\\t'" in words else ""
        begun = "" if error.context_mark is None else f" that begins in line {error.context_mark.line + 1}"
        context = "" if not error.context or error.context == words else f" ({error.context}{begun})"
        return f"{YamlPosition.of(error.problem_mark)}: {words}{context}{tab}"
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        place = YamlPosition(before.count("\n") + 1, len(before) - before.rfind("\n"))
        return f"{place}: the character {chr(error.character)!r} is not allowed"
    return " ".join(str(error).split())


_BLOCK = re.compile(r"\A\ufeff?---[ \t]*\r?\n(?P<yaml>.*?)(?:(?<=\n)|\A)---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """A README and its front matter, between the two lines `---` at its beginning.

    Attributes:
        text: The whole README.
        values: The values of its front matter, empty if it has none.
        block: Position of its front matter, None if it has none.
    """

    text: str
    values: Mapping[str, Any]
    block: re.Match[str] | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Parses the contents of a README.

        Raises:
            UsageError: Its front matter is not YAML, or not a mapping; with line and column if known.
        """
        block = _BLOCK.match(text)
        if block is None:
            return cls(text, {})
        # An empty line in place of the dashes, so that the lines of an error are those of the file.
        values = _load_yaml("\n" + block["yaml"], "README.md: its front matter")
        if not isinstance(values, dict | None):
            raise UsageError("README.md: its front matter must have keys and values, such as `sdk: docker`")
        return cls(text, {str(key): value for key, value in (values or {}).items()}, block)

    def completed(self, values: Mapping[str, Any]) -> str:
        """The README with the missing keys added; its own text stays unchanged."""
        missing = {key: value for key, value in values.items() if self.values.get(key) is None}
        if not missing:
            return self.text
        end = "\r\n" if "\r\n" in self.text.partition("\n---")[0] + "\n" else "\n"
        lines = yaml.safe_dump(missing, sort_keys=False, allow_unicode=True).replace("\n", end)
        if self.block is None:
            return f"---{end}{lines}---{end}{end}{self.text.removeprefix(chr(0xFEFF))}"
        kept = ""
        for line in self.block["yaml"].splitlines(keepends=True):
            key, colon, _ = line.partition(":")
            if not colon or key.strip("'\"") not in missing:  # a key without a value would be repeated
                kept += line
        return f"---{end}{kept}{lines}---{end}{self.text[self.block.end() :]}"


FILE_NAME = "openenv.yaml"
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")
# Names are part of addresses and of image names.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
# Similarity to a known key from which on a key counts as misspelt.
_LIKE = 0.75
_TEXTS = ("version", "description")
# Shortens values of any size and depth for messages.
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = 100


def _reference(value: Any) -> Any:
    if isinstance(value, str) and not _REFERENCE.fullmatch(value):
        raise ValueError("must be module:attribute, or the name of a class")
    return value


def _app(value: Any) -> Any:
    if not isinstance(value, str) or ":" not in value or not _REFERENCE.fullmatch(value):
        raise ValueError("must be module:attribute, as in `app: server.app:app`")
    return value


Reference = Annotated[str, BeforeValidator(_reference)]
# A string that YAML reads as a number, such as `version: 1.0`.
_as_text = BeforeValidator(lambda value: str(value) if type(value) in {int, float} else value)
Text = Annotated[str, _as_text]


class Manifest(BaseModel):
    """The contents of an `openenv.yaml`. Unknown keys are ignored.

    Attributes:
        path: The file.
        spec_version: Version of the format.
        name: Name of the environment. By default the name of the folder.
        app: The app to serve, as module:attribute.
        client, action, observation, environment: Classes, as module:attribute or just a name. If None, `AutoEnv`
            searches for the class.
        execution: Where the environment runs, with the same values as the attribute of its class.
        limits: Server settings for deployments: numbers by name.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    path: Path
    spec_version: Literal[1] = 1
    name: Annotated[str, Field(min_length=1)]
    version: Text | None = None
    description: Text | None = None
    type: str = "space"
    runtime: str = "fastapi"
    app: Annotated[str, BeforeValidator(_app)] = "server.app:app"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    client: Reference | None = None
    action: Reference | None = None
    observation: Reference | None = None
    environment: Reference | None = None
    execution: Literal["inline", "thread", "process"] | None = None
    limits: dict[str, int | float | None] = {}
    variables: Any = None

    @classmethod
    def read(cls, place: Path) -> Self:
        """Reads a manifest.

        Args:
            place: The file, or the folder that has it.

        Raises:
            UsageError: It is missing or invalid; the message has the file, line, column and key.
        """
        path = _path(place)
        text = YamlText.read(path)
        contents = text.value
        if not isinstance(contents, dict):
            found = "is empty" if contents is None else f"is a {type(contents).__name__}"
            raise UsageError(f"{path} {found}: it must have keys and values, as in `app: server.app:app`")
        given = {str(key): value for key, value in contents.items() if value is not None}
        for key in _TEXTS:
            if isinstance(given.get(key), (float, datetime.date)):
                given[key] = text.written(key)
        try:
            return cls.model_validate({"name": path.resolve().parent.name, **given, "path": path})
        except ValidationError as error:
            faults = []
            for fault in error.errors(include_url=False):
                # For unions, pydantic adds the tried type at the end of the path.
                position = text.place(fault["loc"])
                where = "" if position is None else f"{position}: "
                key = ".".join(map(str, fault["loc"]))
                reason = fault["msg"].removeprefix("Value error, ")
                faults.append(f"{where}`{key}` {reason}, got {_SHORT.repr(fault['input']):.100}")
            raise UsageError(f"{path}: {'; '.join(faults)}") from None


class Remark(NamedTuple):
    """A valid entry of a manifest that is most likely a mistake.

    Attributes:
        place: Its position.
        saw: The observation.
        fix: How to fix it.
    """

    place: YamlPosition
    saw: str
    fix: str


def remarks(place: Path) -> list[Remark]:
    """The likely mistakes in a manifest (the file, or its folder), in the order of lines.

    Raises:
        UsageError: The manifest cannot be read.
    """
    text = YamlText.read(_path(place))
    known = [name for name in Manifest.model_fields if name != "path"]
    limits = list(ServerSettings.model_fields)
    found = [
        *_unknown(text.keys(), known, "is not a known key"),
        *_unknown(text.keys("limits"), limits, "is not a setting of a server", every=True),
    ]
    first: dict[str, YamlPosition] = {}
    for key, at in text.keys():  # noqa: SIM118 - no mapping: a key may be there twice
        if key in first:
            saw = f"`{key}` is given twice; the first one, in line {first[key].line}, has no effect"
            found.append(Remark(at, saw, "remove one"))
        first[key] = at
    name, named_at = text.written("name"), text.place(["name"])
    if name and named_at is not None and not _NAME.fullmatch(name):
        other = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower()
        other = other if _NAME.fullmatch(other) else f"env_{other}".rstrip("_")
        saw = f"`name` {name!r} cannot be part of an address or of an image's name"
        found.append(Remark(named_at, saw, f"rename it to {other}"))
    return sorted(found, key=lambda remark: remark.place)


def _path(place: Path) -> Path:
    return place / FILE_NAME if place.is_dir() else place


def _unknown(
    keys: Iterable[tuple[str, YamlPosition]], known: list[str], words: str, every: bool = False
) -> Iterator[Remark]:
    """Remarks about unknown keys: all of them, or only those that resemble a known key."""
    for key, place in keys:
        close = difflib.get_close_matches(key.lower().replace("-", "_"), known, 1, _LIKE)
        if key not in known and (close or every):
            fix = f"write `{close[0]}`" if close else "remove it, or see docs/settings.md"
            yield Remark(place, f"`{key}` {words}, and has no effect", fix)


_DOCKERFILES = ("server/Dockerfile", "Dockerfile")


@dataclass(frozen=True, slots=True)
class Project:
    """A project on disk.

    Attributes:
        folder: Absolute path of its folder.
        manifest: The content of its `openenv.yaml`.
    """

    folder: Path
    manifest: Manifest

    @classmethod
    def find(cls, place: Path) -> Self:
        """The project in a folder.

        Args:
            place: The folder, or its `openenv.yaml`.

        Raises:
            NotAProject: There is no such folder, or no `openenv.yaml` in it.
            UsageError: Its `openenv.yaml` is invalid; the message has the position.
        """
        folder = place.parent if place.name == FILE_NAME else place
        try:
            there, has_manifest = folder.is_dir(), (folder / FILE_NAME).is_file()
        except OSError as error:
            raise NotAProject(
                f"{folder} cannot be accessed: {error.strerror}; use the folder that has the {FILE_NAME}"
            ) from None
        if not there:
            raise NotAProject(f"there is no folder {folder}: use the one that has the {FILE_NAME}")
        if not has_manifest:
            raise NotAProject(
                f"{folder.resolve()} is not a project, since it has no {FILE_NAME}: change to one, or create one "
                "with `openenv init NAME`"
            )
        return cls(folder.resolve(), Manifest.read(folder))

    @property
    def package(self) -> str | None:
        """The import name of its folder; None for a folder that is not a package."""
        return self.folder.name if (self.folder / "__init__.py").is_file() else None

    @property
    def dockerfile(self) -> Path | None:
        """The Dockerfile of its image."""
        return next((self.folder / name for name in _DOCKERFILES if (self.folder / name).is_file()), None)

    @property
    def readme(self) -> Path | None:
        """Its README, which the Hub also reads."""
        path = self.folder / "README.md"
        return path if path.is_file() else None
