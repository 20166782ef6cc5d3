"""A served environment in SkyRL-Gym. Without skyrl-gym, it raises `MissingExtra`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..client.portal import portal
from ..errors import MissingExtra
from ..llm.messages import parse_hermes
from ..rollouts.episode import ChatEpisode
from ..rollouts.records import ChatMessage, RolloutTask

try:
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
except ModuleNotFoundError as missing:
    raise MissingExtra("skyrl-gym", None) from missing

__all__ = ["SkyRLEnv"]


class SkyRLEnv(BaseTextEnv):
    """An episode of a served environment as SkyRL-Gym's text environment.

        skyrl_gym.register("openenv", "openenv.adapters.skyrl:SkyRLEnv")
        env = skyrl_gym.make("openenv", env_config={"base_url": url}, extras={"task": {"seed": 7}, "max_turns": 8})

    `init` replaces the prompt of the dataset by the conversation of the environment's chat view. Tool calls are read
    from the text by `parser`; the model reads the tools only if the generator's chat template gets `env.tools`.

    A failure of the environment, and too many invalid actions, raise: such a rollout has no reward.

    Args:
        env_config: `base_url`, and further arguments of `ChatEpisode`.
        extras: `task`, the fields of a `RolloutTask`; `max_turns`.
        parser: Makes a message of the text that the model sampled.

    Attributes:
        tools: Function tools in OpenAI's form, after `init`.
    """

    def __init__(
        self,
        env_config: Any,
        extras: dict[str, Any] | None = None,
        parser: Callable[[str], ChatMessage] = parse_hermes,
    ) -> None:
        super().__init__()
        options = {str(name): env_config[name] for name in env_config}
        self._episode = ChatEpisode(options.pop("base_url"), **options)
        self._task = RolloutTask(**(extras or {}).get("task", {}))
        self._parser = parser
        self.max_turns = (extras or {}).get("max_turns", 20)
        self.tools: list[dict[str, Any]] = []

    def init(self, prompt: list[ChatMessage]) -> tuple[list[ChatMessage], dict[str, Any]]:
        """Begins the episode. Raises `OpenEnvError` if that fails."""
        messages = portal().run(self._episode.begin(self._task))
        self.turns, self.tools = 0, self._episode.view.tools
        return messages, {"tools": self.tools}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Takes the steps of an answer. The reward is their sum, 0 if they gave none.

        Raises:
            OpenEnvError: The episode failed, and has no reward.
        """
        self.turns += 1
        before = len(self._episode.messages) + 1
        turn = portal().run(self._episode.answer(self._parser(action)))
        return BaseTextEnvStepOutput(
            observations=self._episode.messages[before:],
            reward=turn.reward or 0.0,
            done=self._episode.done or self.turns >= self.max_turns,
            metadata={
                "truncated": self._episode.truncated,
                "errors": [each.error for each in turn.steps if each.error],
            },
        )

    def close(self) -> None:
        """Ends the session."""
        portal().run(self._episode.aclose())
