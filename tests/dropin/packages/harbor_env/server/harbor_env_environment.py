"""Ships that wait for a berth: an environment whose methods are coroutines."""

import asyncio
from typing import Any, Dict, List, Optional
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment, Transform
from openenv.core.env_server.types import EnvironmentMetadata

try:
    from ..models import Berth, HarborAction, HarborObservation, HarborState
    from .rubrics import HarborRubric
except ImportError:
    from models import Berth, HarborAction, HarborObservation, HarborState
    from server.rubrics import HarborRubric


class Scored(Transform):
    """Copies the reward to where the model sees it."""

    def __call__(self, observation: HarborObservation) -> HarborObservation:
        return observation.model_copy(update={"score": observation.reward})


class HarborEnvironment(Environment[HarborAction, HarborObservation, HarborState]):
    """Each step berths one ship."""

    SUPPORTS_CONCURRENT_SESSIONS: bool = True

    def __init__(self, ships: int = 3):
        super().__init__(transform=Scored(), rubric=HarborRubric())
        self._ships = ships
        self._lock = asyncio.Lock()
        self._state = HarborState()

    def reset(self, seed: Optional[int] = None, episode_id: Optional[str] = None, **kwargs: Any) -> HarborObservation:
        raise NotImplementedError("use reset_async")

    def step(self, action: HarborAction, timeout_s: Optional[float] = None, **kwargs: Any) -> HarborObservation:
        raise NotImplementedError("use step_async")

    async def reset_async(
        self, seed: Optional[int] = None, episode_id: Optional[str] = None, **kwargs: Any
    ) -> HarborObservation:
        await self._reset_rubric_async()
        self._state = HarborState(episode_id=episode_id or str(uuid4()), tide=float(kwargs.get("tide", 0.0)))
        return HarborObservation(berths=list(Berth), queue=list(range(self._ships)))

    async def step_async(
        self, action: HarborAction, timeout_s: Optional[float] = None, **kwargs: Any
    ) -> HarborObservation:
        async with self._lock:
            async with asyncio.timeout(timeout_s or 30):
                await asyncio.sleep(action.wait_s)
            if self._state.episode_id is None:
                raise RuntimeError("no ship has been announced: reset first")
            self._state.step_count += 1
            self._state.berthed.append(action.berth.value)
            left = self._ships - self._state.step_count
            observation = HarborObservation(
                berths=[berth for berth in Berth if berth != action.berth],
                queue=list(range(left)),
                done=left <= 0,
                metadata={"tide": self._state.tide},
            )
            observation.reward = await self._apply_rubric_async(action, observation)
            return self._apply_transform(observation)

    @property
    def state(self) -> HarborState:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(
            name="Harbor", description="Ships that wait for a berth", version="2.3.4", author="The pilots"
        )

    def render_web(self, observation: Dict[str, Any]) -> Optional[str]:
        return f"<p>{len(observation.get('queue', []))} ships wait</p>"

    def web_actions(self, observation: Dict[str, Any]) -> List[tuple]:
        return [(f"To the {berth.value}", {"berth": berth.value}) for berth in Berth]
