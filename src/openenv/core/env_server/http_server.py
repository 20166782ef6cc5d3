"""`openenv.server` under its older name, with the types that its routes use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._homes import take

if TYPE_CHECKING:
    from .._homes import *

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

__getattr__, __dir__ = take(__name__, __all__)
