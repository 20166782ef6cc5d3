"""`openenv.server` under its older name, with the types that its routes use."""

from __future__ import annotations

from ...environment import Environment
from ...errors import ConcurrencyConfigurationError, EnvironmentFactoryError, SessionCapacityError
from ...mcp.library import get_server_tools
from ...mcp.types import (
    CallToolAction,
    CallToolObservation,
    JsonRpcRequest,
    JsonRpcResponse,
    ListToolsAction,
    ListToolsObservation,
    McpMethod,
    WSMCPMessage,
    WSMCPResponse,
)
from ...messages import (
    GetTaskRangeRequest,
    GetTaskRequest,
    HealthResponse,
    ListTasksRequest,
    NumTasksRequest,
    ResetRequest,
    ResetResponse,
    SchemaResponse,
    StepRequest,
    StepResponse,
    WSCloseMessage,
    WSErrorCode,
    WSErrorResponse,
    WSObservationResponse,
    WSResetMessage,
    WSStateMessage,
    WSStateResponse,
    WSStepMessage,
)
from ...protocol.forms import serialize_observation
from ...protocol.jsonrpc import JsonRpcErrorCode
from ...server import HTTPEnvServer
from ...server.app import GetEndpointConfig, register_get_endpoints
from ...types import (
    Action,
    ConcurrencyConfig,
    EnvironmentMetadata,
    HealthStatus,
    Observation,
    ServerCapacityStatus,
    ServerMode,
    SessionInfo,
    State,
)
from .._adapters import deserialize_action
from .._app import create_app, create_fastapi_app

__all__ = [
    "Action",
    "CallToolAction",
    "CallToolObservation",
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
    "JsonRpcErrorCode",
    "JsonRpcRequest",
    "JsonRpcResponse",
    "ListTasksRequest",
    "ListToolsAction",
    "ListToolsObservation",
    "McpMethod",
    "NumTasksRequest",
    "Observation",
    "ResetRequest",
    "ResetResponse",
    "SchemaResponse",
    "ServerCapacityStatus",
    "ServerMode",
    "SessionCapacityError",
    "SessionInfo",
    "State",
    "StepRequest",
    "StepResponse",
    "WSCloseMessage",
    "WSErrorCode",
    "WSErrorResponse",
    "WSMCPMessage",
    "WSMCPResponse",
    "WSObservationResponse",
    "WSResetMessage",
    "WSStateMessage",
    "WSStateResponse",
    "WSStepMessage",
    "create_app",
    "create_fastapi_app",
    "deserialize_action",
    "get_server_tools",
    "register_get_endpoints",
    "serialize_observation",
]
