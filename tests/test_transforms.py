from __future__ import annotations

import pytest

from openenv.environment import CompositeTransform, NullTransform, Transform
from openenv.types import Observation

from .environments import Plain


class Add(Transform[Observation]):
    def __init__(self, number: float):
        self.number = number

    def __call__(self, observation: Observation) -> Observation:
        observation.reward = (observation.reward or 0) * 10 + self.number
        return observation


def test_transforms_are_applied_in_their_order():
    composite = CompositeTransform([Add(1), NullTransform(), Add(2)])
    assert composite(Observation(reward=0)).reward == 12
    assert len(composite.transforms) == 3


def test_none_of_them_changes_nothing():
    observation = Observation(reward=1)
    assert CompositeTransform[Observation]([])(observation) is observation
    assert NullTransform()(observation) is observation


def test_an_environment_applies_them():
    environment = Plain()
    environment.transform = CompositeTransform([Add(3)])
    assert environment._apply_transform(Observation()).reward == 3


def test_what_a_transform_raises_is_raised():
    class Broken(Transform[Observation]):
        def __call__(self, observation: Observation) -> Observation:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        CompositeTransform([NullTransform(), Broken()])(Observation())
