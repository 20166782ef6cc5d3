"""Pages that authors make with Gradio, at `/web/custom`: their session, fields of actions, a default page."""

from __future__ import annotations

import asyncio
import importlib
import math
from collections.abc import Awaitable, Callable, Coroutine
from html import escape
from importlib.util import find_spec
from typing import Any, TypeVar

from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from ...environment import Environment
from ...errors import MissingExtra, OpenEnvError, ResetRequired, StepFailed, UnknownSession
from ...protocol.forms import read_form
from ...protocol.json_schema import schema_of
from ...types import EnvironmentMetadata
from ..auth import ANONYMOUS
from ..metadata import load_environment_metadata
from ..server import EnvironmentServer
from .endpoints import send_json
from .episode import EpisodeState, PageEpisode, PageResult

_WIDGETS = {"boolean": "checkbox", "integer": "number", "number": "number"}


def action_fields(action_cls: Any) -> list[dict[str, Any]]:
    """The facts that a form needs about each field of an action class, without `metadata`.

    Args:
        action_cls: A model or another action type; a type without fields gives an empty list.

    Returns:
        For each field its `name`, `type` (`text`, `number`, `checkbox`, `select`, or `tensor` for a list of
        numbers), `required`, `description`, `default_value`, `choices`, `min_value`, `max_value`, `min_length`,
        `max_length`, `pattern`, `placeholder` and `help_text`; None where the class sets none.
    """
    schema = schema_of(action_cls) or {}
    definitions = schema.get("$defs", {})
    required = schema.get("required", ())
    found = []
    for name, given in schema.get("properties", {}).items():
        if name == "metadata":
            continue
        part = {**definitions.get(given.get("$ref", "").rpartition("/")[2], {}), **given}
        description, kind = part.get("description", ""), part.get("type", "")
        is_tensor = kind == "array" and part.get("items", {}).get("type") in {"integer", "number"}
        found.append(
            {
                "name": name,
                "type": "select" if "enum" in part else "tensor" if is_tensor else _WIDGETS.get(kind, "text"),
                "required": name in required,
                "description": description,
                "default_value": part.get("default"),
                "choices": part.get("enum"),
                "min_value": part.get("minimum"),
                "max_value": part.get("maximum"),
                "min_length": part.get("minLength"),
                "max_length": part.get("maxLength"),
                "pattern": part.get("pattern"),
                "placeholder": f"Enter {name}...",
                "help_text": description,
            }
        )
    return found


def get_gradio_display_title(metadata: EnvironmentMetadata | None, fallback: str = "OpenEnv Environment") -> str:
    """The title of a page about an environment: with its name, or else with `fallback`."""
    return f"OpenEnv: {metadata.name if metadata else fallback}"


def get_quick_start_markdown(
    metadata: EnvironmentMetadata | None, action_cls: type[Any], observation_cls: type[Any]
) -> str:
    """Instructions for programs that use an environment, as Markdown with an example in Python.

    Args:
        metadata: Metadata with the name for the heading.
        action_cls: Action class with the required fields for the example.
        observation_cls: Accepted for existing code, and not used.
    """
    fields = getattr(action_cls, "model_fields", {})
    action = ", ".join(f'"{name}": ...' for name, field in fields.items() if field.is_required())
    return (
        f"### Connect to {metadata.name if metadata else 'this environment'}\n\n"
        "```python\nfrom openenv import SyncEnvClient\n\n"
        'with SyncEnvClient("http://localhost:8000") as env:\n    result = env.reset()\n'
        f"    result = env.step({{{action}}})\n```"
    )


def build_gradio_app(
    web_manager: WebInterfaceManager,
    action_fields: list[dict[str, Any]],
    metadata: EnvironmentMetadata | None,
    is_chat_env: bool,
    title: str = "OpenEnv Environment",
    quick_start_md: str | None = None,
) -> Any:
    """A page with a form for actions, buttons for reset, step and state, and the last result.

    A `gradio_builder` gets the same arguments, so that it can show this page next to its own.

    Args:
        web_manager: Manager of the page's session.
        action_fields: The fields of the form, from the function `action_fields`.
        metadata: Metadata with the name, description and README to show.
        is_chat_env: Accepted for existing code, and not used: the fields decide the form.
        title: Replaces the environment's name if there is no metadata.
        quick_start_md: Markdown below the form.

    Returns:
        A `gradio.Blocks`.

    Raises:
        MissingExtra: Gradio is not installed.
    """
    gradio = load_gradio()
    display_title = get_gradio_display_title(metadata, title)

    async def reset() -> Any:
        return await _call_for_gradio(gradio, web_manager.reset_environment)

    async def step(*values: Any) -> Any:
        given = {field["name"]: value for field, value in zip(action_fields, values, strict=True)}
        action = {name: value for name, value in given.items() if value not in (None, "")}
        return await _call_for_gradio(gradio, web_manager.step_environment, action)

    async def state() -> Any:
        return web_manager.get_state()

    with gradio.Blocks(title=display_title) as blocks:
        gradio.Markdown(f"# {display_title}\n\n{metadata.description if metadata else ''}")
        with gradio.Row():
            with gradio.Column():
                inputs = [_component(gradio, field) for field in action_fields]
                with gradio.Row():
                    buttons = {each: gradio.Button(each) for each in ("Reset", "Step", "State")}
            result = gradio.JSON(label="Result")
        if quick_start_md:
            gradio.Markdown(quick_start_md)
        if metadata and metadata.readme_content:
            with gradio.Accordion("README", open=False):
                gradio.Markdown(metadata.readme_content)
        buttons["Reset"].click(reset, outputs=result)
        buttons["Step"].click(step, inputs=inputs, outputs=result)
        buttons["State"].click(state, outputs=result)
    return blocks


def load_gradio() -> Any:
    """Imports the package `gradio`.

    Raises:
        MissingExtra: Gradio is not installed.
    """
    try:
        return importlib.import_module("gradio")
    except ModuleNotFoundError:
        raise MissingExtra("gradio", None) from None


async def _call_for_gradio(gradio: Any, call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """The result of a call; a failure becomes the error that Gradio shows on the page."""
    try:
        return await call(*arguments)
    except (OpenEnvError, ValidationError) as error:
        raise gradio.Error(str(error)) from error


def _component(gradio: Any, field: dict[str, Any]) -> Any:
    name, default = field["name"], field["default_value"]
    about = {"label": name if not field["required"] else f"{name} *", "info": field["help_text"] or None}
    if field["type"] == "select":
        return gradio.Dropdown(choices=field["choices"], value=default, **about)
    if field["type"] == "checkbox":
        return gradio.Checkbox(value=bool(default), **about)
    if field["type"] == "number" and field["required"]:
        return gradio.Number(value=default, minimum=field["min_value"], maximum=field["max_value"], **about)
    # A text field: Gradio's number field cannot be empty, which an optional number needs.
    return gradio.Textbox(value=None if default is None else str(default), placeholder=field["placeholder"], **about)


T = TypeVar("T")

# Seconds that a reset or step waits for a socket that does not read. After that, the socket gets no more events.
SEND_S = 5.0


class WebInterfaceManager:
    """Drives one session, which all viewers of the page share.

    The first reset opens the session, which takes a slot of the server. After its end (by the idle timeout, for
    instance), the next reset opens another one. Any event loop may call the methods.

    Args:
        env: The server of the session, or an environment, for which the manager makes a server.
        action_cls: The type of its actions; by default that of the server.
        observation_cls: The type of its observations; by default that of the server.
        metadata: The metadata of the environment.

    Attributes:
        env: The environment that was passed to the constructor; None if it was a server.
        episode_state: The episode after the last call.
        home: The event loop of the server; None until it runs.
        connected_clients: The sockets that are sent each state of the episode.
    """

    MAX_ACTION_LOGS = 1000

    def __init__(
        self,
        env: EnvironmentServer | Environment[Any, Any, Any],
        action_cls: Any = None,
        observation_cls: Any = None,
        metadata: EnvironmentMetadata | None = None,
    ):
        self.env = None if isinstance(env, EnvironmentServer) else env
        server = (
            env if isinstance(env, EnvironmentServer) else EnvironmentServer(lambda: env, action_cls, observation_cls)
        )
        if metadata is None:
            metadata = load_environment_metadata(server.env_factory if self.env is None else self.env)
        self.action_cls = server.action_cls
        self.observation_cls = server.observation_cls
        self.metadata = metadata
        self.episode_state = EpisodeState()
        self.home: asyncio.AbstractEventLoop | None = None
        self.connected_clients: list[WebSocket] = []
        self._server = server
        self._episode: PageEpisode | None = None
        self._opening = asyncio.Lock()
        self._state: dict[str, Any] = {"episode_id": None, "step_count": 0}

    async def reset_environment(self, reset_kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Starts an episode, and returns the first observation as a v1 payload.

        Raises:
            CapacityError: The server has no free slot.
            EnvironmentFailed: The environment could not be created, or its `reset` failed.
        """
        return await self._at_home(self._reset(dict(reset_kwargs or {})))

    async def step_environment(self, action_data: dict[str, Any]) -> dict[str, Any]:
        """Takes one step with the action from a form (`protocol.forms.read_form`). Returns a v1 payload.

        Raises:
            ValidationError: The form does not describe an action of this environment.
            ResetRequired: No session is open.
            EnvironmentFailed: `step` failed.
        """
        return await self._at_home(self._step(action_data))

    def get_state(self) -> dict[str, Any]:
        """The environment's state after the last reset or step."""
        return dict(self._state)

    async def connect_websocket(self, websocket: WebSocket) -> None:
        """Accepts a socket, and sends the episode on it: now, and after each reset and step by this manager.

        Call it on the server's event loop, from a WebSocket route of the app. The route must call
        `disconnect_websocket` when its client has left. `/ws/ui` sends the episode of any session in the same format.
        """
        await websocket.accept()
        self.connected_clients.append(websocket)
        await self._send_state([websocket])

    async def disconnect_websocket(self, websocket: WebSocket) -> None:
        """Stops sending on a socket."""
        if websocket in self.connected_clients:
            self.connected_clients.remove(websocket)

    async def _send_state(self, clients: list[WebSocket]) -> None:
        if not clients:
            return
        message = {"type": "state_update", "episode_state": self.episode_state.model_dump()}
        await asyncio.gather(*(self._send_to(client, message) for client in clients))

    async def _send_to(self, client: WebSocket, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(SEND_S):
                await send_json(client, message)
        except (WebSocketDisconnect, RuntimeError, TimeoutError, StepFailed):
            await self.disconnect_websocket(client)

    async def _at_home(self, call: Coroutine[Any, Any, T]) -> T:
        home = self.home
        if home is None or home is asyncio.get_running_loop() or not home.is_running():
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, home))

    async def _reset(self, arguments: dict[str, Any]) -> dict[str, Any]:
        async with self._opening:
            episode = self._episode
            if episode is None or episode.shared.departed is not None:
                shared = await self._server.shared_sessions.open(ANONYMOUS)
                episode = self._episode = PageEpisode(shared, False, self.MAX_ACTION_LOGS, math.inf)
        return await self._told(episode, await episode.reset(arguments))

    async def _step(self, values: dict[str, Any]) -> dict[str, Any]:
        action = read_form(values, self.action_cls)
        episode = self._episode
        if episode is None:
            raise ResetRequired("there is no episode yet: reset first")
        try:
            played = await episode.step(action)
        except UnknownSession as error:
            raise ResetRequired(f"{error.message}: reset for a new one") from None
        return await self._told(episode, played)

    async def _told(self, episode: PageEpisode, played: PageResult) -> dict[str, Any]:
        self._state = played.state or self._state
        self.episode_state = episode.state
        await self._send_state(self.connected_clients)
        return played.payload


CUSTOM_PATH = "/web/custom"


def add_page(app: FastAPI, server: EnvironmentServer, builder: Callable[..., Any], title: str | None = None) -> None:
    """Mounts the page of a builder at `/web/custom`, or without Gradio, a page that says how to install it.

    Args:
        app: The app to which the page is added.
        server: The server of the environment.
        builder: Called with `(web_manager, action_fields, metadata, is_chat_env, title, quick_start_md)`, all by
            position; it returns a `gradio.Blocks`. Its exceptions are raised here.
        title: Title of the page, instead of the one with the environment's name.
    """
    if find_spec("gradio") is None:
        name = escape(server.env_name)
        page = (
            f"<!doctype html><title>{name}</title><p>{name} has a page made with Gradio, which is not installed on "
            "this server. Install it and start the server again:</p><pre>pip install gradio</pre>"
        )
        app.add_api_route(CUSTOM_PATH, lambda: HTMLResponse(page, 501), include_in_schema=False)
        return
    gradio = importlib.import_module("gradio")
    metadata = load_environment_metadata(server.env_factory, server.env_name)
    manager = WebInterfaceManager(server, metadata=metadata)
    fields = action_fields(server.action_cls)
    # A chat environment: actions are a model's tokens.
    is_chat = any(field["name"] == "tokens" and field["type"] == "tensor" for field in fields)
    quick_start = get_quick_start_markdown(metadata, server.action_cls, server.observation_cls)
    blocks = builder(manager, fields, metadata, is_chat, title or get_gradio_display_title(metadata), quick_start)
    gradio.mount_gradio_app(app, blocks, path=CUSTOM_PATH)
    app.state.openenv_page = manager
