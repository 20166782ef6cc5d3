"""Harnesses under their older names: `openenv.harness`, and resource sessions of `openenv.rollouts`.

The submodules but `collect` have no files: `add_modules` makes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._homes import *

if TYPE_CHECKING:
    from ...rollouts.resource import *  # type: ignore[assignment]
    from ...rollouts.white_box import *
    from ...rollouts.white_box import _resolve_env_reward as _resolve_env_reward
    from . import collect as collect

__all__ = [
    "RESERVED_TOOL_NAMES",
    "AgenticHarnessAdapter",
    "CLIHarnessAdapter",
    "HarnessAction",
    "HarnessAdapter",
    "HarnessClientMessage",
    "HarnessConfig",
    "HarnessEnvironment",
    "HarnessError",
    "HarnessEvent",
    "HarnessEventType",
    "HarnessMCPBridge",
    "HarnessNotRunningError",
    "HarnessProcess",
    "HarnessResponse",
    "HarnessRolloutResult",
    "HarnessRunLimits",
    "HarnessStartupError",
    "HarnessTransport",
    "HarnessTurnTimeoutError",
    "LoopOwningSession",
    "MCPHarnessAdapter",
    "Message",
    "ModelStep",
    "ModelStepResult",
    "ResourceSession",
    "ResourceSessionFactory",
    "RolloutEvent",
    "SessionMCPBridge",
    "StepEnvSessionAdapter",
    "ToolResult",
    "ToolTraceEntry",
    "TraceEntry",
    "TrainableSession",
    "TrainingTrace",
    "TrainingTurn",
    "VerifyResult",
    "build_bridge_server",
    "build_harness_rollout_func",
    "events_to_metadata",
    "resolve_tool_conflicts",
]

# `Message` is another one in `openenv.core.env_server`.
_HOMES = {
    "Message": "openenv.rollouts.resource",
    "_resolve_env_reward": "openenv.rollouts.white_box",
}
_MODULES = {
    "adapter": """
        AgenticHarnessAdapter HarnessConfig HarnessError HarnessEvent HarnessEventType HarnessNotRunningError
        HarnessResponse HarnessStartupError HarnessTurnTimeoutError Tool
    """,
    "bridge": """
        HarnessError HarnessMCPBridge build_bridge_server
    """,
    "config": """
        HarnessConfig HarnessTransport
    """,
    "environment": """
        Action AgenticHarnessAdapter CallToolAction HarnessAction HarnessEnvironment HarnessError HarnessEvent
        HarnessEventType HarnessMCPBridge HarnessNotRunningError HarnessTurnTimeoutError ListToolsAction
        MCPEnvironment Observation State Tool build_bridge_server events_to_metadata resolve_tool_conflicts
        run_async_safely
    """,
    "events": """
        HarnessClientMessage HarnessEvent HarnessEventType HarnessProtocolError HarnessResponse
        events_to_metadata
    """,
    "process": """
        HarnessNotRunningError HarnessProcess HarnessStartupError
    """,
    "rollout": """
        CLIHarnessAdapter HarnessAdapter HarnessRolloutResult HarnessRunLimits JsonRpcErrorCode JsonRpcResponse
        LLMResponse LoopOwningSession MCPHarnessAdapter Message ModelStep ModelStepResult RESERVED_TOOL_NAMES
        ResourceSession ResourceSessionFactory RolloutEvent SessionMCPBridge SessionT State
        StepEnvSessionAdapter StepResult Tool ToolResult ToolTraceEntry TraceEntry TrainableSession
        TrainingTrace VerifyResult _resolve_env_reward build_harness_rollout_func
    """,
    "tools": """
        RESERVED_TOOL_NAMES Tool resolve_tool_conflicts
    """,
    "training": """
        TrainingTrace TrainingTurn
    """,
}

__getattr__, __dir__ = take(__name__, __all__, _HOMES)
add_modules(__name__, {name: names.split() for name, names in _MODULES.items()}, _HOMES)
