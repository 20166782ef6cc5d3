"""The name of the first releases, in interpreters of their own: it is imported once in each."""

from __future__ import annotations

import subprocess
import sys

import pytest


def told(program: str, *options: str) -> tuple[list[str], list[str]]:
    """What a program says, and what it is warned of."""
    done = subprocess.run(
        [sys.executable, *(options or ("-W", "always::DeprecationWarning")), "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "DeprecationWarning" in line]
    return done.stdout.splitlines(), warnings


@pytest.mark.parametrize(
    "statement",
    [
        "import openenv_core",
        "import openenv_core.env_server.types",
        "from openenv_core.env_server.types import Action",
        "from openenv_core import EnvClient",
        "from openenv_core.containers.runtime import ContainerProvider",
    ],
)
def test_an_import_is_warned_of_once_at_the_line_that_does_it(statement):
    _, warnings = told(f"pass\n{statement}\n")
    (warning,) = warnings
    assert warning.startswith("<string>:2:")
    assert "import openenv.core instead" in warning


@pytest.mark.parametrize(
    "name",
    ["env_server", "env_server.types", "env_server.interfaces", "env_server.http_server", "client_types", "rubrics"],
)
@pytest.mark.parametrize("first", ["openenv.core", "openenv_core"])
def test_a_module_is_the_same_under_both_names(name, first):
    second = "openenv.core" if first == "openenv_core" else "openenv_core"
    said, _ = told(
        f"import {first}.{name}, {second}.{name}, sys\n"
        f"old, new = sys.modules['openenv_core.{name}'], sys.modules['openenv.core.{name}']\n"
        "print(old is new, new.__name__, new.__spec__.name)\n"
        f"import openenv_core; print(openenv_core.{name} is new)"
    )
    assert said == [f"True openenv.core.{name} openenv.core.{name}", "True"]


def test_classes_are_the_same_under_all_names():
    said, _ = told(
        "from openenv_core.env_server.types import Action as old\n"
        "from openenv.core.env_server.types import Action as new\n"
        "from openenv.types import Action\n"
        "import pickle\n"
        "print(old is new is Action, pickle.loads(pickle.dumps(old())) == Action())"
    )
    assert said == ["True True"]


def test_what_is_not_there_is_not_there():
    said, _ = told(
        "for statement in ('import openenv_core.nothing', 'import openenv_core.env_server.nothing',\n"
        "                  'from openenv_core import nothing'):\n"
        "    try:\n"
        "        exec(statement)\n"
        "    except ImportError as error:\n"
        "        print(error)"
    )
    assert len(said) == 3
    assert "No module named 'openenv_core.nothing'" in said[0]
    assert "No module named 'openenv_core.env_server.nothing'" in said[1]
    assert "cannot import name 'nothing'" in said[2]


def test_it_can_be_loaded_anew():
    said, warnings = told(
        "import importlib, sys, openenv_core\n"
        "importlib.reload(openenv_core)\n"
        "print([type(finder).__module__ for finder in sys.meta_path].count('openenv_core'))\n"
        "from openenv_core.env_server import Environment"
    )
    assert said == ["1"]
    assert len(warnings) == 2


def test_it_loads_nothing_that_is_not_asked_for():
    said, _ = told("import sys, openenv_core; print(*(name for name in sys.modules if name.startswith('openenv')))")
    assert said == ["openenv_core"]
