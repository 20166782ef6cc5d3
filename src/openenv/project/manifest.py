"""`openenv.yaml`: what a project says of itself."""

from __future__ import annotations

import datetime
import difflib
import re
import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ..errors import UsageError
from .yaml_text import Place, YamlText

__all__ = ["FILE_NAME", "Manifest", "Remark", "remarks"]

FILE_NAME = "openenv.yaml"
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")
# It is part of addresses, and of names of images.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
# How much a key must be like another to be taken for a slip of the pen.
_LIKE = 0.75
_TEXTS = ("version", "description")
# Values of any size and depth, in messages.
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = 100


def _reference(value: Any) -> Any:
    if isinstance(value, str) and not _REFERENCE.fullmatch(value):
        raise ValueError("write module:attribute, or the name of a class")
    return value


def _app(value: Any) -> Any:
    if not isinstance(value, str) or ":" not in value or not _REFERENCE.fullmatch(value):
        raise ValueError("must say module:attribute, as in `app: server.app:app`")
    return value


def _text(value: Any) -> Any:
    """A number where text is meant: YAML reads `version: 1.0` as one."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


Reference = Annotated[str, BeforeValidator(_reference)]
Text = Annotated[str, BeforeValidator(_text)]


class Manifest(BaseModel):
    """The contents of an `openenv.yaml`. Keys that nobody here knows are left alone.

    Attributes:
        path: The file.
        spec_version: Of this format.
        name: Of the environment; that of the folder, if the file has none.
        app: What to serve, as module:attribute.
        client, action, observation, environment: Classes, as module:attribute or by their names alone. None: whoever
            needs one looks for it.
        execution: Where the environment runs, as its class may declare it.
        limits: Numbers by the names of server settings, for whoever deploys it.
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
            UsageError: There is none, or it is not valid; the message names the file, line, column and key.
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
            faults = "; ".join(_fault(fault, text) for fault in error.errors(include_url=False))
            raise UsageError(f"{path}: {faults}") from None


class Remark(NamedTuple):
    """What is valid in a manifest, and most likely not meant.

    Attributes:
        place: Where it stands.
        saw: What was seen.
        mend: What to do about it.
    """

    place: Place
    saw: str
    mend: str


def remarks(place: Path) -> list[Remark]:
    """What in a manifest, or in that of a folder, looks like a mistake, in the order of its lines.

    Raises:
        UsageError: It cannot be read.
    """
    from ..settings import ServerSettings  # which is a model of many fields, and only here needed

    text = YamlText.read(_path(place))
    known = [name for name in Manifest.model_fields if name != "path"]
    limits = list(ServerSettings.model_fields)
    found = [
        *_twice(text.keys()),
        *_unknown(text.keys(), known, "is no key that openenv knows"),
        *_unknown(text.keys("limits"), limits, "is no setting of a server", every=True),
        *_name(text),
    ]
    return sorted(found, key=lambda remark: remark.place)


def _path(place: Path) -> Path:
    return place / FILE_NAME if place.is_dir() else place


def _twice(keys: Iterable[tuple[str, Place]]) -> Iterator[Remark]:
    first: dict[str, Place] = {}
    for key, place in keys:
        if key in first:
            yield Remark(place, f"`{key}` is given twice; that in line {first[key].line} has no effect", "remove one")
        first[key] = place


def _unknown(
    keys: Iterable[tuple[str, Place]], known: list[str], words: str, every: bool = False
) -> Iterator[Remark]:
    """Keys that nobody reads: every one, or those alone that are like one that somebody reads."""
    for key, place in keys:
        close = difflib.get_close_matches(key.lower().replace("-", "_"), known, 1, _LIKE)
        if key not in known and (close or every):
            mend = f"write `{close[0]}`" if close else "remove it, or see docs/settings.md"
            yield Remark(place, f"`{key}` {words}, and has no effect", mend)


def _name(text: YamlText) -> Iterator[Remark]:
    name, place = text.written("name"), text.place(["name"])
    if name and place is not None and not _NAME.fullmatch(name):
        other = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower()
        other = other if _NAME.fullmatch(other) else f"env_{other}".rstrip("_")
        yield Remark(place, f"`name` {name!r} cannot be part of an address or of an image's name", f"call it {other}")


def _fault(fault: Any, text: YamlText) -> str:
    key = ".".join(map(str, fault["loc"]))
    # Of unions, pydantic names the kind that it tried at the end of the way.
    place = text.place(fault["loc"])
    where = "" if place is None else f"{place}: "
    return f"{where}`{key}` {fault['msg'].removeprefix('Value error, ')}, got {_SHORT.repr(fault['input']):.100}"
