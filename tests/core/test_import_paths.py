"""Import paths of existing code: the objects of their homes under older names, and no behaviour.

tests/dropin/test_public_names.py compares the names with the released package. tests/test_imports.py has what is
raised for a name that is not there.
"""

from __future__ import annotations

import ast
import importlib
import pickle
import subprocess
import sys
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

import pytest

import openenv.core
from openenv.core._homes import HOMES, OTHERS
from openenv.core.client_types import ObsT
from openenv.core.env_server import interfaces
from openenv.environment import Environment
from openenv.types import StepResult

ROOT = Path(openenv.core.__file__).parent
LAZY = "__getattr__, __dir__"
NEEDS_GRADIO = "openenv.core.env_server.gradio_theme"


def name_of(path: Path) -> str:
    parts = ["openenv", "core", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
MORE = {"openenv.core._homes", NEEDS_GRADIO, "openenv.core.env_server.web_interface"}
NAMES_ONLY = sorted(set(FILES) - MORE)


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def package_of(name: str) -> str:
    return name if FILES[name].name == "__init__.py" else name.rpartition(".")[0]


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom)


def is_names_only(node: ast.stmt) -> bool:
    """Whether a statement gives names and does nothing else."""
    if is_import(node):
        return True
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING" and not node.orelse and all(map(is_import, node.body))
    if isinstance(node, ast.AugAssign):  # a package that has the names of a submodule, too
        return ast.unparse(node) == "__all__ += env_server.__all__"
    if not isinstance(node, ast.Assign):
        return False
    target, value = ast.unparse(node.targets[0]).strip("()"), node.value
    if target == "__all__":
        return isinstance(value, ast.List) and all(isinstance(entry, ast.Constant) for entry in value.elts)
    return target == LAZY and ast.unparse(value) == "take(__name__, __all__)"


def homes_of(name: str) -> dict[str, str]:
    """For each name that a module has, in its `__all__` or as a submodule, the module that has it."""
    homes = {entry: HOMES[entry] for entry in importlib.import_module(name).__all__} | OTHERS.get(name, {})
    submodules = {module for module in FILES if module.rpartition(".")[0] == name} - {"openenv.core._homes"}
    return homes | {module.rpartition(".")[2]: module for module in submodules}


def imports_of(name: str) -> list[tuple[str, str]]:
    """What a module imports from this package, for a type checker too: modules, and their names or `*`."""
    found = []
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.ImportFrom) and node.level:
            home = resolve_name("." * node.level + (node.module or ""), package_of(name))
            found += [(home, alias.asname or alias.name) for alias in node.names]
    return found


@pytest.mark.parametrize("name", NAMES_ONLY)
def test_a_module_holds_names_and_nothing_else(name):
    docstring, *rest = tree_of(name).body
    assert ast.get_docstring(tree_of(name))
    assert isinstance(docstring, ast.Expr)
    assert [ast.unparse(node) for node in rest if not is_names_only(node)] == []


@pytest.mark.parametrize("name", NAMES_ONLY)
def test_a_type_checker_and_a_program_see_the_same_names(name):
    homes = homes_of(name)
    submodules = {(name, entry) for entry, home in homes.items() if home == f"{name}.{entry}"}
    others = {(home, entry) for entry, home in OTHERS.get(name, {}).items()}
    assert set(imports_of(name)) == {*submodules, *others, ("openenv.core._homes", "*")}


def test_a_type_checker_finds_each_name_in_its_home():
    imported = set(imports_of("openenv.core._homes")) - {("openenv._imports", "lazy")}
    assert {home for home, _ in imported} == set(HOMES.values())
    for name, home in HOMES.items():
        assert (home, name) in imported or (home, "*") in imported
        if (home, "*") in imported and home != NEEDS_GRADIO:
            assert name in getattr(importlib.import_module(home), "__all__", [name])


@pytest.mark.parametrize("name", NAMES_ONLY)
def test_every_name_is_the_object_of_its_home(name):
    module = importlib.import_module(name)
    for entry, home in homes_of(name).items():
        if home == NEEDS_GRADIO and find_spec("gradio") is None:
            continue
        assert home.startswith("openenv.")
        there = importlib.import_module(home)
        assert getattr(module, entry) is (there if home == f"{name}.{entry}" else getattr(there, entry))


@pytest.mark.parametrize(
    "line",
    [
        "def f(): ...",
        "class C: ...",
        "x = 1",
        "print()",
        "import os",
        "__all__ = sorted(['a'])",
        "__all__ += make()",
        "__getattr__, __dir__ = take(__name__, make())",
        "__getattr__, __dir__ = other(__name__, __all__)",
        "if True:\n    from os import path",
        "if TYPE_CHECKING:\n    x = 1",
        "for x in (): pass",
        "try:\n    from os import path\nexcept ImportError: pass",
    ],
)
def test_the_check_above_finds_what_it_looks_for(line):
    assert not all(map(is_names_only, ast.parse(line).body))


def fresh(program: str) -> str:
    """What a program says in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


HEAVY = ["docker", "fastapi", "fastmcp", "gradio", "httpx", "mcp", "starlette", "uvicorn", "websockets"]


@pytest.mark.parametrize(
    "module",
    [
        "openenv.core",
        "openenv.core.env_server",
        "openenv.core.env_server.types",
        "openenv.core.env_server.interfaces",
        "openenv.core.env_server.base_transforms",
        "openenv.core.env_server.exceptions",
        "openenv.core.env_server.serialization",
        "openenv.core.client_types",
        "openenv.core.env_client",
        "openenv.core.containers.runtime",
        "openenv.core.rubrics",
        "openenv.core.utils",
    ],
)
def test_names_that_need_no_server_load_none(module):
    loaded = fresh(f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})")
    assert set(HEAVY) & set(loaded.split()) == set()


@pytest.mark.parametrize(
    "chain",
    [
        "openenv.core.env_server.types.Action",
        "openenv.core.containers.runtime.providers.ContainerProvider",
        "openenv.core.env_server.exceptions.OpenEnvError",
        "openenv.core.tools.git_server_client.GitServerClient",
    ],
)
def test_a_chain_of_attributes_leads_to_a_name(chain):
    assert chain.rpartition(".")[2] in fresh(f"import openenv; print({chain})")


def test_what_has_an_older_name_is_pickled_under_its_home():
    action = importlib.import_module("openenv.core.env_server.types").Action(metadata={"a": 1})
    assert pickle.loads(pickle.dumps(action)) == action


def test_the_type_variables_of_generic_bases_come_along() -> None:
    assert (interfaces.ActT, interfaces.ObsT, interfaces.StateT) == Environment.__parameters__
    assert (ObsT,) == StepResult.__parameters__
