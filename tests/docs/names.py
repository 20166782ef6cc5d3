"""What a Python block imports and calls, held against what there is, without running it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from openenv.errors import MissingExtra

__all__ = ["complaints", "undefined"]


def complaints(program: str) -> Iterator[str]:
    """What is imported and not there, and arguments that what is called does not take."""
    tree = ast.parse(program)
    known: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield from _module(name.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from _names(node, known)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = _called(node.func, known)
            if called is not None:
                yield from _arguments(node, called)


def undefined(program: str) -> str:
    """Names that nothing defines, by ruff."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--isolated",
            "--select=F821,F811,E9",
            "--output-format=concise",
            "-",
        ],
        input=program,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.removesuffix("All checks passed!\n")


def _module(name: str) -> Iterator[str]:
    """Modules of others may be absent where tests run; one of ours may not."""
    if name.partition(".")[0] == "openenv" and importlib.util.find_spec(name) is None:
        yield f"there is no module {name}"


def _names(node: ast.ImportFrom, known: dict[str, Any]) -> Iterator[str]:
    module = node.module or ""
    if module.partition(".")[0] != "openenv":
        return
    try:
        home = importlib.import_module(module)
        found = {name.name: getattr(home, name.name) for name in node.names if hasattr(home, name.name)}
    except MissingExtra:  # a package of others, which may be absent where tests run
        return
    except ImportError as error:
        yield str(error)
        return
    for name in node.names:
        if name.name in found:
            known[name.asname or name.name] = found[name.name]
        elif importlib.util.find_spec(f"{module}.{name.name}") is None:
            yield f"{module} has no {name.name}"


def _called(function: ast.expr, known: dict[str, Any]) -> Any:
    """What is called: a name that was imported, or an attribute of one."""
    if isinstance(function, ast.Name):
        return known.get(function.id)
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return getattr(known.get(function.value.id), function.attr, None)
    return None


def _arguments(call: ast.Call, called: Any) -> Iterator[str]:
    if any(isinstance(argument, ast.Starred) for argument in call.args) or None in {kw.arg for kw in call.keywords}:
        return
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return
    try:
        signature.bind_partial(*call.args, **{keyword.arg or "": keyword.value for keyword in call.keywords})
    except TypeError as error:
        yield f"{ast.unparse(call.func)}: {error}"
