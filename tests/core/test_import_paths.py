"""Import paths of existing code: what importing them loads, and what they say about names that are not there.

Which names there are is compared with the released package in tests/dropin/test_public_names.py, and with their homes
in test_names_only.py.
"""

from __future__ import annotations

import importlib
import pickle
import re
import subprocess
import sys

import pytest

from openenv.environment import Environment
from openenv.types import StepResult


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


def test_all_names_of_a_module_can_be_imported_at_once():
    program = "from openenv.core.env_server.types import *; print(Action, WSStepMessage)"
    assert "openenv.types.Action" in fresh(program)


@pytest.mark.parametrize("module", ["openenv.core", "openenv.core.env_server", "openenv.core.rubrics"])
def test_a_name_that_is_not_there(module):
    with pytest.raises(AttributeError, match=f"module '{re.escape(module)}' has no attribute 'nothing'"):
        importlib.import_module(module).nothing  # noqa: B018
    with pytest.raises(ImportError, match="nothing"):
        exec(f"from {module} import nothing")


def test_what_has_an_older_name_is_pickled_under_its_home():
    action = importlib.import_module("openenv.core.env_server.types").Action(metadata={"a": 1})
    assert pickle.loads(pickle.dumps(action)) == action


def test_the_type_variables_of_generic_bases_come_along() -> None:
    from openenv.core.client_types import ObsT
    from openenv.core.env_server import interfaces

    assert (interfaces.ActT, interfaces.ObsT, interfaces.StateT) == Environment.__parameters__
    assert (ObsT,) == StepResult.__parameters__
