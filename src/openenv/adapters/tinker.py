"""A served environment as Tinker's `Env` (tinker-cookbook). Without tinker-cookbook, it raises `MissingExtra`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import MissingExtra, UsageError
from ..llm.messages import parse_hermes
from ..rollouts.episode import ChatEpisode
from ..rollouts.model import Completion
from ..rollouts.records import ChatMessage, RolloutTask
from ..rollouts.tokens import TokenHistory

try:
    from tinker import ModelInput
    from tinker_cookbook.rl.types import Env, EnvGroupBuilder, StepResult, StopReason
except ModuleNotFoundError as missing:
    raise MissingExtra("tinker-cookbook", None) from missing

__all__ = ["TinkerEnv", "TinkerGroup"]


class TinkerEnv(Env):
    """One episode of a served environment. Each prompt extends the ids that the model sampled.

    A failure of the environment, and too many invalid actions, raise: with a `RolloutStrategy` that tolerates
    errors, Tinker leaves the trajectory out.

    Args:
        episode: The session.
        task: The task.
        tokenizer: The model's, with a chat template.
        max_turns: Most answers.
        parser: Makes a message of the text that the model sampled.
    """

    def __init__(
        self,
        episode: ChatEpisode,
        task: RolloutTask,
        tokenizer: Any,
        max_turns: int = 20,
        parser: Callable[[str], ChatMessage] = parse_hermes,
    ) -> None:
        self._episode, self._task, self._tokenizer = episode, task, tokenizer
        self._history = TokenHistory(tokenizer, on_break="fail")
        self._max_turns, self._parser, self._turns = max_turns, parser, 0
        self._stop = [tokenizer.eos_token_id]

    async def initial_observation(self) -> tuple[ModelInput, list[int]]:
        """Begins the episode. Raises `OpenEnvError` if that fails."""
        await self._episode.begin(self._task)
        return self._prompt(), self._stop

    async def step(self, action: list[int], *, extra: Any = None) -> StepResult:
        """Takes the steps of the sampled ids. The reward is their sum, 0 if they gave none.

        Raises:
            OpenEnvError: The episode failed, and has no reward.
        """
        episode, prompt = self._episode, self._prompt().to_ints()
        text = self._tokenizer.decode(action[:-1] if action[-1:] == self._stop else action)
        message = self._parser(text)
        asked = episode.messages[:]
        turn = await episode.answer(message)
        done = Completion(message=message, prompt_ids=prompt, completion_ids=list(action), tokens="sampled")
        self._history.turn(asked, done, episode.view.tools)
        self._turns += 1
        spent = not episode.done and self._turns >= self._max_turns
        over = episode.done or spent
        return StepResult(
            reward=turn.reward or 0.0,
            episode_done=over,
            next_observation=ModelInput.empty() if over else self._prompt(),
            next_stop_condition=self._stop,
            metrics={f"stop/{StopReason.MAX_TURNS if spent else StopReason.COMPLETED}": 1.0} if over else {},
        )

    def _prompt(self) -> ModelInput:
        return ModelInput.from_ints(self._history.prompt_for(self._episode.messages, self._episode.view.tools) or [])


@dataclass
class TinkerGroup(EnvGroupBuilder):
    """The environments of a group: episodes of one task and seed.

    Attributes:
        base_url: URL of the server.
        task: The task, with its seed.
        size: Number of environments.
        tokenizer: Makes the tokenizer, as `partial(AutoTokenizer.from_pretrained, name)`.
        max_turns: Most answers of an episode.
        client_options: Further arguments of `ChatEpisode`.
    """

    base_url: str
    task: RolloutTask
    size: int
    tokenizer: Callable[[], Any]
    max_turns: int = 20
    client_options: dict[str, Any] = field(default_factory=dict)
    _episodes: list[ChatEpisode] = field(default_factory=list, init=False, repr=False)

    async def make_envs(self) -> Sequence[TinkerEnv]:
        """Makes the environments. Raises `UsageError` if the task has no seed, so the group would differ."""
        if self.task.seed is None:
            raise UsageError("task: give it a seed, which all environments of the group share")
        tokenizer = self.tokenizer()
        self._episodes = [ChatEpisode(self.base_url, **self.client_options) for _ in range(self.size)]
        return [TinkerEnv(episode, self.task, tokenizer, self.max_turns) for episode in self._episodes]

    async def cleanup(self) -> None:
        """Ends the sessions."""
        episodes, self._episodes = self._episodes, []
        await asyncio.gather(*(episode.aclose() for episode in episodes), return_exceptions=True)
