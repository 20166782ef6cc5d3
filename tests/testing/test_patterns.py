"""Texts that a regular expression matches; the parser behind them has no public name."""

from __future__ import annotations

import re
from random import Random

import pytest

from openenv.testing.schemas import found_in, text_of


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[a-h][1-8][a-h][1-8][qrbn]?$",
        r"\d{3}-\d{4}",
        r"(yes|no|maybe)+",
        r"^[^abc]\w\W\s\S\D.$",
        r"^(?:a|b)*?c{2,}$",
        r"(?P<name>x+)y",
        r"^$",
        r"[^\x00-\x7f]|~",
        r"(?>ab)c++",
        r"[\d_]{2}",
    ],
)
def test_a_pattern_is_found_in_the_text_that_is_made_for_it(pattern: str) -> None:
    for seed in range(20):
        assert re.search(pattern, text_of(pattern, Random(seed)))


@pytest.mark.parametrize("pattern", ["(", r"(?<=a)b", r"(a)\1", r"a\bb", "[z-a]"])
def test_a_pattern_that_nothing_is_made_for_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"regular expression|no string|no matching string"):
        text_of(pattern, Random(0))


@pytest.mark.parametrize(("pattern", "found"), [("b+", True), ("c", False), ("[[]", False), ("(?<no", True)])
def test_a_pattern_is_looked_for_and_one_of_another_language_is_taken_for_found(pattern: str, found: bool) -> None:
    assert found_in(pattern, "abb") is found


@pytest.mark.parametrize(
    "pattern",
    [
        "a{1000000000}",
        "(?:){1000000000}",
        "((((((((((a+)+)+)+)+)+)+)+)+)+)+",
        "(a{1,4}){30}(?:x+x+)+\\b!",
        r".*.*.*.*.*.*.*.*a{900}\b!",
    ],
)
def test_a_pattern_of_a_stranger_does_not_take_forever(pattern: str) -> None:
    with pytest.raises(ValueError, match="lower the numbers of its repetitions"):
        text_of(pattern, Random(0))


@pytest.mark.parametrize("pattern", [r"(\d+,)*\d+", r"(?:foo|bar+)+", r"(?:\d{1,3}\.){3}\d{1,3}", r"\d+-\d+-\d+-\d+"])
def test_repetitions_within_each_other_have_short_texts(pattern: str) -> None:
    assert re.fullmatch(pattern, text_of(pattern, Random(0)))
