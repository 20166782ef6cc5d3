"""`openenv.yaml`: what a project says of itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ..errors import UsageError

__all__ = ["FILE_NAME", "Manifest"]

FILE_NAME = "openenv.yaml"
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")


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
            UsageError: There is none, or it is not valid; the message names the file and the key.
        """
        path = place / FILE_NAME if place.is_dir() else place
        try:
            contents = yaml.safe_load(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UsageError(f"there is no {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None
        except yaml.YAMLError as error:
            raise UsageError(f"{path} is no YAML: {error}") from None
        if not isinstance(contents, dict):
            found = "is empty" if contents is None else f"is a {type(contents).__name__}"
            raise UsageError(f"{path} {found}: it must have keys and values, as in `app: server.app:app`")
        given = {str(key): value for key, value in contents.items() if value is not None}
        try:
            return cls.model_validate({"name": path.resolve().parent.name, **given, "path": path})
        except ValidationError as error:
            raise UsageError("; ".join(f"{path}: {_fault(fault)}" for fault in error.errors())) from None


def _fault(fault: Any) -> str:
    key = ".".join(map(str, fault["loc"]))
    return f"`{key}` {fault['msg'].removeprefix('Value error, ')}, got {fault['input']!r:.100}"
