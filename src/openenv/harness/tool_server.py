"""Serves the tools of an environment to an agent program, as an MCP server on a local port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from typing import Any

import uvicorn

from .agents import HarnessError

_PATH = "/mcp"


async def build_bridge_server(mcp_server: Any, renames: Mapping[str, str]) -> Any:
    """A server with the tools of another under other names.

    Args:
        mcp_server: A FastMCP server.
        renames: The name of a tool there, by the name that it has here. All other tools keep their names.

    Returns:
        A server that passes calls on; `mcp_server` itself without renames.

    Raises:
        HarnessError: A tool does not exist.
    """
    if not renames:
        return mcp_server
    from fastmcp import FastMCP
    from fastmcp.tools import Tool as FastMcpTool

    tools = {tool.name: tool for tool in await mcp_server.list_tools()}
    missing = sorted(set(renames.values()) - set(tools))
    if missing:
        raise HarnessError(f"there are no tools {missing} to rename; there are: {', '.join(tools) or 'none'}")
    view: Any = FastMCP(f"{mcp_server.name} (renamed)")
    served = {source: name for name, source in renames.items()}
    for name, tool in tools.items():
        view.add_tool(FastMcpTool.from_tool(tool, name=served.get(name, name)))
    return view


class HarnessMCPBridge:
    """Serves a FastMCP server over streamable HTTP, on a thread. It has tools only: no reset, step or state.

    Args:
        mcp_server: The server.
        host: Address that it listens on; the port is a free one.
    """

    def __init__(self, mcp_server: Any, host: str = "127.0.0.1"):
        self._mcp_server = mcp_server
        self._host = host
        self._url: str | None = None
        self._server: _StartedServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str | None:
        """The address of the MCP endpoint; None while it does not run."""
        return self._url

    def start(self, timeout_s: float = 10.0) -> str:
        """Starts the server; one that runs stays.

        Returns:
            The address of the MCP endpoint.

        Raises:
            HarnessError: It did not start in time.
        """
        if self._url is not None:
            return self._url
        make = getattr(self._mcp_server, "http_app", None) or self._mcp_server.streamable_http_app
        listener = socket.create_server((self._host, 0))
        config = uvicorn.Config(make(), log_level="warning", timeout_graceful_shutdown=1, lifespan="on", ws="none")
        server = self._server = _StartedServer(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="tools", daemon=True)
        self._thread = thread
        thread.start()
        if not server.ready.wait(timeout_s) or not server.started:
            self.stop()
            raise HarnessError(f"the server of the tools did not start within {timeout_s:g} s (timeout_s)")
        self._url = f"http://{self._host}:{listener.getsockname()[1]}{_PATH}"
        return self._url

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stops the server. May be called repeatedly.

        Raises:
            HarnessError: It did not stop in time; call `stop` again.
        """
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        server.should_exit = True
        thread.join(timeout_s)
        if thread.is_alive():
            raise HarnessError(f"the server of the tools did not stop within {timeout_s:g} s (timeout_s): try again")
        self._server = self._thread = self._url = None


class _StartedServer(uvicorn.Server):
    """A server that says when it accepts connections.

    Attributes:
        ready: Set when it does, and when it cannot.
    """

    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()
