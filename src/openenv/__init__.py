"""Typed reinforcement-learning environments, served to trainers by the thousand.

Names are imported when they are first used: `import openenv` alone costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._imports import lazy as _lazy

if TYPE_CHECKING:
    from . import cli as cli
    from . import core as core
    from .arrays import Array
    from .auto import AutoAction, AutoEnv
    from .batched import BatchedEnvironment
    from .chat import Chat, JsonAnswer, RegexAnswer, TagAnswer
    from .client import *
    from .environment import Environment, Transform
    from .errors import *
    from .images import RenderedImage
    from .server.app import create_app
    from .types import Action, Observation, State, StepResult, reward_mask

__version__ = "1.0.0"

__all__ = [
    "Action",
    "AgentFailed",
    "Array",
    "AutoAction",
    "AutoEnv",
    "BatchResult",
    "BatchedEnvClient",
    "BatchedEnvironment",
    "Cancelled",
    "CapacityError",
    "Chat",
    "ConcurrencyConfigurationError",
    "ConnectTimeout",
    "ConnectionFailed",
    "ConnectionLost",
    "ContextOverflow",
    "Draining",
    "EnvClient",
    "Environment",
    "EnvironmentCrashed",
    "EnvironmentFailed",
    "FactoryFailed",
    "Forbidden",
    "GenericAction",
    "GenericEnvClient",
    "Hidden",
    "ImportFailed",
    "InvalidAction",
    "InvalidArgument",
    "InvalidMessage",
    "JournalFailed",
    "JournalInUse",
    "JournalMismatch",
    "JsonAnswer",
    "JudgeFailed",
    "LaunchFailed",
    "MessageTooLarge",
    "MissingArray",
    "MissingExtra",
    "ModelFailed",
    "ModelTimeout",
    "ModelUnavailable",
    "NotAProject",
    "NotForkable",
    "NotReady",
    "Observation",
    "OpenEnvError",
    "PolicyFailed",
    "ProtocolViolation",
    "ProviderBusy",
    "ProviderFailed",
    "QueueTimeout",
    "RegexAnswer",
    "RenderedImage",
    "ResetRequired",
    "RubricFailed",
    "SchemaMismatch",
    "SeedIgnored",
    "SequenceError",
    "ServerFull",
    "SessionLost",
    "SlowReader",
    "State",
    "StepFailed",
    "StepResult",
    "StepTimeout",
    "SyncBatchedEnvClient",
    "SyncEnvClient",
    "SyncVectorEnvClient",
    "TagAnswer",
    "TaskTaken",
    "TooManyCalls",
    "TooManyFailures",
    "ToolFailed",
    "Transform",
    "Unauthorized",
    "UnknownEnvironment",
    "UnknownMessage",
    "UnknownSession",
    "UnmappableSpace",
    "UnreadableRecord",
    "UsageError",
    "VectorEnvClient",
    "__version__",
    "cli",
    "core",
    "create_app",
    "reward_mask",
]

_HOMES = {
    **dict.fromkeys(__all__, "openenv.errors"),  # all names but those below
    **dict.fromkeys(["AutoAction", "AutoEnv"], "openenv.auto"),
    **dict.fromkeys(["EnvClient", "GenericAction", "GenericEnvClient", "SyncEnvClient"], "openenv.client"),
    **dict.fromkeys(["BatchResult", "BatchedEnvClient", "SyncBatchedEnvClient"], "openenv.client"),
    **dict.fromkeys(["SyncVectorEnvClient", "VectorEnvClient"], "openenv.client"),
    **dict.fromkeys(["Environment", "Transform"], "openenv.environment"),
    "RenderedImage": "openenv.images",
    **dict.fromkeys(["Action", "Observation", "State", "StepResult", "reward_mask"], "openenv.types"),
    **dict.fromkeys(["Chat", "JsonAnswer", "RegexAnswer", "TagAnswer"], "openenv.chat"),
    "Array": "openenv.arrays",
    "BatchedEnvironment": "openenv.batched",
    "cli": "openenv.cli",
    "core": "openenv.core",
    "create_app": "openenv.server.app",
}

__getattr__, __dir__ = _lazy(__name__, _HOMES)
