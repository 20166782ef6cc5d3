"""Tasks of Harbor behind a server: clients ask for rollouts by number, and get rewards and tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from ..capture import CaptureServer
from ..errors import InvalidArgument, UsageError
from ..mcp import MCPEnvironment
from ..types import Action, Observation
from .models import HarborRolloutResult, HarborState, HarborTaskRef
from .rollout import agent_of, run_rollout
from .sandboxes import SANDBOXES
from .tasks import HarborTaskProvider

# Arguments of the released tool that the server decides here, with the values that mean "as served".
_SERVER_DECIDES = {
    "llm_url": ("", "--llm-url"),
    "model": ("", "--model"),
    "api_key": ("", "OPENENV_LLM_API_KEY"),
    "auth_header": ("", "--auth-header"),
    "provider": ("openai", "--llm-url"),
}


@dataclass
class HarborService:
    """What the rollouts of all sessions share. A context manager: the proxy runs as long as the block.

    Attributes:
        datasets: As for `resolve_task_dirs`. Each is a split.
        agents: What clients may name as `harness`; the first is the default. Each is one for `agent_of`.
        trials_dir: Folder of the trials.
        programs, allow: As for `run_rollout`.
        llm_url, model, api_key, auth_header: The model behind the proxy; without a URL agents reach none.
    """

    datasets: Sequence[str]
    agents: Sequence[str] = ("oracle", "nop")
    trials_dir: Path = Path("trials")
    programs: Sequence[Path] = ()
    allow: Sequence[str] = ()
    llm_url: str = ""
    model: str = ""
    api_key: str | None = field(default=None, repr=False)
    auth_header: str = "Authorization"
    capture: CaptureServer | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.tasks = HarborTaskProvider(self.datasets)
        for dataset in self.datasets:
            self.tasks.num_tasks(dataset)  # raises before a client asks
        for agent in self.agents:
            agent_of(agent, self.llm_url, "", self.model)  # as above

    def __enter__(self) -> Self:
        if self.llm_url:
            self.capture = CaptureServer(
                llm_url=self.llm_url, model=self.model or None, api_key=self.api_key, auth_header=self.auth_header
            ).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.capture is not None:
            self.capture.stop()


class HarborEnvironment(MCPEnvironment):
    """Plays tasks by the tool `run_rollout`; `capabilities` and `list_tasks` say what there is.

    A rollout that fails is a result with `ok` false and the reason in `error`, and without a reward.

    Args:
        service: What all sessions share.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    tool_timeout_s = None  # the task has its own limits

    def __init__(self, service: HarborService):
        from fastmcp import FastMCP

        tools = FastMCP("harbor_env")
        for tool in (self.run_rollout, self.capabilities, self.tasks_as_json):
            tools.tool(tool, name="list_tasks" if tool == self.tasks_as_json else None)
        super().__init__(tools)
        self._service = service
        self._state = HarborState()
        self._begin(None)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        """Begins to count anew."""
        self._begin(episode_id)
        return Observation()

    def _begin(self, episode_id: str | None) -> None:
        proxy = self._service.capture
        self._state = HarborState(
            episode_id=episode_id or str(uuid4()),
            llm_url=self._service.llm_url,
            intercept_url="" if proxy is None else proxy.url,
        )

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise UsageError("this environment has tools only: call run_rollout, capabilities or list_tasks")

    @property
    def state(self) -> HarborState:
        return self._state

    async def run_rollout(
        self,
        split: str = "",
        task_index: int = 0,
        harness: str = "",
        sandbox: str = "process",
        reward_key: str = "",
        keep_sandbox: bool = False,
        force_build: bool = False,
        llm_url: str = "",
        model: str = "",
        api_key: str = "",
        auth_header: str = "",
        agent_timeout_sec: float = 0.0,
        agent_step_limit: int = 0,
        sampling: dict[str, Any] | None = None,
        provider: str = "openai",
        purpose: str = "auto",
        eval_sampling: dict[str, Any] | None = None,
    ) -> str:
        """Plays a task once, and returns a HarborRolloutResult as JSON.

        Args:
            split: The dataset; by default the first.
            task_index: Number of the task, from 0.
            harness: An agent that `capabilities` names; by default the first.
            sandbox: process or docker.
            reward_key: Which reward to take, if the verifier writes several.
            keep_sandbox: Not offered: each sandbox is removed.
            force_build: Not offered: images are built when their files change.
            llm_url: Decided by the server.
            model: Decided by the server.
            api_key: Decided by the server.
            auth_header: Decided by the server.
            agent_timeout_sec: Seconds for the agent; 0: as the task says.
            agent_step_limit: Not offered.
            sampling: Sampling parameters that replace those of the agent.
            provider: Decided by the server.
            purpose: train, eval or auto.
            eval_sampling: Not offered.
        """
        service = self._service
        for name, given in {
            "llm_url": llm_url,
            "model": model,
            "api_key": api_key,
            "auth_header": auth_header,
            "provider": provider,
        }.items():
            default, setting = _SERVER_DECIDES[name]
            if given != default:
                raise InvalidArgument(
                    f"{name}: the server decides it: leave it out, and start the server with {setting}"
                )
        for name, asked in {
            "keep_sandbox": keep_sandbox,
            "force_build": force_build,
            "agent_step_limit": agent_step_limit,
            "eval_sampling": eval_sampling,
        }.items():
            if asked:
                raise InvalidArgument(f"{name}: this server has no such option: leave it out")
        harness = harness or service.agents[0]
        if harness not in service.agents:
            raise InvalidArgument(
                f"harness: {harness!r:.80} is not offered: choose one of {', '.join(service.agents)}"
            )
        kind = next((each for each in SANDBOXES if each == sandbox), None)
        if kind is None:
            raise InvalidArgument(f"sandbox: {sandbox!r:.80} is not offered: choose one of {', '.join(SANDBOXES)}")
        split = split or service.datasets[0]
        result = await run_rollout(
            task_dir=service.tasks.task_dir(split, task_index),
            harness=harness,
            sandbox=kind,
            registry=service.capture,
            model=service.model,
            trials_dir=service.trials_dir,
            dataset=split,
            reward_key=reward_key,
            agent_timeout_sec=agent_timeout_sec or None,
            sampling=sampling,
            purpose=purpose,
            programs=service.programs,
            allow=service.allow,
        )
        self._note(result)
        return result.model_dump_json()

    def _note(self, result: HarborRolloutResult) -> None:
        self._state.rollouts_completed += 1
        self._state.last_reward = result.reward
        self._state.last_task_id, self._state.last_trial_name = result.task_id, result.trial_name

    def capabilities(self) -> str:
        """What the server offers, as JSON: harnesses, sandboxes, datasets and the model."""
        service = self._service
        return json.dumps(
            {
                "harnesses": list(service.agents),
                "sandboxes": list(SANDBOXES),
                "datasets": self.list_splits(),
                "llm": {"url": service.llm_url, "model": service.model, "ok": service.capture is not None},
            }
        )

    def tasks_as_json(self, split: str = "", start: int = 0, stop: int = 20) -> str:
        """Tasks of a dataset, from `start` up to `stop`, as JSON.

        Args:
            split: The dataset; by default the first.
            start: Number of the first task.
            stop: Number after the last one.
        """
        tasks = self.get_task_range(split or self._service.datasets[0], start, stop)
        return json.dumps([task.model_dump(mode="json") for task in tasks])

    # The Task API.

    def list_splits(self) -> list[dict[str, Any]]:
        return [{"name": name, "num_tasks": self.num_tasks(name)} for name in self._service.tasks.list_splits()]

    def num_tasks(self, split: str) -> int:
        return self._service.tasks.num_tasks(split)

    def list_tasks(self, split: str) -> list[HarborTaskRef]:
        return self._service.tasks.list_tasks(split)

    def get_task(self, split: str, index: int) -> HarborTaskRef:
        return self._service.tasks.get_task(split, range(self.num_tasks(split))[index])

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[HarborTaskRef]:
        return self._service.tasks.get_task_range(split, start, stop)
