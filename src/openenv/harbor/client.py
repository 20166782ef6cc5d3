"""The client of a server of Harbor tasks (`openenv harbor serve`)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from ..client.mcp_client import MCPToolClient
from ..client.tasks import Tasks, tasks_of
from ..errors import ProtocolViolation
from .models import HarborRolloutResult, HarborTaskRef


class HarborEnv(MCPToolClient):
    """Has a server play tasks::

        async with HarborEnv("http://localhost:8000") as env:
            result = await env.run_rollout(task_index=3, harness="oracle")
            print(result.reward, result.error)

    Where no event loop runs, the same calls without `await` block, as those of every client.

    Args:
        base_url: Address of the server.
        message_timeout_s: Seconds for a rollout; None: no limit.
        options: As for `MCPToolClient`.
    """

    def __init__(self, base_url: str, *, message_timeout_s: float | None = 1800.0, **options: Any):
        super().__init__(base_url, message_timeout_s=message_timeout_s, **options)

    def splits(self) -> Awaitable[list[dict[str, Any]]]:
        """The datasets of the server: each has `name` and `num_tasks`."""

        async def ask() -> list[dict[str, Any]]:
            return await (await self._tasks("")).splits()

        return self._offered(ask())

    def num_tasks(self, split: str = "") -> Awaitable[int]:
        """How many tasks a dataset has; by default the first. Raises as `tasks`."""

        async def ask() -> int:
            return len(await self._tasks(split))

        return self._offered(ask())

    def get_task(self, split: str, index: int) -> Awaitable[HarborTaskRef]:
        """One task of a dataset, counted from 0. Raises as `tasks`, and IndexError without such a task."""

        async def ask() -> HarborTaskRef:
            return HarborTaskRef.model_validate(await (await self._tasks(split))[index])

        return self._offered(ask())

    def get_task_range(self, split: str, start: int = 0, stop: int = 20) -> Awaitable[list[HarborTaskRef]]:
        """The tasks from `start` up to `stop`. Raises as `tasks`."""

        async def ask() -> list[HarborTaskRef]:
            return [HarborTaskRef.model_validate(task) for task in await (await self._tasks(split))[start:stop]]

        return self._offered(ask())

    def run_rollout(
        self,
        *,
        split: str = "",
        task_index: int = 0,
        harness: str = "",
        sandbox: str = "process",
        reward_key: str = "",
        agent_timeout_sec: float = 0.0,
        sampling: Mapping[str, Any] | None = None,
        purpose: str = "auto",
        **options: Any,
    ) -> Awaitable[HarborRolloutResult]:
        """Has a task played once.

        Args:
            split: The dataset; by default the first.
            task_index: Number of the task, from 0.
            harness: An agent that `capabilities` names; by default the first.
            sandbox: `process` or `docker`.
            reward_key: Which reward to take, if the verifier writes several.
            agent_timeout_sec: Seconds for the agent; 0: as the task says.
            sampling: Sampling parameters that replace those of the agent.
            purpose: `train`, `eval` or `auto`.
            options: Other arguments of the released client; the server says which of them it decides itself.

        Returns:
            The result. A rollout that failed has `ok` false, the reason in `error`, and no reward.

        Raises:
            ToolFailed: The server refused an argument; the message names it.
            OpenEnvError: As for `call_tool`.
        """
        arguments = {
            "split": split,
            "task_index": task_index,
            "harness": harness,
            "sandbox": sandbox,
            "reward_key": reward_key,
            "agent_timeout_sec": agent_timeout_sec,
            "sampling": None if sampling is None else dict(sampling),
            "purpose": purpose,
            **options,
        }

        async def ask() -> HarborRolloutResult:
            answer = await self._call_tool("run_rollout", arguments)
            try:
                return HarborRolloutResult.model_validate_json(answer)
            except ValidationError as error:
                raise ProtocolViolation(f"the server's reply is not a rollout: {error}") from error

        return self._offered(ask())

    def capabilities(self) -> Awaitable[dict[str, Any]]:
        """What the server offers: `harnesses`, `sandboxes`, `datasets` and `llm`."""

        async def ask() -> dict[str, Any]:
            found: dict[str, Any] = from_json(await self._call_tool("capabilities", {}))
            return found

        return self._offered(ask())

    async def _tasks(self, split: str) -> Tasks:
        return await tasks_of(self, split or None, self._message_timeout_s)
