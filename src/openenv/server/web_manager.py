"""One session of a server for a page that people look at."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field
from pydantic_core import from_json, to_jsonable_python

from ..errors import ResetRequired, UnknownSession
from ..protocol import encode_state
from ..protocol.forms import read_form, serialize_observation
from ..types import BaseMessage, EnvironmentMetadata
from .visitor import ANYBODY

if TYPE_CHECKING:
    from .environment_server import HTTPEnvServer
    from .stays import Stay

__all__ = ["ActionLog", "EpisodeState", "WebInterfaceManager"]

T = TypeVar("T")


class ActionLog(BaseMessage):
    """One action of an episode and what came of it. `timestamp` is ISO 8601, in UTC."""

    timestamp: str
    action: dict[str, Any]
    observation: dict[str, Any]
    reward: bool | int | float | None = None
    done: bool
    step_count: int


class EpisodeState(BaseMessage):
    """What a page shows of an episode."""

    episode_id: str | None = None
    step_count: int = 0
    current_observation: dict[str, Any] | None = None
    action_logs: list[ActionLog] = Field(default_factory=list)
    is_reset: bool = True


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
        self._stay: Stay | None = None
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
            stay = self._stay
            if stay is None or stay.departed is not None:
                stay = self._stay = await self._server.stays.open(ANYBODY)
        observation = await stay.call(lambda session, done: session.reset(arguments, done))
        payload = serialize_observation(observation)
        await self._read_state(stay)
        self.episode_state = EpisodeState(
            episode_id=self._state.get("episode_id"), current_observation=payload["observation"]
        )
        return payload

    async def _step(self, values: dict[str, Any]) -> dict[str, Any]:
        action = read_form(values, self.action_cls)
        stay = self._stay
        if stay is None:
            raise ResetRequired("there is no episode yet: reset first")
        try:
            observation = await stay.call(lambda session, done: session.step(action, done))
        except UnknownSession as error:
            raise ResetRequired(f"{error.message}: reset for a new one") from None
        payload = serialize_observation(observation)
        await self._read_state(stay)
        self._note(to_jsonable_python(action, fallback=repr), payload)
        return payload

    async def _read_state(self, stay: Stay) -> None:
        state = await stay.call(lambda session, done: session.read_state(done))
        self._state = from_json(encode_state(state))

    def _note(self, action: dict[str, Any], payload: dict[str, Any]) -> None:
        before = self.episode_state
        log = ActionLog(
            timestamp=datetime.now(UTC).isoformat(),
            action=action,
            observation=payload["observation"],
            reward=payload["reward"],
            done=payload["done"],
            step_count=before.step_count + 1,
        )
        self.episode_state = EpisodeState(
            episode_id=self._state.get("episode_id"),
            step_count=before.step_count + 1,
            current_observation=payload["observation"],
            action_logs=[*before.action_logs, log][-self.MAX_ACTION_LOGS :],
            is_reset=False,
        )
