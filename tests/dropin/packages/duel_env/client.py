"""Client of the duel."""

from typing import Any, Dict

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import State

from .models import DuelAction, DuelObservation


class DuelEnv(EnvClient[DuelAction, DuelObservation, State]):
    def _step_payload(self, action: DuelAction) -> Dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: Dict[str, Any]) -> StepResult[DuelObservation]:
        done, reward = payload["done"], payload["reward"]
        seen = DuelObservation(**payload["observation"], done=done, reward=reward)
        return StepResult(observation=seen, reward=reward, done=done)

    def _parse_state(self, payload: Dict[str, Any]) -> State:
        return State(**payload)
