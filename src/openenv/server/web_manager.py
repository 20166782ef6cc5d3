"""One session of a server for a page that people look at."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import WebSocket, WebSocketDisconnect

from ..environment import Environment
from ..errors import ResetRequired, StepFailed, UnknownSession
from ..protocol.forms import read_form
from ..types import EnvironmentMetadata
from .environment_server import HTTPEnvServer
from .metadata import load_environment_metadata
from .visitor import ANYBODY
from .web_episode import ActionLog, Episode, EpisodeState, Played
from .web_socket import send

__all__ = ["ActionLog", "EpisodeState", "WebInterfaceManager"]

T = TypeVar("T")

# What a reset or step waits for a socket whose client does not read; then the socket gets no more of them.
SEND_S = 5.0


class WebInterfaceManager:
    """Drives one session, which all who look at the page share.

    The first reset opens it, and it takes a slot of the server as any other. When it has ended, because it was idle
    for too long, the next reset opens another one. Calls may come from any event loop.

    Args:
        env: The server where the session is, or an environment, which then has a server of its own here.
        action_cls: Its actions; those of the server by default.
        observation_cls: Its observations; those of the server by default.
        metadata: What the environment says about itself.

    Attributes:
        env: The environment that it was made with; None if that was a server.
        episode_state: The episode as it was after the last call.
        home: The event loop of the server; None until it runs.
        connected_clients: The sockets that are sent each state of the episode.
    """

    MAX_ACTION_LOGS = 1000

    def __init__(
        self,
        env: HTTPEnvServer | Environment[Any, Any, Any],
        action_cls: Any = None,
        observation_cls: Any = None,
        metadata: EnvironmentMetadata | None = None,
    ):
        self.env = None if isinstance(env, HTTPEnvServer) else env
        server = env if isinstance(env, HTTPEnvServer) else HTTPEnvServer(lambda: env, action_cls, observation_cls)
        if metadata is None:
            metadata = load_environment_metadata(server.env_factory if self.env is None else self.env)
        self.action_cls = server.action_cls
        self.observation_cls = server.observation_cls
        self.metadata = metadata
        self.episode_state = EpisodeState()
        self.home: asyncio.AbstractEventLoop | None = None
        self.connected_clients: list[WebSocket] = []
        self._server = server
        self._episode: Episode | None = None
        self._opening = asyncio.Lock()
        self._state: dict[str, Any] = {"episode_id": None, "step_count": 0}

    async def reset_environment(self, reset_kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Starts an episode, and returns the first observation as a v1 payload.

        Raises:
            CapacityError: The server has no slot.
            EnvironmentFailed: The environment could not be made, or its `reset` failed.
        """
        return await self._at_home(self._reset(dict(reset_kwargs or {})))

    async def step_environment(self, action_data: dict[str, Any]) -> dict[str, Any]:
        """Does the action that a form describes (`protocol.forms.read_form`); returns as `reset_environment`.

        Raises:
            ValidationError: That is no action of this environment.
            ResetRequired: There is no session, or it has ended.
            EnvironmentFailed: `step` failed.
        """
        return await self._at_home(self._step(action_data))

    def get_state(self) -> dict[str, Any]:
        """The environment's state after the last reset or step."""
        return dict(self._state)

    async def connect_websocket(self, websocket: WebSocket) -> None:
        """Accepts a socket, and sends the episode on it: now, and after each reset and step by this manager.

        Call it on the server's event loop, from a WebSocket route of the app; the route calls `disconnect_websocket`
        when its client has left. `/ws/ui` tells the episode of any session in the same words.
        """
        await websocket.accept()
        self.connected_clients.append(websocket)
        await self._send_state([websocket])

    async def disconnect_websocket(self, websocket: WebSocket) -> None:
        """Sends nothing more on a socket."""
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
                await send(client, message)
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
            if episode is None or episode.stay.departed is not None:
                stay = await self._server.stays.open(ANYBODY)
                episode = self._episode = Episode(stay, False, self.MAX_ACTION_LOGS, math.inf)
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

    async def _told(self, episode: Episode, played: Played) -> dict[str, Any]:
        self._state = played.state or self._state
        self.episode_state = episode.state
        await self._send_state(self.connected_clients)
        return played.payload
