"""Client of the snippets."""

from typing import Any, Dict

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import Observation, State

from .models import SnippetAction


class SnippetEnv(EnvClient[SnippetAction, Observation, State]):
    def _step_payload(self, action: SnippetAction) -> Dict[str, Any]:
        return {"code": action.code}

    def _parse_result(self, payload: Dict[str, Any]) -> StepResult[Observation]:
        told = payload.get("observation", {})
        metadata = told.get("metadata") or payload.get("metadata") or {}
        done, reward = payload.get("done", False), payload.get("reward")
        return StepResult(Observation(done=done, reward=reward, metadata=metadata), reward=reward, done=done)

    def _parse_state(self, payload: Dict[str, Any]) -> State:
        return State(episode_id=payload.get("episode_id"), step_count=payload.get("step_count", 0))
