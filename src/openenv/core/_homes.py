"""Where the names of existing code are defined. The modules of `openenv.core` re-export them from this one table.

`from ._homes import *` gives a type checker all of these names. At run time it gives only `take`: a name is imported
when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .._imports import lazy

if TYPE_CHECKING:
    from .._asyncio import run_async_safely as run_async_safely
    from ..client import *
    from ..client.endpoints import convert_to_ws_url as convert_to_ws_url
    from ..client.mcp_client import *
    from ..environment import *
    from ..errors import *
    from ..evals import *
    from ..llm import *
    from ..mcp.environment import MCPEnvironment as MCPEnvironment
    from ..mcp.library import get_server_tools as get_server_tools
    from ..mcp.toolbox import VALID_MODES as VALID_MODES
    from ..mcp.types import *
    from ..messages import *
    from ..protocol.forms import serialize_observation as serialize_observation
    from ..protocol.jsonrpc import JsonRpcErrorCode as JsonRpcErrorCode
    from ..providers import *
    from ..providers.launch import hf_space_subdomain as hf_space_subdomain
    from ..providers.uv import GIT_URL_PREFIX as GIT_URL_PREFIX
    from ..rubrics import *
    from ..server import HTTPEnvServer as HTTPEnvServer
    from ..server.app import GetEndpointConfig as GetEndpointConfig
    from ..server.app import register_get_endpoints as register_get_endpoints
    from ..server.metadata import load_environment_metadata as load_environment_metadata
    from ..server.page.episode import *
    from ..server.page.gradio import *
    from ..tools import *
    from ..types import *
    from .env_server.gradio_theme import *
    from .env_server.web_interface import create_app as create_app
    from .env_server.web_interface import create_fastapi_app as create_fastapi_app
    from .env_server.web_interface import create_web_interface_app as create_web_interface_app

if not TYPE_CHECKING:
    __all__ = ["take"]

HOMES = {
    "GIT_URL_PREFIX": "openenv.providers.uv",
    "MCP_TOOL_CALL_TIMEOUT": "openenv.mcp.types",
    "OPENENV_GRADIO_CSS": "openenv.core.env_server.gradio_theme",
    "OPENENV_GRADIO_THEME": "openenv.core.env_server.gradio_theme",
    "RESERVED_TOOL_NAMES": "openenv.mcp.types",
    "VALID_MODES": "openenv.mcp.toolbox",
    "ActT": "openenv.types",
    "Action": "openenv.types",
    "ActionLog": "openenv.server.page.episode",
    "AnthropicClient": "openenv.llm",
    "BaseMessage": "openenv.types",
    "CallToolAction": "openenv.mcp.types",
    "CallToolObservation": "openenv.mcp.types",
    "CodeExecResult": "openenv.types",
    "CompositeTransform": "openenv.environment",
    "ConcurrencyConfig": "openenv.types",
    "ConcurrencyConfigurationError": "openenv.errors",
    "ContainerProvider": "openenv.providers",
    "DockerSwarmProvider": "openenv.providers",
    "EnvClient": "openenv.client",
    "Environment": "openenv.environment",
    "EnvironmentFactoryError": "openenv.errors",
    "EnvironmentMetadata": "openenv.types",
    "EpisodeState": "openenv.server.page.episode",
    "EvalConfig": "openenv.evals",
    "EvalHarness": "openenv.evals",
    "EvalResult": "openenv.evals",
    "ExponentialDiscountingTrajectoryRubric": "openenv.rubrics",
    "Gate": "openenv.rubrics",
    "GenericAction": "openenv.client",
    "GenericEnvClient": "openenv.client",
    "GenericMCPObservation": "openenv.client.mcp_client",
    "GetEndpointConfig": "openenv.server.app",
    "GetTaskRangeRequest": "openenv.messages",
    "GetTaskRequest": "openenv.messages",
    "GitServerClient": "openenv.tools",
    "HTTPEnvServer": "openenv.server",
    "HealthResponse": "openenv.messages",
    "HealthStatus": "openenv.types",
    "InspectAIHarness": "openenv.evals",
    "JsonRpcError": "openenv.mcp.types",
    "JsonRpcErrorCode": "openenv.protocol.jsonrpc",
    "JsonRpcRequest": "openenv.mcp.types",
    "JsonRpcResponse": "openenv.mcp.types",
    "KubernetesProvider": "openenv.providers",
    "LLMClient": "openenv.llm",
    "LLMJudge": "openenv.rubrics",
    "LLMResponse": "openenv.llm",
    "ListTasksRequest": "openenv.messages",
    "ListToolsAction": "openenv.mcp.types",
    "ListToolsObservation": "openenv.mcp.types",
    "LocalDockerProvider": "openenv.providers",
    "MCPClientBase": "openenv.client.mcp_client",
    "MCPEnvironment": "openenv.mcp.environment",
    "MCPToolClient": "openenv.client.mcp_client",
    "McpMethod": "openenv.mcp.types",
    "Message": "openenv.environment",
    "ModelTokenizer": "openenv.environment",
    "NullTransform": "openenv.environment",
    "NumTasksRequest": "openenv.messages",
    "ObsT": "openenv.types",
    "Observation": "openenv.types",
    "OpenAIClient": "openenv.llm",
    "OpenEnvError": "openenv.errors",
    "PyExecutor": "openenv.tools",
    "RepoInfo": "openenv.tools",
    "ResetRequest": "openenv.messages",
    "ResetResponse": "openenv.messages",
    "Rubric": "openenv.rubrics",
    "RubricDict": "openenv.rubrics",
    "RubricList": "openenv.rubrics",
    "RuntimeProvider": "openenv.providers",
    "Scalar": "openenv.types",
    "SchemaResponse": "openenv.messages",
    "Sequential": "openenv.rubrics",
    "ServerCapacityStatus": "openenv.types",
    "ServerMode": "openenv.types",
    "SessionCapacityError": "openenv.errors",
    "SessionCreationError": "openenv.errors",
    "SessionInfo": "openenv.types",
    "SessionNotFoundError": "openenv.errors",
    "State": "openenv.types",
    "StateT": "openenv.types",
    "StepRequest": "openenv.messages",
    "StepResponse": "openenv.messages",
    "StepResult": "openenv.types",
    "SyncEnvClient": "openenv.client",
    "TaskProvider": "openenv.environment",
    "Tool": "openenv.mcp.types",
    "ToolCall": "openenv.llm",
    "ToolError": "openenv.mcp.types",
    "ToolErrorType": "openenv.mcp.types",
    "TrajectoryRubric": "openenv.rubrics",
    "Transform": "openenv.environment",
    "UVProvider": "openenv.providers",
    "WSCloseMessage": "openenv.messages",
    "WSErrorCode": "openenv.messages",
    "WSErrorResponse": "openenv.messages",
    "WSIncomingMessage": "openenv.messages",
    "WSMCPMessage": "openenv.mcp.types",
    "WSMCPResponse": "openenv.mcp.types",
    "WSObservationResponse": "openenv.messages",
    "WSResetMessage": "openenv.messages",
    "WSStateMessage": "openenv.messages",
    "WSStateResponse": "openenv.messages",
    "WSStepMessage": "openenv.messages",
    "WebInterfaceManager": "openenv.server.page.gradio",
    "WeightedSum": "openenv.rubrics",
    "build_gradio_app": "openenv.server.page.gradio",
    "convert_to_ws_url": "openenv.client.endpoints",
    "create_app": "openenv.core.env_server.web_interface",
    "create_fastapi_app": "openenv.core.env_server.web_interface",
    "create_llm_client": "openenv.llm",
    "create_web_interface_app": "openenv.core.env_server.web_interface",
    "deserialize_action": "openenv.mcp.types",
    "deserialize_action_with_preprocessing": "openenv.mcp.types",
    "get_gradio_display_title": "openenv.server.page.gradio",
    "get_quick_start_markdown": "openenv.server.page.gradio",
    "get_server_tools": "openenv.mcp.library",
    "hf_space_subdomain": "openenv.providers.launch",
    "load_environment_metadata": "openenv.server.metadata",
    "register_get_endpoints": "openenv.server.app",
    "run_async_safely": "openenv._asyncio",
    "serialize_observation": "openenv.protocol.forms",
}


def take(module: str, names: Iterable[str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a module that re-exports names from their homes.

    Args:
        module: The module's `__name__`.
        names: The names in the module. A name that is missing in the table is a submodule.
    """
    return lazy(module, {name: HOMES.get(name, f"{module}.{name}") for name in names})
