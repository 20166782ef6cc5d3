"""One session of a server for a page that people look at."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ResetRequired, UnknownSession
from ..protocol.forms import read_form
from ..types import EnvironmentMetadata
from .visitor import ANYBODY
from .web_episode import ActionLog, Episode, EpisodeState, Played

if TYPE_CHECKING:
    from .environment_server import HTTPEnvServer

__all__ = ["ActionLog", "EpisodeState", "WebInterfaceManager"]

T = TypeVar("T")


class WebInterfaceManager:
    """Drives one session, which all who look at the page share.

    The first reset opens it, and it takes a slot of the server as any other. When it has ended, because it was idle
    for too long, the next reset opens another one. Calls may come from any event loop.

    Args:
        server: Where the session is.
        metadata: What the environment says about itself.

    Attributes:
        episode_state: The episode as it was after the last call.
        home: The event loop of the server; None until it runs.
    """

    MAX_ACTION_LOGS = 1000

    def __init__(self, server: HTTPEnvServer, metadata: EnvironmentMetadata):
        self.action_cls = server.action_cls
        self.observation_cls = server.observation_cls
        self.metadata = metadata
        self.episode_state = EpisodeState()
        self.home: asyncio.AbstractEventLoop | None = None
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

    async def _at_home(self, call: Coroutine[Any, Any, T]) -> T:
        home = self.home
        if home is None or home is asyncio.get_running_loop():
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, home))

    async def _reset(self, arguments: dict[str, Any]) -> dict[str, Any]:
        async with self._opening:
            episode = self._episode
            if episode is None or episode.stay.departed is not None:
                stay = await self._server.stays.open(ANYBODY)
                episode = self._episode = Episode(stay, False, self.MAX_ACTION_LOGS, math.inf)
        return self._told(episode, await episode.reset(arguments))

    async def _step(self, values: dict[str, Any]) -> dict[str, Any]:
        action = read_form(values, self.action_cls)
        episode = self._episode
        if episode is None:
            raise ResetRequired("there is no episode yet: reset first")
        try:
            played = await episode.step(action)
        except UnknownSession as error:
            raise ResetRequired(f"{error.message}: reset for a new one") from None
        return self._told(episode, played)

    def _told(self, episode: Episode, played: Played) -> dict[str, Any]:
        self._state = played.state or self._state
        self.episode_state = episode.state
        return played.payload
