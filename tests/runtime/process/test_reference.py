"""How another process finds what makes environments."""

from __future__ import annotations

import functools
import pickle

import pytest

from openenv.errors import UsageError
from openenv.runtime.process.messages import dumps, pickle_by_reference

from .wild import Patient, Wild, local_factory, make_wild, pool_of


@pytest.mark.parametrize("factory", [Wild, make_wild, functools.partial(functools.partial(Wild, name="a"))])
def test_what_a_module_has_goes_by_its_name(factory):
    found = pickle.loads(pickle_by_reference(factory))
    assert type(found()) is Wild
    if not isinstance(factory, functools.partial):
        assert found is factory


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (local_factory(), "top of the module"),
        (lambda: Wild(), "top of the module"),
        (functools.partial(local_factory()), "top of the module"),
        (Wild().reset, "a class or a function"),
        (functools.partial(Wild, lambda: None), "cannot be pickled"),
    ],
)
def test_what_no_other_process_finds_is_refused(factory, words):
    with pytest.raises(UsageError, match=words):
        pickle_by_reference(factory)


def test_what_the_script_itself_defines_is_refused():
    class Env(Wild):
        pass

    Env.__module__, Env.__qualname__ = "__main__", "Env"
    with pytest.raises(UsageError, match="move it to a module"):
        pickle_by_reference(Env)


def test_a_class_made_at_run_time_says_how_it_is_made_again():
    made = type("Made", (), {"__reference__": (remade, "Made")})
    assert pickle.loads(pickle_by_reference(made)).__name__ == "Made again"
    assert type(pickle.loads(dumps(made()))).__name__ == "Made again"
    assert pickle.loads(dumps([made]))[0].__name__ == "Made again"


async def test_environments_of_gymnasium_have_processes_too():
    pytest.importorskip("gymnasium")
    from openenv.adapters.gymnasium import gymnasium_environment

    cart = gymnasium_environment("CartPole-v1", sutton_barto_reward=True)
    async with pool_of(cart) as pool:
        patient = Patient(pool)
        assert await patient.start() is None
        assert (await patient.reset(seed=1))[1] is None
        fields, error = await patient.call(patient.profile.step, cart.action_cls(action=1))
        assert error is None
        assert fields["reward"] == 0.0
        assert len(fields["observation"]) == 4


def remade(name: str) -> type:
    return type(f"{name} again", (), {})
