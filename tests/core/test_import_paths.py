"""Every import path that existing code uses, row by row as it was written down, and where its names live."""

from __future__ import annotations

import importlib
import pickle
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

import openenv
from openenv.environment import Environment
from openenv.types import StepResult


class Row(NamedTuple):
    """One row of the list of import paths.

    Attributes:
        text: The row, where `o.c` is openenv.core and `es` is env_server.
        modules: The modules that have its names.
        names: By the module in which they live.
    """

    text: str
    modules: tuple[str, ...]
    names: dict[str, str]


TYPES = Row(
    "o.c.es.types / o.c.es",
    ("openenv.core.env_server.types", "openenv.core.env_server", "openenv.types", "openenv_core.env_server.types"),
    {
        "openenv.types": "Action Observation State EnvironmentMetadata CodeExecResult ConcurrencyConfig "
        "ServerCapacityStatus SessionInfo ServerMode HealthStatus BaseMessage",
        "openenv.messages": "WSErrorCode ResetRequest ResetResponse StepRequest StepResponse SchemaResponse "
        "HealthResponse WSResetMessage WSStepMessage WSStateMessage WSCloseMessage WSIncomingMessage "
        "WSObservationResponse WSStateResponse WSErrorResponse ListTasksRequest NumTasksRequest GetTaskRequest "
        "GetTaskRangeRequest",
    },
)
ROWS = [
    TYPES,
    Row(
        "o.c.es.interfaces: Environment, Transform, Message, ModelTokenizer, TaskProvider (and Action, ...)",
        ("openenv.core.env_server.interfaces", "openenv.core.env_server", "openenv_core.env_server.interfaces"),
        {
            "openenv.environment": "Environment Transform",
            "openenv.interfaces": "Message ModelTokenizer TaskProvider",
            "openenv.types": "Action Observation State",
        },
    ),
    Row(
        "o.c.es.base_transforms: CompositeTransform, NullTransform",
        ("openenv.core.env_server.base_transforms", "openenv.core.env_server"),
        {"openenv.transforms": "CompositeTransform NullTransform"},
    ),
    Row(
        "o.c.es.http_server: create_app, create_fastapi_app, HTTPEnvServer",
        ("openenv.core.env_server.http_server", "openenv.core.env_server", "openenv_core.env_server.http_server"),
        {"openenv.server": "create_app create_fastapi_app HTTPEnvServer"},
    ),
    Row(
        "o.c.es.serialization: serialize_observation, deserialize_action, deserialize_action_with_preprocessing",
        ("openenv.core.env_server.serialization", "openenv.core.env_server"),
        {
            "openenv.protocol.forms": "serialize_observation",
            "openenv.core._adapters": "deserialize_action deserialize_action_with_preprocessing",
        },
    ),
    Row(
        "o.c.es.exceptions: OpenEnvError, ConcurrencyConfigurationError, SessionCapacityError, ...",
        ("openenv.core.env_server.exceptions", "openenv.core.env_server"),
        {
            "openenv.errors": "OpenEnvError ConcurrencyConfigurationError SessionCapacityError SessionNotFoundError "
            "SessionCreationError EnvironmentFactoryError"
        },
    ),
    Row(
        "o.c.es.web_interface: load_environment_metadata, create_web_interface_app",
        ("openenv.core.env_server.web_interface",),
        {"openenv.server.metadata": "load_environment_metadata", "openenv.server.app": "create_web_interface_app"},
    ),
    Row(
        "o.c.es.mcp_types: Tool, ListToolsAction, CallToolAction, ...",
        ("openenv.core.env_server.mcp_types", "openenv.core.env_server"),
        {
            "openenv.mcp.types": "Tool ToolError ToolErrorType ListToolsAction CallToolAction ListToolsObservation "
            "CallToolObservation JsonRpcRequest JsonRpcResponse JsonRpcErrorCode McpMethod WSMCPMessage WSMCPResponse"
        },
    ),
    Row(
        "o.c.es.mcp_environment: MCPEnvironment",
        ("openenv.core.env_server.mcp_environment", "openenv.core.env_server"),
        {"openenv.mcp.environment": "MCPEnvironment"},
    ),
    Row(
        "o.c.client_types: StepResult",
        ("openenv.core.client_types", "openenv.core"),
        {"openenv.types": "StepResult"},
    ),
    Row(
        "o.c.env_client: EnvClient",
        ("openenv.core.env_client", "openenv.core", "openenv_core.env_client", "openenv_core"),
        {"openenv.client": "EnvClient"},
    ),
    Row(
        "o.c.sync_client: SyncEnvClient",
        ("openenv.core.sync_client", "openenv.core", "openenv"),
        {"openenv.client": "SyncEnvClient"},
    ),
    Row(
        "o.c.generic_client: GenericEnvClient, GenericAction",
        ("openenv.core.generic_client", "openenv.core", "openenv"),
        {"openenv.client": "GenericEnvClient GenericAction"},
    ),
    Row(
        "o.c.mcp_client: MCPToolClient, MCPClientBase",
        ("openenv.core.mcp_client", "openenv.core"),
        {"openenv.client.mcp_client": "MCPToolClient MCPClientBase"},
    ),
    Row(
        "o.c.containers.runtime (and .providers); also openenv.providers",
        ("openenv.core.containers.runtime", "openenv.core.containers.runtime.providers"),
        {
            "openenv.providers": "ContainerProvider RuntimeProvider LocalDockerProvider DockerSwarmProvider "
            "KubernetesProvider"
        },
    ),
    Row(
        "o.c.containers.runtime (and .uv_provider): UVProvider",
        ("openenv.core.containers.runtime", "openenv.core.containers.runtime.uv_provider"),
        {"openenv.providers": "UVProvider"},
    ),
    Row(
        "o.c.rubrics: Rubric, Sequential, Gate, WeightedSum, ...",
        ("openenv.core.rubrics",),
        {
            "openenv.rubrics": "Rubric Sequential Gate WeightedSum RubricList RubricDict TrajectoryRubric "
            "ExponentialDiscountingTrajectoryRubric LLMJudge"
        },
    ),
    Row("o.c.rubrics.base", ("openenv.core.rubrics.base",), {"openenv.rubrics": "Rubric"}),
    Row(
        "o.c.rubrics.containers",
        ("openenv.core.rubrics.containers",),
        {"openenv.rubrics": "Sequential Gate WeightedSum RubricList RubricDict"},
    ),
    Row(
        "o.c.rubrics.trajectory",
        ("openenv.core.rubrics.trajectory",),
        {"openenv.rubrics": "TrajectoryRubric ExponentialDiscountingTrajectoryRubric"},
    ),
    Row("o.c.rubrics.llm_judge", ("openenv.core.rubrics.llm_judge",), {"openenv.rubrics": "LLMJudge"}),
    Row(
        "o.c.llm_client: LLMClient, LLMResponse, ToolCall, OpenAIClient, AnthropicClient, create_llm_client",
        ("openenv.core.llm_client", "openenv.core"),
        {"openenv.llm": "LLMClient LLMResponse ToolCall OpenAIClient AnthropicClient create_llm_client"},
    ),
    Row(
        "o.c.tools.git_server_client: GitServerClient",
        ("openenv.core.tools.git_server_client", "openenv.core.tools"),
        {"openenv.tools": "GitServerClient"},
    ),
    Row(
        "o.c.evals: EvalConfig, EvalResult, EvalHarness, InspectAIHarness",
        ("openenv.core.evals",),
        {"openenv.evals": "EvalConfig EvalResult EvalHarness InspectAIHarness"},
    ),
    Row("openenv: AutoEnv, AutoAction", ("openenv",), {"openenv.auto": "AutoEnv AutoAction"}),
]
NAMES = [
    pytest.param(module, name, home, id=f"{row.text.split(':')[0]} - {module}.{name}")
    for row in ROWS
    for module in row.modules
    for home, names in row.names.items()
    for name in names.split()
]


@pytest.mark.filterwarnings("ignore:openenv_core is the old name:DeprecationWarning")
@pytest.mark.parametrize(("module", "name", "home"), NAMES)
def test_a_name_is_there_and_is_the_object_of_its_home(module, name, home):
    scope: dict = {}
    exec(f"from {module} import {name} as found", scope)
    assert scope["found"] is getattr(importlib.import_module(home), name)


def test_the_package_has_a_version_and_its_core():
    assert int(openenv.__version__.split(".")[0]) >= 1
    assert openenv.core is importlib.import_module("openenv.core")


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
    ],
)
def test_names_that_need_no_server_load_none(module):
    loaded = fresh(f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})")
    assert set(HEAVY) & set(loaded.split()) == set()


def test_the_types_are_there_at_once():
    """Within 0.3 s: of the processor's time, since the machine may do much else, and the least of five counts."""
    program = (
        "import time; start = time.process_time(); import openenv.core.env_server.types; "
        "print(time.process_time() - start)"
    )
    assert any(float(fresh(program)) < 0.3 for _ in range(5))


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
