"""What the package shows to the world, and what it must not do behind its back."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from functools import cache
from importlib import metadata
from importlib.util import resolve_name
from pathlib import Path

import pytest

import openenv
from openenv import errors

SOURCE = Path(openenv.__file__).parent


def name_of(path: Path) -> str:
    """The module that a file is."""
    parts = ["openenv", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
CORE = sorted(name for name in FILES if name.startswith("openenv.core"))


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def listed(tree: ast.Module) -> list[str] | None:
    """The `__all__` of a module, as written."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return ast.literal_eval(node.value)
    return None


# Names


OLDER_NAMES = {"EnvironmentFactoryError", "SessionCapacityError", "SessionCreationError", "SessionNotFoundError"}


def test_the_names_of_the_package():
    failures = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)} - OLDER_NAMES
    assert [name for name in openenv.__all__ if name not in failures] == [
        "Action",
        "Array",
        "AutoAction",
        "AutoEnv",
        "BatchResult",
        "BatchedEnvClient",
        "BatchedEnvironment",
        "Chat",
        "EnvClient",
        "Environment",
        "GenericAction",
        "GenericEnvClient",
        "JsonAnswer",
        "Observation",
        "RegexAnswer",
        "RenderedImage",
        "State",
        "StepResult",
        "SyncBatchedEnvClient",
        "SyncEnvClient",
        "SyncVectorEnvClient",
        "TagAnswer",
        "Transform",
        "VectorEnvClient",
        "__version__",
        "cli",
        "core",
        "create_app",
        "reward_mask",
    ]
    assert failures <= set(openenv.__all__)
    assert dir(openenv) == openenv.__all__


@pytest.mark.parametrize("name", openenv.__all__)
def test_every_name_of_the_package_resolves(name):
    value = getattr(openenv, name)
    assert getattr(openenv, name) is value
    scope: dict = {}
    exec(f"from openenv import {name} as found", scope)
    assert scope["found"] is value


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'openenv' has no attribute 'nothing'"):
        openenv.nothing  # noqa: B018
    with pytest.raises(ImportError, match="nothing"):
        exec("from openenv import nothing")


def test_a_type_checker_and_a_program_see_the_same_names():
    """The lazy table and the imports that only a type checker sees name the same homes."""
    homes = {}
    for node in ast.walk(tree_of("openenv")):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            module = f"openenv.{node.module}" if node.module else None
            names = [alias.name for alias in node.names]
            if names == ["*"]:
                assert module is not None
                names = [name for name in importlib.import_module(module).__all__ if name in openenv.__all__]
            homes.update({name: module or f"openenv.{name}" for name in names})
    del homes["lazy"]
    assert {name: home for name, home in openenv._HOMES.items() if name != "__version__"} == homes
    assert set(homes) == set(openenv.__all__) - {"__version__"}


def test_the_version_is_that_of_the_distribution():
    assert metadata.version("openenv") == openenv.__version__
    assert int(openenv.__version__.split(".")[0]) >= 1


@pytest.mark.parametrize(
    "name", [name for name, path in FILES.items() if "\n__all__" in path.read_text(encoding="utf-8")]
)
def test_every_list_of_names_is_sorted_and_true(name):
    if name.endswith(".gradio_theme"):
        pytest.importorskip("gradio")
    names = listed(tree_of(name))
    assert names is not None
    assert len(set(names)) == len(names)
    assert names == sorted(names, key=lambda entry: (not entry.isupper(), not entry[0].isupper(), entry))
    try:
        module = importlib.import_module(name)
        assert [entry for entry in names if not hasattr(module, entry)] == []
    except errors.MissingExtra as missing:
        pytest.skip(missing.message)


def test_every_module_says_what_it_is_for():
    assert [name for name in FILES if not ast.get_docstring(tree_of(name))] == []


# Weight


def modules_after(program: str) -> set[str]:
    """The modules that a fresh interpreter has after a program, and had not before it."""
    script = (
        f"import json, sys; before = set(sys.modules)\n{program}\nprint(json.dumps(list(set(sys.modules) - before)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(result.stdout))


def tops(modules: set[str]) -> set[str]:
    """The packages among them that are not Python's own."""
    return {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)


def test_importing_the_package_imports_nothing_else():
    modules = modules_after("import openenv")
    assert {name for name in modules if name.startswith("openenv")} == {"openenv", "openenv._imports"}
    assert tops(modules) == {"openenv"}
    assert modules.isdisjoint({"asyncio", "ssl", "socket", "logging", "dataclasses"})


HEAVY = {
    "click",
    "fastapi",
    "gymnasium",
    "httptools",
    "httpx",
    "matplotlib",
    "numpy",
    "rich",
    "starlette",
    "typer",
    "uvicorn",
    "websockets",
    "yaml",
}


@pytest.mark.parametrize(
    "program",
    [
        "from openenv import EnvClient",
        "from openenv import GenericEnvClient, SyncEnvClient, Action, Observation, State, Environment",
        "from openenv.envs.echo import EchoEnv, EchoAction",
        "from openenv.envs.benchmark import BenchmarkEnv, BenchmarkAction",
        "from openenv import EnvClient; env = EnvClient('localhost:8000')",
    ],
)
def test_a_client_imports_no_server(program):
    modules = modules_after(program)
    assert "openenv.client" in modules
    assert tops(modules).isdisjoint(HEAVY)
    for package in ("adapters", "bench", "cli", "runtime", "server", "testing"):
        assert not any(f"{name}.".startswith(f"openenv.{package}.") for name in modules)


@pytest.mark.slow
def test_a_server_imports_nothing_that_only_measuring_needs():
    modules = modules_after("from openenv import create_app")
    assert tops(modules).isdisjoint({"gymnasium", "httpx", "matplotlib", "numpy", "rich", "typer"})
    assert not any(name.startswith(("openenv.client", "openenv.cli", "openenv.bench")) for name in modules)


def test_the_command_line_imports_what_a_command_needs_when_it_runs():
    modules = modules_after("import openenv.cli")
    assert tops(modules).isdisjoint({"fastapi", "gymnasium", "httpx", "matplotlib", "numpy", "rich", "uvicorn"})


# Import paths of existing code (see also tests/core)


def test_nothing_imports_core():
    for name, file in FILES.items():
        if name in CORE:
            continue
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(tree_of(name)):
            found = []
            if isinstance(node, ast.ImportFrom):
                found = [resolve_name("." * node.level + (node.module or ""), package)]
            elif isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            assert not any(module.startswith("openenv.core") for module in found), name


# The process's environment

READERS = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def reads_the_environment(tree: ast.Module) -> list[int]:
    """Lines that touch the environment variables of the process."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in READERS and ast.unparse(node.value) in ("os", "posix"):
            lines.append(node.lineno)
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and READERS & {alias.name for alias in node.names}
        ):
            lines.append(node.lineno)
    return lines


def test_settings_alone_read_the_environment_of_the_process():
    assert [name for name in FILES if reads_the_environment(tree_of(name))] == ["openenv.settings"]


def test_the_check_above_finds_what_it_looks_for():
    assert reads_the_environment(tree_of("openenv.settings"))
    for line in ("import os; os.getenv('X')", "from os import environ", "import os; os.environ['X'] = '1'"):
        assert reads_the_environment(ast.parse(line))
    assert not reads_the_environment(ast.parse("import os; os.getpid(); settings.environ"))
