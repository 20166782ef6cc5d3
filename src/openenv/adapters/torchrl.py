"""A served environment in TorchRL's collectors of language models. Without torchrl, it raises `MissingExtra`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..client.portal import portal
from ..errors import InvalidArgument, MissingExtra
from ..llm.messages import parse_hermes, text_of
from ..rollouts.episode import ChatEpisode
from ..rollouts.records import ChatMessage, RolloutTask

try:
    import torch
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Binary, Composite, Unbounded
    from torchrl.data.llm.history import History
    from torchrl.envs.llm import ChatEnv
    from torchrl.modules.llm.policies.common import ChatHistory
except ModuleNotFoundError as missing:
    raise MissingExtra("torchrl", None) from missing

__all__ = ["OpenEnvChatEnv"]


class OpenEnvChatEnv(ChatEnv):
    """An episode of a served environment as TorchRL's chat environment, with batch size 1 and input mode "history".

        env = OpenEnvChatEnv("http://localhost:8000", tasks=[RolloutTask(seed=seed) for seed in range(100)])
        env.rollout(8, policy=TransformersWrapper(model, tokenizer=tokenizer, input_mode="history"))

    A step plays the last message of `("history", "full")`, and appends what the environment answers to the history of
    the next prompt. `reward` is the sum of the answer's steps, float32 of shape [1, 1], and 0 if they gave none.

    A failure of the environment, and too many invalid actions, raise: such a rollout has no reward.

    Args:
        base_url: URL of the server.
        tasks: The task of each reset; without a further one, `reset` raises.
        parser: Makes a message of the text that the model sampled.
        options: Further arguments of `ChatEpisode`.

    Attributes:
        tools: Function tools in OpenAI's form, after a reset, for the chat template.
    """

    def __init__(
        self,
        base_url: str,
        *,
        tasks: Iterable[RolloutTask],
        parser: Callable[[str], ChatMessage] = parse_hermes,
        **options: Any,
    ) -> None:
        super().__init__(batch_size=(1,))
        self._episode = ChatEpisode(base_url, **options)
        self._tasks = iter(tasks)
        self._parser = parser
        self.tools: list[dict[str, Any]] = []
        self.full_state_spec = Composite(shape=self.batch_size)
        self.full_reward_spec = Composite(reward=Unbounded((1, 1)), shape=self.batch_size)
        ends = {name: Binary(shape=(1, 1), dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        self.full_done_spec = Composite(ends, shape=self.batch_size)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        task = next(self._tasks, None)
        if task is None:
            raise InvalidArgument("the tasks have run out: give more of them, or itertools.cycle(tasks)")
        messages = portal().run(self._episode.begin(task))
        self.tools = self._episode.view.tools
        return self._observed(_history(messages))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        history = tensordict["history"].full
        before = len(self._episode.messages) + 1
        turn = portal().run(self._episode.answer(self._parser(history[0, -1].content)))
        replies = self._episode.messages[before:]
        if replies:
            history = history.extend(_history(replies), inplace=False, dim=-1)
        observed = self._observed(history)
        ended, cut = self._episode.done, self._episode.truncated
        observed["reward"] = torch.tensor([[turn.reward or 0.0]])
        observed["done"], observed["truncated"] = torch.tensor([[ended]]), torch.tensor([[cut]])
        observed["terminated"] = torch.tensor([[ended and not cut]])
        return observed

    def _observed(self, history: History) -> TensorDictBase:
        prompt = TensorDict(batch_size=self.batch_size).set("history", ChatHistory(prompt=history))
        return prompt.to_lazystack(0)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Ends the session."""
        portal().run(self._episode.aclose())
        super().close(raise_if_closed=raise_if_closed)


def _history(messages: list[ChatMessage]) -> History:
    """Messages as a batch of one history, which has texts only."""
    return History.from_chats([[{"role": each["role"], "content": text_of(each["content"])} for each in messages]])
