from __future__ import annotations

import asyncio
import copy
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest

from openenv.errors import RubricFailed
from openenv.rubrics import Rubric, Sequential, WeightedSum

from .rubrics import Constant, Late, Strange, Tensor

# Scores


def test_a_rubric_remembers_its_last_score():
    rubric = Constant(0.5)
    assert rubric.last_score is None
    assert rubric("a", "o") == 0.5
    assert rubric.last_score == 0.5


async def test_an_asynchronous_rubric_is_awaited():
    rubric = Late(0.5)
    given = rubric("a", "o")
    assert asyncio.iscoroutine(given)
    assert rubric.last_score is None
    assert await given == 0.5
    assert rubric.last_score == 0.5


def test_forward_gets_the_action_and_the_observation():
    class Seen(Rubric):
        def forward(self, action, observation):
            self.seen = (action, observation)
            return 1.0

    rubric = Seen()
    rubric("a", "o")
    assert rubric.seen == ("a", "o")


def test_forward_must_be_written():
    with pytest.raises(TypeError, match="forward"):
        Rubric()


@pytest.mark.parametrize(
    "score", [True, 1, 0.5, -2, numpy.float32(0.5), numpy.int64(3), numpy.bool_(True), Fraction(1, 4)]
)
def test_a_finite_number_of_any_kind_is_a_score(score):
    assert Constant(score)(None, None) == float(score)


@pytest.mark.parametrize(
    "score",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        None,
        "0.5",
        b"1",
        [1.0],
        1j,
        10**400,
        Decimal("sNaN"),
        numpy.array([1.0, 2.0]),
        numpy.float32("nan"),
        Tensor(),
    ],
    ids=repr,
)
async def test_what_is_no_score_is_an_error_that_names_the_rubric(score):
    parent = Sequential(Constant(1.0), Constant(score))
    with pytest.raises(RubricFailed, match=r"rubric 'rubric_1' \(Constant\) returned"):
        parent(None, None)
    assert parent[1].last_score is None
    with pytest.raises(RubricFailed, match=r"rubric Late returned .*finite number"):
        await Late(score)(None, None)


def test_an_error_in_forward_is_left_as_it_is():
    class Broken(Rubric):
        def forward(self, action, observation):
            raise KeyError("text")

    with pytest.raises(KeyError, match="text"):
        Broken()(None, None)


# Hooks


def test_hooks_are_called_before_and_after():
    said: list[Any] = []
    rubric = Constant(0.5)
    rubric.register_forward_pre_hook(lambda *given: said.append(given))
    rubric.register_forward_hook(lambda *given: said.append((*given, rubric.last_score)))
    assert rubric("a", "o") == 0.5
    assert said == [(rubric, "a", "o"), (rubric, "a", "o", 0.5, 0.5)]


@pytest.mark.parametrize("cls", [Constant, Late])
async def test_a_hook_may_be_asynchronous(cls):
    said: list[str] = []

    async def before(rubric, action, observation):
        await asyncio.sleep(0)
        said.append("before")

    async def after(rubric, action, observation, score):
        await asyncio.sleep(0)
        said.append(f"after {score}")

    rubric = cls(0.5)
    rubric.register_forward_pre_hook(lambda *_: said.append("first"))
    rubric.register_forward_pre_hook(before)
    rubric.register_forward_hook(after)
    rubric.register_forward_hook(lambda *_: said.append("last"))
    assert await rubric("a", "o") == 0.5
    assert said == ["first", "before", "after 0.5", "last"]


def test_what_a_synchronous_hook_returns_does_not_matter():
    rubric = Constant(0.5)
    rubric.register_forward_hook(lambda *_: 7.0)
    assert rubric(None, None) == 0.5


async def test_an_error_of_a_hook_ends_the_call_and_keeps_the_score():
    async def refuse(*_):
        raise ValueError("no")

    rubric = Constant(0.5)
    rubric.register_forward_hook(refuse)
    with pytest.raises(ValueError, match="no"):
        await rubric(None, None)
    assert rubric.last_score == 0.5


async def test_hooks_of_one_rubric_are_not_those_of_another():
    one, other = Constant(), Constant()
    one.register_forward_hook(lambda *_: pytest.fail("not mine"))
    assert other(None, None) == 0.5


# Children


class Tree(Rubric):
    def __init__(self):
        super().__init__()
        self.style = WeightedSum([Constant(1.0), Constant(0.0)], [0.5, 0.5])
        self.truth = Constant(0.25)

    def forward(self, action, observation):
        return self.style(action, observation) * self.truth(action, observation)


def test_children_register_when_they_are_assigned():
    tree = Tree()
    assert [name for name, _ in tree.named_children()] == ["style", "truth"]
    assert list(tree.children()) == [tree.style, tree.truth]
    assert [path for path, _ in tree.named_rubrics()] == ["style", "style.rubric_0", "style.rubric_1", "truth"]
    assert [path for path, _ in tree.named_rubrics("all")][:2] == ["all.style", "all.style.rubric_0"]
    assert list(tree.rubrics()) == [tree.style, tree.style[0], tree.style[1], tree.truth]


def test_a_rubric_is_found_by_its_path():
    tree = Tree()
    assert tree.get_rubric("truth") is tree.truth
    assert tree.get_rubric("style.rubric_1") is tree.style[1]


@pytest.mark.parametrize("path", ["", "nobody", "style.nobody", "style.", "score"])
def test_a_path_that_leads_nowhere_is_a_key_error_that_says_what_there_is(path):
    with pytest.raises(KeyError, match=r"style\.rubric_0, style\.rubric_1, truth"):
        Tree().get_rubric(path)


def test_a_child_leaves_when_it_is_replaced_or_deleted():
    tree = Tree()
    tree.truth = other = Constant(0.5)
    assert dict(tree.named_children())["truth"] is other
    tree.truth = None
    assert [name for name, _ in tree.named_children()] == ["style"]
    del tree.style
    assert list(tree.named_children()) == []
    with pytest.raises(AttributeError):
        del tree.style


def test_a_rubric_without_the_base_constructor_works():
    rubric = Strange()
    assert rubric(None, None) == 0.25
    assert [path for path, _ in rubric.named_rubrics()] == ["part"]
    assert Strange().part is not rubric.part
    rubric.register_forward_hook(lambda *_: None)
    rubric.reset()
    assert (rubric.part.resets, rubric.last_score) == (1, 0.25)


def test_a_rubric_cannot_be_a_part_of_itself():
    tree = Tree()
    with pytest.raises(ValueError, match="part of itself"):
        tree.again = tree
    with pytest.raises(ValueError, match="part of itself"):
        tree.style.above = tree
    assert [path for path, _ in tree.named_rubrics()] == ["style", "style.rubric_0", "style.rubric_1", "truth"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda rubric: pickle.loads(pickle.dumps(rubric))])
def test_a_copy_has_children_of_its_own(copied):
    tree = Tree()
    twin = copied(tree)
    assert twin(None, None) == tree(None, None)
    assert [path for path, _ in twin.named_rubrics()] == [path for path, _ in tree.named_rubrics()]
    assert twin.get_rubric("truth") is twin.truth
    assert twin.truth is not tree.truth


# Between episodes and processes


def test_reset_reaches_every_rubric():
    tree = Tree()
    tree.reset()
    assert [tree.truth.resets, *(part.resets for part in tree.style)] == [1, 1, 1]


async def test_an_asynchronous_reset_is_awaited():
    class Slow(Constant):
        async def reset(self):
            await asyncio.sleep(0)
            self.resets += 1

    tree = Sequential(Constant(), Slow(), Constant())
    await tree.reset()
    assert [part.resets for part in tree] == [1, 1, 1]


def test_a_rubric_without_settings_has_an_empty_state():
    assert Constant().state_dict() == {}
    assert Sequential(Constant(), Constant()).state_dict() == {}


def test_the_state_of_a_tree_goes_into_another_tree():
    class Threshold(Constant):
        def state_dict(self):
            return {**super().state_dict(), "score": self.score}

        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.score = state["score"]

    def made(score, weights):
        return WeightedSum([Threshold(score), Constant(1.0)], weights)

    one, other = made(0.25, [0.5, 0.5]), made(0.75, [0.1, 0.9])
    assert one.state_dict() == {"weights": [0.5, 0.5], "rubric_0": {"score": 0.25}}
    other.load_state_dict(one.state_dict())
    assert other.state_dict() == one.state_dict()
    assert other(None, None) == one(None, None)


# Concurrency


async def test_calls_of_one_rubric_that_overlap_return_each_their_own_score():
    class Echo(Rubric):
        async def forward(self, action, observation):
            await observation.wait()
            return action

    rubric, gates = Echo(), [asyncio.Event(), asyncio.Event()]
    calls = [asyncio.ensure_future(rubric(float(at), gate)) for at, gate in enumerate(gates)]
    gates[1].set()
    assert await calls[1] == 1.0
    gates[0].set()
    assert await calls[0] == 0.0
    assert rubric.last_score == 0.0  # of the one that ended last
