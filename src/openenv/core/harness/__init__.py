"""Harnesses under their older names: `openenv.harness`, and resource sessions of `openenv.rollouts`.

The submodules but `collect` have no files: `take` makes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._homes import *

if TYPE_CHECKING:
    from ...rollouts.resource import Message as Message  # type: ignore[assignment] # another one in env_server
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

__getattr__, __dir__ = take(__name__, __all__)
