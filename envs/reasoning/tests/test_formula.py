"""Only safe formulas reach scorers that evaluate and expand an answer."""

from __future__ import annotations

import pytest
from reasoning.server.bank import question, score
from reasoning.server.formula import is_formula


@pytest.mark.parametrize(
    "text",
    [
        "94*4 - 61 - 6", "-x**8/15 + C", "2*(-10*x - 10)**(3/2)/3", "exp(2*x)*sin(x)", "E**(2*x)", " x ", "log(x)/2.5"
    ],
)  # fmt: skip
def test_formulas_are_read(text: str) -> None:
    assert is_formula(text, "functions")


@pytest.mark.parametrize(
    "text",
    [
        "", "x.y", "f(x)", "sin(x, y)", "sin(x=1)", "9**9**9", "9**65", "2**(8*9)", "2**(1/0)", "((9**9)**9)**9",
        "12345678901", "True", "[1]", "lambda: 1", "x if x else x", "'x'", "xy", "1" * 500, "+".join("x" * 190),
        "(" * 200, "x**exp(9)", "2**64.5", "2**(x*0+99)",
    ],
)  # fmt: skip
def test_what_is_no_formula_of_modest_size_is_not(text: str) -> None:
    assert not is_formula(text, "functions")


def test_letters_are_no_numbers() -> None:
    assert is_formula("1 + 2", "numbers")
    assert not is_formula("x + 2", "numbers")
    assert not is_formula("sin(2)", "numbers")
    assert is_formula("x + 2", "letters")
    assert is_formula("x**4/4 - (2/3)*(x + 1)**3*a + 2**0.5*x**2 + C", "letters")
    assert not is_formula("sin(2)", "letters")


@pytest.mark.parametrize(
    "answer",
    [
        "(a+b+c+d+e+f)**64", "((x+a+b)**64)**64", "(x+1)**64*(x+2)**64", "*".join(map("(x+{})".format, range(20))),
        "x + 1/(x+a)", "(x+1)**(1/2)", "(x+1)**x", "(x+1)**-2", "sin(" * 9 + "x" + ")" * 9, "tan(x)",
    ],
)  # fmt: skip
def test_formulas_that_a_scorer_would_multiply_out_for_hours_do_not_reach_it(answer: str) -> None:
    asked = question("simple_integration", "train", 0)
    assert score(asked, answer) == (0.0, "it is not a readable formula")
