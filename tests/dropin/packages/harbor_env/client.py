"""Client of the harbor."""

from typing import Any, Dict

from openenv.core import EnvClient

# From before OpenEnv moved; it still works.
try:
    from openenv_core.client_types import StepResult
except ImportError:
    from openenv.core.client_types import StepResult

from .models import HarborAction, HarborObservation, HarborState


class HarborEnv(EnvClient[HarborAction, HarborObservation, HarborState]):
    """Ships to berths."""

    def _step_payload(self, action: HarborAction) -> Dict[str, Any]:
        return action.model_dump(mode="json")

    def _parse_result(self, payload: Dict[str, Any]) -> StepResult[HarborObservation]:
        observation = HarborObservation(
            **payload["observation"], reward=payload.get("reward"), done=payload.get("done", False)
        )
        return StepResult(
            observation=observation,
            reward=payload.get("reward"),
            done=payload.get("done", False),
            metadata=payload.get("metadata"),
        )

    def _parse_state(self, payload: Dict[str, Any]) -> HarborState:
        return HarborState(**payload)
