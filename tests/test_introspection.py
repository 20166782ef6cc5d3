from __future__ import annotations

from functools import partial
from typing import Generic, TypeVar

import pytest

from openenv._introspection import type_arguments, unwrap_partial

A, B, C = TypeVar("A"), TypeVar("B"), TypeVar("C")


class Base(Generic[A, B]):
    pass


class Other(Generic[A]):
    pass


class Full(Base[int, str]):
    pass


class Inherited(Full):
    pass


class Mixed(Other[bytes], Full):
    pass


class Open(Base[A, B]):
    pass


class Closed(Open[int, str]):
    pass


class Half(Base[int, B]):
    pass


class Whole(Half[str]):
    pass


class Swapped(Base[A, B], Generic[B, A]):
    pass


class Straight(Swapped[str, int]):
    pass


class Narrowed(Base[C, C]):
    pass


class Both(Narrowed[int]):
    pass


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (Full, (int, str)),
        (Inherited, (int, str)),
        (Mixed, (int, str)),
        (Closed, (int, str)),
        (Whole, (int, str)),
        (Straight, (int, str)),
        (Both, (int, int)),
        (type("Late", (Full,), {}), (int, str)),
    ],
)
def test_the_types_a_class_was_made_for(cls, arguments):
    assert type_arguments(cls, Base) == arguments


@pytest.mark.parametrize("cls", [Base, Open, Half, Swapped, Narrowed, type("Bare", (Base,), {}), Other, int])
def test_a_class_that_leaves_a_type_open_has_none(cls):
    assert type_arguments(cls, Base) == ()


def test_what_a_class_says_itself_wins_over_its_bases():
    class Override(Base[bool, bytes], Generic[A]):
        pass

    assert type_arguments(Override, Base) == (bool, bytes)


def test_each_base_has_its_own():
    assert type_arguments(Mixed, Other) == (bytes,)


def test_the_function_of_a_partial_of_a_partial():
    assert unwrap_partial(partial(partial(int, "ff"), base=16)) is int
    assert unwrap_partial(int) is int
