"""What the page is told of an environment; asked once, since it may take an instance."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..environment import Environment
from ..errors import OpenEnvError, StepFailed
from ..execution import class_of
from ..mcp.environment import MCPEnvironment
from ..mcp.methods import Ask, answer
from ..sessions import Session
from ..sessions.waiting import opened_session, result_of
from ..types import EnvironmentMetadata
from .introduction import Introduction, introduce, introduction_of
from .metadata import with_readme
from .visitor import Visitor

if TYPE_CHECKING:
    from .environment_server import HTTPEnvServer

__all__ = ["About", "Known"]

logger = logging.getLogger("openenv.server")

# What a page that is being opened waits for an instance to be made.
ASKING_S = 10.0
_LISTING = Ask(None, {}, standard=True)


class Known(NamedTuple):
    """What a page is told.

    Attributes:
        fields: Those of `EnvironmentMetadata`, `reset_schema`, `seedable`, `tools` (None for an environment without),
            and `notes` of what could not be found out.
        panel: HTML of the author's own panel; None: there is none.
    """

    fields: dict[str, Any]
    panel: str | None


class About:
    """Asks the environment of one server.

    Args:
        server: Whose.
    """

    def __init__(self, server: HTTPEnvServer):
        self._server = server
        self._known: Known | None = None
        self._asking: asyncio.Task[Known] | None = None

    async def tell(self, visitor: Visitor) -> Known:
        """What is known. An instance is made if its class does not tell everything, for the first visitor alone.

        If none can be made, the class alone is told of, with a note, and the next visitor has it asked again.
        """
        if self._known is not None:
            return self._known
        asking = self._asking
        if asking is None or asking.done():
            asking = self._asking = asyncio.create_task(self._ask(visitor))
        known = await asyncio.shield(asking)
        if not known.fields["notes"]:
            self._known = known
        return known

    async def _ask(self, visitor: Visitor) -> Known:
        server = self._server
        cls = class_of(server.env_factory)
        if cls is not None and not _says_more(cls):
            return self._known_of(introduction_of(cls), None)
        try:
            async with asyncio.timeout(ASKING_S):
                async with opened_session(server.manager, visitor.holder, visitor.peer, wait_s=0) as session:
                    return await self._of_instance(session, cls is None or issubclass(cls, MCPEnvironment))
        except TimeoutError:
            why = f"no answer within {ASKING_S:g} s"
        except OpenEnvError as error:
            why = error.message
        logger.warning("the page is told of the class of %s alone: %s", server.env_name, why)
        known = Introduction({"name": server.env_name, "description": f"{server.env_name} environment"})
        told = known if cls is None else introduction_of(cls)
        return self._known_of(told, None, f"an instance of the environment could not be asked: {why}")

    async def _of_instance(self, session: Session, may_have_tools: bool) -> Known:
        text = await result_of(lambda done: session.call(introduce, None, done))
        try:
            told = msgspec.json.decode(text, type=Introduction)
            EnvironmentMetadata.model_validate(told.metadata)
        except (ValueError, TypeError, RecursionError) as error:  # of a process in which nobody is to be believed
            raise StepFailed(f"its introduction cannot be read: {error}") from error
        tools = None
        if may_have_tools:
            listed = await result_of(lambda done: session.call(answer, _LISTING, done))
            tools = _tools(listed.get("result", {}).get("tools"))
        return self._known_of(told, tools)

    def _known_of(self, told: Introduction, tools: list[dict[str, Any]] | None, *notes: str) -> Known:
        metadata = with_readme(EnvironmentMetadata.model_validate(told.metadata), self._server)
        fields = {
            **metadata.model_dump(),
            "reset_schema": told.reset_schema,
            "seedable": told.seedable,
            "tools": tools,
            "notes": list(notes),
        }
        return Known(fields, told.panel)


def _says_more(cls: type[Any]) -> bool:
    """Whether an instance knows what its class does not."""
    own = getattr(cls, "get_metadata", None) not in (None, Environment.get_metadata)
    return own or issubclass(cls, MCPEnvironment)


def _tools(wire: Any) -> list[dict[str, Any]] | None:
    """As MCP lists them, under the names that the rest has."""
    try:
        return None if wire is None else [_tool(tool) for tool in wire]
    except (LookupError, TypeError, AttributeError) as error:  # as above
        raise StepFailed(f"its list of tools cannot be read: {error!r}") from error


def _tool(wire: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": wire["name"],
        "description": wire.get("description") or "",
        "input_schema": wire.get("inputSchema") or wire.get("input_schema") or {"type": "object"},
    }
