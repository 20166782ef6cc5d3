"""A duel: asynchronous, with rubrics that are, and a reward that comes at the end."""

from typing import Any, Optional

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

from ..models import DuelAction, DuelObservation
from .rubrics import DuelRubric

ROUNDS = 3


class DuelEnvironment(Environment[DuelAction, DuelObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__(rubric=DuelRubric())
        self._state = State(step_count=0)

    def reset(self, seed: Optional[int] = None, episode_id: Optional[str] = None, **kwargs: Any) -> DuelObservation:
        raise NotImplementedError("asynchronous only")

    def step(self, action: DuelAction, timeout_s: Optional[float] = None, **kwargs: Any) -> DuelObservation:
        raise NotImplementedError("asynchronous only")

    async def reset_async(
        self, seed: Optional[int] = None, episode_id: Optional[str] = None, **kwargs: Any
    ) -> DuelObservation:
        await self._reset_rubric_async()
        self._state = State(episode_id=episode_id, step_count=0)
        return DuelObservation(round=0)

    async def step_async(
        self, action: DuelAction, timeout_s: Optional[float] = None, **kwargs: Any
    ) -> DuelObservation:
        self._state.step_count += 1
        seen = DuelObservation(round=self._state.step_count, done=self._state.step_count == ROUNDS)
        seen.reward = await self._apply_rubric_async(action, seen)
        seen.scores = {
            name: each.last_score for name, each in self.rubric.named_rubrics() if each.last_score is not None
        }
        seen.credit = self.rubric.won.compute_step_rewards()
        return seen

    @property
    def state(self) -> State:
        return self._state
