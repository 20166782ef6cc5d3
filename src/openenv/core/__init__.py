"""Import paths of existing code. Every name lives elsewhere in this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._homes import *

if TYPE_CHECKING:
    from . import client_types as client_types
    from . import containers as containers
    from . import env_client as env_client
    from . import env_server as env_server
    from . import evals as evals
    from . import generic_client as generic_client
    from . import llm_client as llm_client
    from . import mcp_client as mcp_client
    from . import rubrics as rubrics
    from . import sync_client as sync_client
    from . import tools as tools
    from . import utils as utils

__all__ = [
    "RESERVED_TOOL_NAMES",
    "Action",
    "AnthropicClient",
    "BaseMessage",
    "CallToolAction",
    "CallToolObservation",
    "CodeExecResult",
    "CompositeTransform",
    "ConcurrencyConfig",
    "ConcurrencyConfigurationError",
    "EnvClient",
    "Environment",
    "EnvironmentFactoryError",
    "EnvironmentMetadata",
    "GenericAction",
    "GenericEnvClient",
    "GetEndpointConfig",
    "GetTaskRangeRequest",
    "GetTaskRequest",
    "HTTPEnvServer",
    "HealthResponse",
    "HealthStatus",
    "JsonRpcError",
    "JsonRpcErrorCode",
    "JsonRpcRequest",
    "JsonRpcResponse",
    "LLMClient",
    "LLMResponse",
    "ListTasksRequest",
    "ListToolsAction",
    "ListToolsObservation",
    "MCPClientBase",
    "MCPEnvironment",
    "MCPToolClient",
    "McpMethod",
    "Message",
    "ModelTokenizer",
    "NullTransform",
    "NumTasksRequest",
    "Observation",
    "OpenAIClient",
    "OpenEnvError",
    "ResetRequest",
    "ResetResponse",
    "Scalar",
    "SchemaResponse",
    "ServerCapacityStatus",
    "ServerMode",
    "SessionCapacityError",
    "SessionCreationError",
    "SessionInfo",
    "SessionNotFoundError",
    "State",
    "StepRequest",
    "StepResponse",
    "StepResult",
    "SyncEnvClient",
    "TaskProvider",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolErrorType",
    "Transform",
    "WSCloseMessage",
    "WSErrorCode",
    "WSErrorResponse",
    "WSIncomingMessage",
    "WSMCPMessage",
    "WSMCPResponse",
    "WSObservationResponse",
    "WSResetMessage",
    "WSStateMessage",
    "WSStateResponse",
    "WSStepMessage",
    "WebInterfaceManager",
    "create_app",
    "create_fastapi_app",
    "create_llm_client",
    "create_web_interface_app",
    "deserialize_action",
    "deserialize_action_with_preprocessing",
    "serialize_observation",
]

__getattr__, __dir__ = take(
    __name__,
    [
        *__all__,
        "client_types",
        "containers",
        "env_client",
        "env_server",
        "evals",
        "generic_client",
        "llm_client",
        "mcp_client",
        "rubrics",
        "sync_client",
        "tools",
        "utils",
    ],
)
