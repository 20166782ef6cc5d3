"""One served environment as a `gymnasium.Env`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium import Space

from ...client import SyncEnvClient
from ...types import StepResult
from .outlet import Fields, Outlet, ends_of

__all__ = ["RemoteEnv"]


class RemoteEnv(gymnasium.Env[Any, Any]):
    """One session of a served environment, for trainers that take a `gymnasium.Env`::

        env = RemoteEnv("http://localhost:8000")
        observation, info = env.reset(seed=1)
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())

    Spaces come from the server: those of a Gymnasium server are its environment's own, those of any other are made
    of its JSON Schemas (`openenv.adapters.gymnasium.schema`). `info` is the metadata of the result, as JSON says it.

    The connection is made by the first reset. It may be pickled, copied and forked: each copy has a session of its
    own, which begins with a reset. Errors are those of `EnvClient`. A connection that is lost is made again, and
    nobody notices; when its server or worker has died, `step` raises `SessionLost`, or `StepTimeout` after
    `message_timeout_s`: the step has no reward, and none is made up. `reset` goes on with a new session.

    Args:
        base_url: As for `EnvClient`.
        observation_space: For schemas that no space says, or another view.
        decode_observation: Makes a member of that space of an observation's fields; None where its form fits.
        action_space: The same for actions.
        encode_action: Makes an action's fields of a member of that space; None where its form fits.
        missing_reward: Reward of a step for which the environment gives none; None: `UsageError` for such a step.
        options: Further arguments of `EnvClient`: timeouts, `api_key`, `headers`, `app`, `env`, ...

    Raises:
        ConnectionFailed: There is no server that tells its types.
        UnmappableSpace: There is no space for its action or observation.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        *,
        observation_space: Space[Any] | None = None,
        decode_observation: Callable[[Fields], Any] | None = None,
        action_space: Space[Any] | None = None,
        encode_action: Callable[[Any], Fields] | None = None,
        missing_reward: float | None = None,
        **options: Any,
    ):
        self.metadata = {"render_modes": []}
        self._outlet = Outlet(
            base_url, observation_space, decode_observation, action_space, encode_action, missing_reward, options
        )
        self.observation_space = self._outlet.observation_space
        self.action_space = self._outlet.action_space
        self._client: SyncEnvClient[Any, Any, Any] | None = None

    @property
    def client(self) -> SyncEnvClient[Any, Any, Any]:
        """The client behind it, for what Gymnasium has no word for: `state()`, for one."""
        if self._client is None:
            self._client = self._outlet.client().sync()
        return self._client

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: For the environment, and for `np_random` of this object, which wrappers use.
            options: A Gymnasium server gets them as they are; any other, as arguments of its environment's reset.
        """
        super().reset(seed=seed)
        result = self.client.reset(**self._outlet.reset_arguments(seed, options))
        return self._outlet.member_of(result.observation), _info(result)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Does one action.

        Raises:
            InvalidAction: The action is not in its space; the episode goes on.
            SessionLost: The session is gone, and its episode with it: reset.
        """
        result = self.client.step(self._outlet.fields_of(action))
        observation = self._outlet.member_of(result.observation)
        reward = self._outlet.reward_of(result)
        return observation, reward, *ends_of(result), _info(result)

    def close(self) -> None:
        """Ends the session and its connection; a later reset begins anew."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __str__(self) -> str:
        return f"<RemoteEnv {self._outlet.place}>"


def _info(result: StepResult[Any]) -> dict[str, Any]:
    return {} if result.metadata is None else dict(result.metadata)
