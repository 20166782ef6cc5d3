"""Checks that an answer is a safe formula.

Some scorers of the package pass an answer to sympy's parser, which runs it as Python: `__import__("os")...` would be
executed, and `9**9**9` would never end. Sympy then expands the formula, so `(a+b+c+d+e)**64` would not end either.
Only formulas of limited size, also after expansion, reach these scorers.
"""

from __future__ import annotations

import ast
import re
from math import comb
from typing import Literal

__all__ = ["Content", "is_formula"]

Content = Literal["numbers", "letters", "functions"]
"""The allowed content of a formula. `numbers`: only numbers. `letters`: polynomials with letters (`x`, `C`).
`functions`: also functions (`sin`), and letters anywhere."""

LONGEST = 400
MOST_NODES = 200
LARGEST_EXPONENT = 64
LARGEST_NUMBER = 10**9
MOST_TERMS = 80
DEEPEST = 2
FUNCTIONS = frozenset(
    {
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "exp",
        "log",
        "ln",
        "sqrt",
    }
)
_TEXT = re.compile(r"[0-9A-Za-z_+\-*/(). ]+")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)
_PLACES = (ast.Expression, ast.Load, ast.BinOp, ast.UnaryOp, *_OPERATORS)


def is_formula(answer: str, content: Content) -> bool:
    """Whether an answer is a formula that sympy can parse and expand safely.

    Args:
        answer: The text.
        content: The allowed content.
    """
    text = answer.strip()
    if len(text) > LONGEST or not _TEXT.fullmatch(text):
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(tree))
    if len(nodes) > MOST_NODES:
        return False
    if not all(_harmless(node, content) for node in nodes) or max(_powers(tree.body), _calls(tree.body)) > DEEPEST:
        return False
    if content == "letters" and not all(map(_is_polynomial, nodes)):
        return False
    return _terms(tree.body) <= MOST_TERMS


def _harmless(node: ast.AST, content: Content) -> bool:
    if isinstance(node, ast.Constant):
        value = node.value
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER
    if isinstance(node, ast.Name):
        return content != "numbers" and (len(node.id) == 1 or node.id in FUNCTIONS)
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
        return content == "functions" and named and not node.keywords and len(node.args) == 1
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _size(node.right) <= LARGEST_EXPONENT
    return isinstance(node, _PLACES)


def _is_polynomial(node: ast.AST) -> bool:
    """Whether no letter is in a denominator or an exponent, and exponents of letters are integers."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div | ast.Pow):
        return True
    whole = isinstance(node.op, ast.Div) or (isinstance(node.right, ast.Constant) and type(node.right.value) is int)
    return not _has_letters(node.right) and (whole or not _has_letters(node.left))


def _has_letters(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Name) for inner in ast.walk(node))


def _size(exponent: ast.expr) -> float:
    """An upper bound of an exponent, with 1 for letters. Infinite if the exponent has other content."""
    match exponent:
        case ast.Constant(value=int() | float() as value):
            size = abs(float(value))
        case ast.Name():
            size = 1.0
        case ast.UnaryOp(operand=operand):
            size = _size(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            size = _size(left) + _size(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            size = _size(left) * _size(right)
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=int() as by)) if by:
            size = _size(left)
        case _:
            size = float("inf")
    return size


def _powers(node: ast.expr) -> int:
    """Depth of nested powers."""
    deepest = max((_powers(inner) for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.expr)), default=0)
    return deepest + (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow))


def _calls(node: ast.AST) -> int:
    """Depth of nested function calls."""
    deepest = max((_calls(inner) for inner in ast.iter_child_nodes(node)), default=0)
    return deepest + isinstance(node, ast.Call)


def _terms(node: ast.expr) -> int:
    """An upper bound of the terms of the expanded formula. Counting stops above `MOST_TERMS`."""
    if not _has_letters(node):
        return 1
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            count = _terms(left) + _terms(right)
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            count = _terms(left) * _terms(right)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            power = int(_size(right))
            count = comb(_terms(left) + power - 1, power)
        case ast.UnaryOp(operand=operand):
            count = _terms(operand)
        case ast.Call(args=[argument]):
            count = _terms(argument)
        case _:
            count = 1
    return min(count, MOST_TERMS + 1)
