"""The client: drives one session of a served environment, or many at once; asynchronously or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy
from .batched import BatchedEnvClient, BatchResult, SyncBatchedEnvClient
from .env_client import EnvClient, GenericAction, GenericEnvClient, SyncEnvClient
from .vector import Finished, SyncVectorEnvClient, VectorEnvClient

if TYPE_CHECKING:
    from .mcp_client import MCPClientBase, MCPToolClient

__all__ = [
    "BatchResult",
    "BatchedEnvClient",
    "EnvClient",
    "Finished",
    "GenericAction",
    "GenericEnvClient",
    "MCPClientBase",
    "MCPToolClient",
    "SyncBatchedEnvClient",
    "SyncEnvClient",
    "SyncVectorEnvClient",
    "VectorEnvClient",
]

__getattr__, __dir__ = lazy(
    __name__, {"MCPClientBase": "openenv.client.mcp_client", "MCPToolClient": "openenv.client.mcp_client"}
)
