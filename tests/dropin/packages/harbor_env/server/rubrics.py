"""How harbors are scored."""

from openenv.core.rubrics import Rubric, WeightedSum


class Fits(Rubric):
    """One if the ship fits its berth."""

    def forward(self, action, observation) -> float:
        return 1.0 if action.length_m <= (100 if action.berth == "north" else 200) else 0.0


class Prompt(Rubric):
    """One if nobody had to wait. Asynchronous, as a judge would be."""

    async def forward(self, action, observation) -> float:
        return 0.0 if action.wait_s else 1.0


class HarborRubric(Rubric):
    """Mostly whether it fits."""

    def __init__(self):
        super().__init__()
        self.total = WeightedSum([Fits(), Prompt()], weights=[0.75, 0.25])

    def forward(self, action, observation):
        return self.total(action, observation)
