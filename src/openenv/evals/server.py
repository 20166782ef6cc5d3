"""The evaluated server: its metadata, and a local server started for the run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from .._http import bearer, fetch
from ..bench.served import ServedTarget
from ..client import GenericEnvClient
from ..client.endpoints import http_url, websocket_url
from ..errors import ConnectionFailed, Unauthorized, UsageError
from ..mcp.types import Tool

ANSWER_S = 10.0
# Most seconds that a session waits for a free slot.
WAIT_S = 10.0
# Seconds between two checks that a server still runs.
LOOK_S = 1.0

T = TypeVar("T")


class EvalServer:
    """A client of the server's HTTP routes.

    Args:
        url: URL of the server, in any form that clients accept.
        api_key: API key for the server.
    """

    def __init__(self, url: str, api_key: str | None = None):
        self.url = url
        self.api_key = api_key

    def environment(self) -> str | None:
        """The environment's name; None if unknown."""
        try:
            name = self._get("/metadata").get("name")
        except (ConnectionFailed, UsageError):
            return None
        return name if isinstance(name, str) else None

    def action_schema(self) -> Mapping[str, Any]:
        """The JSON Schema of actions.

        Raises:
            Unauthorized: The server needs a valid API key.
            ConnectionFailed: The server cannot be reached.
            UsageError: The server does not return the schema.
        """
        schema = self._get("/schema").get("action")
        if not isinstance(schema, dict):
            raise UsageError(f"{self.url} does not say what actions are (/schema): give a policy of your own")
        return schema

    def tools(self) -> list[Tool] | None:
        """The environment's tools; None if actions are not tool calls.

        Raises:
            Unauthorized: The server needs a valid API key.
            ConnectionFailed: The server cannot be reached.
        """
        try:
            reply = self._get("/mcp", body={"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        except Unauthorized:
            raise
        except UsageError:  # a server without that route
            return None
        found = (reply.get("result") or {}).get("tools")
        if not isinstance(found, list):
            return None
        return [
            Tool(
                name=each["name"],
                description=each.get("description") or each["name"],
                input_schema=each.get("inputSchema") or {"type": "object"},
            )
            for each in found
            if isinstance(each, dict) and isinstance(each.get("name"), str)
        ]

    def num_tasks(self, split: str) -> int:
        """The number of tasks in a split. It is asked in a session, which needs no HTTP routes.

        Raises:
            Unauthorized: The server needs a valid API key.
            ConnectionFailed: The server cannot be reached.
            UsageError: The environment does not have the split, or has no tasks.
        """
        with GenericEnvClient(self.url, api_key=self.api_key, wait_s=WAIT_S).sync() as client:
            return len(client.tasks(split))

    def _get(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a GET, or to a POST if a body is given."""
        address = http_url(websocket_url(self.url)) + path
        reply = fetch(address, bearer(self.api_key), ANSWER_S, body)
        if reply.status in {401, 403}:
            raise Unauthorized(f"{address} asks for another key: --api-key (OPENENV_API_KEY)")
        try:
            said = reply.json()
        except ValueError:
            said = None
        if reply.status >= 300:
            message = said.get("message") if isinstance(said, dict) else None
            reason = f": {message}" if isinstance(message, str) else ""
            raise UsageError(f"{address} answers with status {reply.status}{reason}")
        if not isinstance(said, dict):
            raise UsageError(f"{address} answers with something else than a server of this package does")
        return said


class LocalEvalServer(ServedTarget):
    """A local `openenv serve TARGET`, which is ready once it answers a reset."""

    def settle(self) -> None:
        """Does not wait for an idle server, since an evaluation measures no speed."""

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work` while the server runs.

        Raises:
            LaunchFailed: The server exited, and the work was cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK_S)
                if not task.done():
                    self.pids()
        finally:
            task.cancel()
            await asyncio.wait({task})
        return task.result()
