"""How a duel is scored: each move by judges that take their time, the whole by its end."""

import asyncio
import inspect
from typing import Any, List, Tuple

from openenv.core.rubrics import Gate, Rubric, RubricDict, Sequential, WeightedSum
from openenv.core.rubrics.trajectory import ExponentialDiscountingTrajectoryRubric


class Bold(Rubric):
    """One for a strike. Asynchronous, as a language model that judges would be."""

    async def forward(self, action: Any, observation: Any) -> float:
        await asyncio.sleep(0)
        return 1.0 if action.move == "strike" else 0.25


class Awake(Rubric):
    """Zero for a rest."""

    def forward(self, action: Any, observation: Any) -> float:
        return 0.0 if action.move == "rest" else 1.0


class Varied(Rubric):
    """One for a move that was not made before in this episode: it remembers."""

    def __init__(self):
        super().__init__()
        self.seen: List[str] = []

    async def forward(self, action: Any, observation: Any) -> float:
        fresh = action.move not in self.seen
        self.seen.append(action.move)
        return 1.0 if fresh else 0.5

    def reset(self) -> None:
        self.seen.clear()


class Won(ExponentialDiscountingTrajectoryRubric):
    """One if two of three moves were strikes."""

    def score_trajectory(self, trajectory: List[Tuple[Any, Any]]) -> float:
        return 1.0 if sum(action.move == "strike" for action, _ in trajectory) >= 2 else 0.125


class DuelRubric(Rubric):
    def __init__(self):
        super().__init__()
        self.manners = Sequential(Gate(Awake(), threshold=0.5), Bold())
        self.style = WeightedSum([Varied(), Awake()], weights=[0.75, 0.25])
        self.judges = RubricDict({"bold": Bold(), "awake": Awake()})
        self.won = Won(gamma=0.5, intermediate_reward=0.0)

    async def forward(self, action: Any, observation: Any) -> float:
        manners = await _value(self.manners(action, observation))
        style = await _value(self.style(action, observation))
        bold = await _value(self.judges["bold"](action, observation))
        won = self.won(action, observation)
        return won if observation.done else (manners + style + bold) / 8

    async def reset_async(self) -> None:
        self.won.reset()
        for _, each in self.named_rubrics():
            each.reset()


async def _value(score: Any) -> float:
    """Containers give a number at once where their first child does."""
    return await score if inspect.isawaitable(score) else score
