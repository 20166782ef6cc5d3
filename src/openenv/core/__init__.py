"""Import paths of existing code. Every name lives elsewhere in this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import env_server as env_server
from ._homes import *

if TYPE_CHECKING:
    from . import client_types as client_types
    from . import containers as containers
    from . import env_client as env_client
    from . import evals as evals
    from . import generic_client as generic_client
    from . import harness as harness
    from . import llm_client as llm_client
    from . import mcp_client as mcp_client
    from . import rubrics as rubrics
    from . import sync_client as sync_client
    from . import tools as tools
    from . import utils as utils

__all__ = [
    "AnthropicClient",
    "EnvClient",
    "GenericAction",
    "GenericEnvClient",
    "LLMClient",
    "LLMResponse",
    "MCPClientBase",
    "MCPToolClient",
    "OpenAIClient",
    "StepResult",
    "SyncEnvClient",
    "ToolCall",
    "create_llm_client",
]
__all__ += env_server.__all__

__getattr__, __dir__ = take(__name__, __all__)
