"""Import paths of existing code. Every name lives elsewhere in this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._homes import *

if TYPE_CHECKING:
    from . import base_transforms as base_transforms
    from . import exceptions as exceptions
    from . import gradio_theme as gradio_theme
    from . import gradio_ui as gradio_ui
    from . import http_server as http_server
    from . import interfaces as interfaces
    from . import mcp_environment as mcp_environment
    from . import mcp_types as mcp_types
    from . import route_config as route_config
    from . import serialization as serialization
    from . import types as types
    from . import web_interface as web_interface

__all__ = [
    "RESERVED_TOOL_NAMES",
    "Action",
    "BaseMessage",
    "CallToolAction",
    "CallToolObservation",
    "CodeExecResult",
    "CompositeTransform",
    "ConcurrencyConfig",
    "ConcurrencyConfigurationError",
    "Environment",
    "EnvironmentFactoryError",
    "EnvironmentMetadata",
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
    "ListTasksRequest",
    "ListToolsAction",
    "ListToolsObservation",
    "MCPEnvironment",
    "McpMethod",
    "Message",
    "ModelTokenizer",
    "NullTransform",
    "NumTasksRequest",
    "Observation",
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
    "TaskProvider",
    "Tool",
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
    "create_web_interface_app",
    "deserialize_action",
    "deserialize_action_with_preprocessing",
    "serialize_observation",
]

__getattr__, __dir__ = take(__name__, __all__)
