"""What smaller public names do, as JSON: run under the released package and under this one, both say the same.

    python small_names.py [FOLDER]

FOLDER has packages that this Python does not have (Gradio).
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

CASES: dict[str, Callable[[], Any]] = {}


def case(test: Callable[[], Any]) -> Callable[[], Any]:
    CASES[test.__name__] = test
    return test


@case
def websocket_urls() -> Any:
    from openenv.core.utils import convert_to_ws_url

    urls = ["http://a:1", "https://a/b/", "ws://a", "wss://a/c//", "a:8000", "a:8000/x/", "localhost", "http://a?b=/"]
    return [convert_to_ws_url(url) for url in urls]


@case
def subdomains() -> Any:
    from openenv.core.env_client import hf_space_subdomain

    return [hf_space_subdomain(name) for name in ["Owner/My_env", "o/a.b-c", "o/-edge-", "O/Ünï"]]


@case
def coroutines_without_a_loop() -> Any:
    from openenv.core.utils import run_async_safely

    return run_async_safely(asyncio.sleep(0, "done"))


@case
def coroutines_beside_a_loop() -> Any:
    from openenv.core.env_server.mcp_environment import run_async_safely

    async def fail() -> None:
        raise ValueError("as it was")

    async def outer() -> list[str]:
        found = [run_async_safely(asyncio.sleep(0, "done"))]
        try:
            run_async_safely(fail())
        except ValueError as error:
            found.append(str(error))
        return found

    return asyncio.run(outer())


@case
def tools_of_a_server() -> Any:
    from fastmcp import FastMCP

    from openenv.core.env_server.mcp_environment import VALID_MODES, get_server_tools

    server = FastMCP("small")

    @server.tool
    def twice(number: int) -> int:
        """Twice a number."""
        return 2 * number

    async def within() -> list[str]:
        return sorted(get_server_tools(server))

    found = {name: (type(tool).__name__, tool.description) for name, tool in get_server_tools(server).items()}
    return [found, asyncio.run(within()), get_server_tools(object()), "simulation" in VALID_MODES, "x" in VALID_MODES]


@case
def get_routes() -> Any:
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    from openenv.core import GetEndpointConfig
    from openenv.core.env_server.route_config import register_get_endpoints
    from openenv.core.env_server.types import HealthResponse

    class Wrong:
        pass

    app = FastAPI()
    configs = [
        GetEndpointConfig("/well", HealthResponse, HealthResponse, "About", "Well?", "Whether it is well."),
        GetEndpointConfig(
            path="/words", handler=lambda: {"a": 1}, response_model=dict, tag="Words", summary="S", description="D"
        ),
        GetEndpointConfig("/wrong", lambda: {"status": "no such"}, HealthResponse, "About", "W", "W"),
    ]
    register_get_endpoints(app, configs)
    told = app.openapi()["paths"]
    with TestClient(app, raise_server_exceptions=False) as client:
        answers = [(client.get(config.path).status_code, client.get(config.path).text) for config in configs]
    words = {path: {key: told[path]["get"][key] for key in ("tags", "summary", "description")} for path in told}
    return [answers, words, configs[0] == configs[0]]


@case
def capacity() -> Any:
    from pydantic import ValidationError

    from openenv.core.env_server.types import ServerCapacityStatus

    status = ServerCapacityStatus(active_sessions=1, max_sessions=2)
    try:
        ServerCapacityStatus(active_sessions=3, max_sessions=2)
    except ValidationError as error:
        return [status.check_capacity_bounds() is status, [each["type"] for each in error.errors()]]
    return "no error"


@case
def pages() -> Any:
    import gradio

    from openenv.core.env_server.gradio_theme import OPENENV_GRADIO_CSS, OPENENV_GRADIO_THEME
    from openenv.core.env_server.gradio_ui import get_gradio_display_title
    from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation
    from openenv.core.env_server.web_interface import get_quick_start_markdown

    metadata = EnvironmentMetadata(name="chess", description="d")
    titles = [get_gradio_display_title(metadata), get_gradio_display_title(None, "else")]
    start = get_quick_start_markdown(metadata, Action, Observation)
    return [
        isinstance(OPENENV_GRADIO_THEME, gradio.themes.Base),
        isinstance(OPENENV_GRADIO_CSS, str),
        [name in title for name, title in zip(["chess", "else"], titles, strict=True)],
        "http://localhost:8000" in start,
    ]


@case
def packages_of_older_names() -> Any:
    import openenv_core.utils

    import openenv.core.utils

    return openenv_core.utils is openenv.core.utils


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.path += sys.argv[1:]
    json.dump({name: run() for name, run in CASES.items()}, sys.stdout, indent=1)
