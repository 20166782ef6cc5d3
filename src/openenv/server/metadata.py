"""The description of an environment: metadata and README, reset schema, tools, and the author's panel."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
from pydantic import ConfigDict, Field, create_model
from pydantic_core import to_json

from .._asyncio import shielded
from ..environment import Environment, chat_of, metadata_of
from ..errors import OpenEnvError, StepFailed
from ..mcp.environment import MCPEnvironment, answer
from ..mcp.types import ToolRequest
from ..protocol.json_schema import schema_of
from ..runtime.executor import error_text
from ..runtime.manager import opened_session, result_of
from ..runtime.profile import class_of, is_asynchronous, profile_of
from ..runtime.session import Session
from ..settings import ServerSettings
from ..telemetry.logs import warn_once
from ..types import EnvironmentMetadata
from .auth import Principal

if TYPE_CHECKING:
    from .server import EnvironmentServer

# Most bytes of a README that the page shows.
README_BYTES = 1024 * 1024
# Most bytes of an openenv.yaml that a server reads.
MANIFEST_BYTES = 64 * 1024
# The path in images of environments.
CONTAINER_README = Path("/app/README.md")


async def environment_metadata(server: EnvironmentServer) -> EnvironmentMetadata:
    """Reads the metadata. Makes an instance only if the class overrides what `Environment` defines.

    Raises:
        CapacityError: An instance is needed and every slot is taken.
        EnvironmentFailed: `get_metadata` or the constructor raised.
    """
    cls = class_of(server.env_factory)
    if cls is not None and not describes_itself(cls):
        metadata = description_of(cls)
    else:
        async with opened_session(server.manager) as session:
            info = await result_of(lambda done: session.call(_ask, None, done))
        metadata = EnvironmentMetadata.model_validate(info)  # a dict, from an environment in another process
    if cls is not None and not profile_of(cls).seedable:
        metadata.seedable = False
    return with_readme(metadata, server.settings, cls)


def with_readme(
    metadata: EnvironmentMetadata, settings: ServerSettings, cls: type[Any] | None
) -> EnvironmentMetadata:
    """Adds the README that a server shows, if the metadata has none.

    The README is the configured file, or else a README.md next to the environment's module, in the folder above it,
    or in the image's folder.
    """
    if metadata.readme_content is None:
        candidates = [] if settings.readme_path is None else [Path(settings.readme_path)]
        places = [] if cls is None else places_of(cls)
        candidates += [place / "README.md" for place in places if (place / "openenv.yaml").exists()]
        metadata.readme_content = _first_text([*candidates, CONTAINER_README], README_BYTES)
    return metadata


def describes_itself(cls: type[Any]) -> bool:
    """Whether the class has its own `get_metadata`, which only an instance can answer."""
    return getattr(cls, "get_metadata", None) not in (None, Environment.get_metadata)


def description_of(cls: type[Any]) -> EnvironmentMetadata:
    """Name, description and version from the project's openenv.yaml; without one, from the class."""
    text = _first_text((place / "openenv.yaml" for place in places_of(cls)), MANIFEST_BYTES)
    return metadata_of(cls).model_copy(update={} if text is None else _manifest_facts(text))


@lru_cache(maxsize=16)
def _manifest_facts(text: str) -> dict[str, str]:
    """Name, description and version in an openenv.yaml. Cached, since PyYAML takes milliseconds."""
    import yaml  # noqa: PLC0415 - only projects have the file

    try:
        known = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # `openenv validate` says where
        return {}
    if not isinstance(known, dict):
        return {}
    return {key: str(known[key]) for key in ("name", "description", "version") if known.get(key)}


def places_of(cls: type[Any]) -> list[Path]:
    """The folders to search for files of an environment: its module's, then its project's."""
    try:
        module = inspect.getsourcefile(cls)
    except (OSError, TypeError):  # defined in a notebook, or not written in Python
        return []
    if module is None:
        return []
    folder = Path(module).resolve().parent
    # Only in projects: the folder above site-packages is not part of a project.
    return [folder, *([folder.parent] if (folder.parent / "openenv.yaml").exists() else [])]


def load_environment_metadata(
    env: Environment[Any, Any, Any] | Callable[[], Any], env_name: str | None = None
) -> EnvironmentMetadata:
    """The metadata of an environment. Makes no instance.

    Args:
        env: An instance, whose `get_metadata` is called; or a factory, of which only the class is read.
        env_name: The name that replaces the name of the class.

    Returns:
        The metadata, with the README that `GET /metadata` shows.
    """
    cls = type(env) if isinstance(env, Environment) else class_of(env)
    if isinstance(env, Environment):
        metadata = env.get_metadata()
    elif cls is not None:
        metadata = description_of(cls)
        metadata.name = env_name or metadata.name
    else:
        name = env_name or str(getattr(env, "__name__", type(env).__name__))
        metadata = EnvironmentMetadata(name=name, description=f"{name} environment", version="1.0.0")
    return with_readme(metadata, ServerSettings.read(), cls)


def _ask(environment: Any, _: None) -> EnvironmentMetadata:
    """Its own metadata; with the `chat` of the class, if its `get_metadata` leaves that out."""
    metadata = EnvironmentMetadata.model_validate(environment.get_metadata())
    return metadata.model_copy(update={"chat": metadata.chat or chat_of(type(environment))})


def _first_text(files: Iterable[Path], most_bytes: int) -> str | None:
    """The text of the first file that exists, is readable and is not too large."""
    for file in files:
        with contextlib.suppress(OSError):  # no permission, or deleted in the meantime
            if file.is_file() and file.stat().st_size <= most_bytes:
                return file.read_text(encoding="utf-8", errors="replace")
    return None


logger = logging.getLogger("openenv.server")

PANEL = "panel.html"
PANEL_BYTES = 4 * 1024 * 1024

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# The types of these arguments where the signature has no annotation.
_USUAL: dict[str, Any] = {"seed": int | None, "episode_id": str | None}
# The limits that the endpoints set for these arguments, for every environment.
_BOUNDS: dict[str, dict[str, Any]] = {"seed": {"minimum": 0}, "episode_id": {"maxLength": 255}}

ANY_RESET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "seed": {"type": "integer", "minimum": 0, "title": "Seed"},
        "episode_id": {"type": "string", "maxLength": 255, "title": "Episode id"},
    },
    "additionalProperties": True,
}
"""The JSON Schema for the arguments of a reset whose signature is not known."""


class EnvironmentInfo(msgspec.Struct):
    """The facts about an environment.

    Attributes:
        metadata: The fields of an `EnvironmentMetadata`.
        reset_schema: JSON Schema of the arguments of its reset.
        seedable: Whether one of them is a seed.
        panel: The HTML of its author's panel.
        tools: Its tools; None for an environment without tools.
        notes: Messages about facts that are missing.
    """

    metadata: dict[str, Any]
    reset_schema: dict[str, Any] = msgspec.field(default_factory=lambda: ANY_RESET)
    seedable: bool = True
    panel: str | None = None
    tools: list[dict[str, Any]] | None = None
    notes: list[str] = msgspec.field(default_factory=list)


def class_info(cls: type[Any]) -> EnvironmentInfo:
    """The facts that the class provides, without an instance."""
    metadata = description_of(cls).model_dump()
    panel = _first_text((place / PANEL for place in places_of(cls)), PANEL_BYTES)
    return EnvironmentInfo(metadata, _reset_schema(cls), profile_of(cls).seedable, panel)


def instance_info(environment: Any, _: None) -> str:
    """The operation that reads the same facts from an instance, as JSON."""
    info = class_info(type(environment))
    if describes_itself(type(environment)):
        info.metadata = _ask(environment, None).model_dump()
    return to_json(msgspec.to_builtins(info), inf_nan_mode="strings", fallback=repr).decode()


def _reset_schema(cls: type[Any]) -> dict[str, Any]:
    """A schema of the arguments in the signature. An argument without a type that forms support accepts any value."""
    try:
        reset = getattr(cls, "reset_async" if is_asynchronous(cls) else "reset")
        parameters = list(inspect.signature(reset).parameters.values())[1:]
        hints: dict[str, Any] = {}
        for name, annotation in inspect.get_annotations(reset).items():
            alone = SimpleNamespace(__annotations__={name: annotation})
            with contextlib.suppress(Exception):  # annotations that only a type checker can resolve
                hints |= get_type_hints(alone, getattr(reset, "__globals__", {}), include_extras=True)
        fields = {f"p{number}": _field(each, hints) for number, each in enumerate(parameters) if each.kind in _NAMED}
        model: Any = create_model("Reset", __config__=ConfigDict(arbitrary_types_allowed=True), **fields)
    except Exception as error:  # noqa: BLE001 - the edge to foreign code: signatures and types bring their own functions
        warn_once(
            logger,
            "the parameters of the reset of %s cannot be read, so its form accepts any value: %s",
            cls.__qualname__,
            error_text(error),
        )
        return ANY_RESET
    further = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return {**(schema_of(model) or ANY_RESET), "additionalProperties": further}


def _field(parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
    """A parameter as a field of a model. The field gets another name, since models forbid some names."""
    kind = hints.get(parameter.name, _USUAL.get(parameter.name, Any))
    default = ... if parameter.default is parameter.empty else parameter.default
    bounds = _BOUNDS.get(parameter.name, {})
    title = parameter.name.replace("_", " ").capitalize()
    field = Field(default, alias=parameter.name, title=title, json_schema_extra=bounds)
    return (kind if schema_of(kind) is not None else Any, field)


# Seconds that a page waits for an instance while it opens.
ASKING_S = 10.0
_LISTING = ToolRequest(None, {}, standard=True)


class EnvironmentInfoLoader:
    """Asks the environment of one server.

    Args:
        server: The server of the environment.
    """

    def __init__(self, server: EnvironmentServer):
        self._server = server
        self._known: EnvironmentInfo | None = None
        self._asking: asyncio.Task[EnvironmentInfo] | None = None

    async def tell(self, principal: Principal) -> EnvironmentInfo:
        """The facts about the environment. If the class does not provide all, the first request makes an instance.

        If that fails, the answer has only the facts of the class and a note, and the next request tries again.
        """
        if self._known is not None:
            return self._known
        asking = self._asking
        if asking is None or asking.done():
            asking = self._asking = asyncio.create_task(self._ask(principal))
        known = await shielded(asking)
        if not known.notes:
            self._known = known
        return known

    async def _ask(self, principal: Principal) -> EnvironmentInfo:
        server = self._server
        cls = class_of(server.env_factory)
        # An instance of this class knows no more.
        if cls is not None and not describes_itself(cls) and not issubclass(cls, MCPEnvironment):
            info = class_info(cls)
        else:
            info = await self._of_instance(cls, principal)
        metadata = EnvironmentMetadata.model_validate(info.metadata)
        info.metadata = with_readme(metadata, server.settings, cls).model_dump()
        return info

    async def _of_instance(self, cls: type[Any] | None, principal: Principal) -> EnvironmentInfo:
        server = self._server
        try:
            async with asyncio.timeout(ASKING_S):
                async with opened_session(server.manager, principal.holder, principal.peer, wait_s=0) as session:
                    return await _read_instance(session, cls is None or issubclass(cls, MCPEnvironment))
        except TimeoutError:
            why = f"no answer within {ASKING_S:g} s"
        except OpenEnvError as error:
            why = error.message
        logger.warning("the page shows only facts of the class %s, none of an instance: %s", server.env_name, why)
        known = EnvironmentInfo({"name": server.env_name, "description": f"{server.env_name} environment"})
        info = known if cls is None else class_info(cls)
        info.notes.append(f"an instance of the environment could not be queried: {why}")
        return info


async def _read_instance(session: Session, may_have_tools: bool) -> EnvironmentInfo:
    text = await result_of(lambda done: session.call(instance_info, None, done))
    try:
        info = msgspec.json.decode(text, type=EnvironmentInfo)
        EnvironmentMetadata.model_validate(info.metadata)
    except (ValueError, TypeError, RecursionError) as error:  # from an untrusted process
        raise StepFailed(f"its metadata cannot be read: {error}") from error
    info.tools, info.notes = None, []
    if may_have_tools:
        listed = await result_of(lambda done: session.call(answer, _LISTING, done))
        try:
            tools = listed.get("result", {}).get("tools")
            if tools is not None:
                info.tools = [
                    {
                        "name": tool["name"],
                        "description": tool.get("description") or "",
                        "input_schema": tool.get("inputSchema") or tool.get("input_schema") or {"type": "object"},
                    }
                    for tool in tools
                ]
        except (LookupError, TypeError, AttributeError) as error:  # as above
            raise StepFailed(f"its list of tools cannot be read: {error!r}") from error
    return info
