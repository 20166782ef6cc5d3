"""What a server publishes about its environment for a conversation: `chat`, the action schema, and its tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from .._asyncio import on_thread
from ..chat import Chat
from ..client.endpoints import http_url
from ..client.mcp_client import ask_session, rpc_error
from ..client.tasks import fetch_json
from ..errors import CapacityError, ProtocolViolation, Unauthorized, UsageError
from ..mcp.types import NO_TOOLS, McpMethod
from ..protocol.contract import Contract
from ..server.auth import ANONYMOUS
from ..server.metadata import environment_metadata

_LISTING: dict[str, Any] = {"method": McpMethod.TOOLS_LIST.value, "params": {}}
_NO_LIST: dict[str, Any] = {"result": {"tools": []}}


@dataclass(frozen=True)
class ServerFacts:
    """What a server publishes.

    Attributes:
        chat: What the author declared; None if nothing.
        description: The description of the environment.
        action_schema: JSON Schema of an action.
        tools: The tools of an MCP environment, as it lists them; empty without.
        name: Name of the environment.
        contract: Hash of its contract; None if its schemas cannot be read.
    """

    chat: Chat | None
    description: str
    action_schema: dict[str, Any]
    tools: list[dict[str, Any]]
    name: str = ""
    contract: str | None = None


async def server_facts(client: Any) -> ServerFacts:
    """Asks the server of a client. See `ChatView.from_server`."""
    client = getattr(client, "async_client", client)
    client = getattr(client, "_client", client)  # a `VectorEnvClient` has the client of one environment
    facts: ServerFacts = await client._routed(_ask(client))
    return facts


async def _ask(client: Any) -> ServerFacts:
    await client._host()
    # On a server of one session, only the client's own can list the tools.
    listing = None
    if client._held is not None:
        try:
            listing = await ask_session(client, _LISTING["method"], {}, client._message_timeout_s)
        except UsageError:  # a server without tools, in an older version
            listing = _NO_LIST
    if client._app is not None:
        server = client._app.state.openenv
        if listing is not None:
            metadata = (await environment_metadata(server)).model_dump()
            return _facts(metadata, server.schemas, _tools_in(listing))
        info = await server.about.tell(ANONYMOUS)
        if info.notes:
            raise CapacityError("; ".join(info.notes))
        return _facts(info.metadata, server.schemas, info.tools or [])
    base, headers = http_url(str(client._url)), dict(client._options.headers)
    timeout_s = client._options.connect_timeout_s

    def ask(path: str, body: Any = None) -> Any:
        return fetch_json(f"{base}/{path}", body, headers, timeout_s)

    def ask_all() -> ServerFacts:
        metadata, schemas = ask("metadata"), ask("schema")
        try:
            listed = listing or ask("mcp", {"jsonrpc": "2.0", "id": 1, **_LISTING})
        except Unauthorized:
            raise
        except UsageError:  # no such endpoint
            listed = _NO_LIST
        return _facts(metadata, schemas, _tools_in(listed))

    return await on_thread(ask_all)


def _tools_in(reply: Any) -> list[dict[str, Any]]:
    """The tools in a JSON-RPC reply; empty if the environment has none."""
    error = reply.get("error") if isinstance(reply, dict) else None
    if error is not None:
        if NO_TOOLS.partition(":")[0] in str(error):
            return []
        raise rpc_error("", error)
    try:
        return [dict(each) for each in reply["result"]["tools"]]
    except (LookupError, TypeError, ValueError) as trouble:
        raise ProtocolViolation(f"the server's reply lists no tools: {reply!r:.200}") from trouble


def _facts(metadata: Any, schemas: Any, tools: list[dict[str, Any]]) -> ServerFacts:
    if not isinstance(metadata, dict) or not isinstance(schemas, dict):
        raise ProtocolViolation(f"the server does not describe its environment: {metadata!r:.100}, {schemas!r:.100}")
    chat, action = metadata.get("chat"), schemas.get("action")
    try:
        chat = None if chat is None else Chat.model_validate(chat)
    except ValidationError as error:
        raise ProtocolViolation(f"this version cannot read the server's `chat`, give chat=: {error}") from error
    try:
        contract = Contract(schemas).hash
    except ValueError:
        contract = None
    return ServerFacts(
        chat,
        str(metadata.get("description") or ""),
        action if isinstance(action, dict) else {},
        tools,
        str(metadata.get("name") or ""),
        contract,
    )
