"""Client of the parcel environment, which parses what the server says itself."""

from __future__ import annotations

from typing import Any, Dict

try:
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient

    from .models import Parcel, ParcelAction, ParcelObservation, ParcelState, Van
except ImportError:
    from models import Parcel, ParcelAction, ParcelObservation, ParcelState, Van
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient


class ParcelEnv(EnvClient[ParcelAction, ParcelObservation, ParcelState]):
    """
    Example:
        >>> with ParcelEnv(base_url="http://localhost:8000").sync() as env:
        ...     result = env.reset(depot="north")
        ...     result = env.step(ParcelAction(van="large"))
    """

    def _step_payload(self, action: ParcelAction) -> Dict[str, Any]:
        payload: Dict[str, Any] = {"van": action.van, "note": action.note}
        if action.parcel is not None:
            payload["parcel"] = action.parcel.model_dump()
        return payload

    def _parse_result(self, payload: Dict[str, Any]) -> StepResult[ParcelObservation]:
        data = payload.get("observation", {})
        belt = data.get("belt")
        observation = ParcelObservation(
            vans={name: Van(**van) for name, van in data.get("vans", {}).items()},
            belt=None if belt is None else Parcel(**belt),
            message=data.get("message", ""),
            done=payload.get("done", False),
            reward=payload.get("reward"),
            metadata=data.get("metadata", {}),
        )
        return StepResult(observation=observation, reward=payload.get("reward"), done=payload.get("done", False))

    def _parse_state(self, payload: Dict[str, Any]) -> ParcelState:
        return ParcelState(
            episode_id=payload.get("episode_id"),
            step_count=payload.get("step_count", 0),
            depot=payload.get("depot", ""),
            delivered_kg=payload.get("delivered_kg", 0.0),
        )
