"""Agents that are whole programs: sandboxes in which they run on a task, and what they leave there is scored.

See docs/how-to/agents.md. Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from .._imports import lazy as _lazy

if TYPE_CHECKING:
    from .docker_sandbox import DockerSandbox
    from .environment import AgentEnvironment, AgentOutcome, AgentTask, RunAgent
    from .process_sandbox import ProcessSandbox
    from .programs import PROGRAMS, AgentProgram
    from .sandbox import CommandResult, Sandbox, SandboxLimits, SandboxSnapshot

__all__ = [
    "PROGRAMS",
    "AgentEnvironment",
    "AgentOutcome",
    "AgentProgram",
    "AgentTask",
    "CommandResult",
    "DockerSandbox",
    "ProcessSandbox",
    "RunAgent",
    "Sandbox",
    "SandboxLimits",
    "SandboxSnapshot",
]

_HOMES = {
    **dict.fromkeys(["AgentEnvironment", "AgentOutcome", "AgentTask", "RunAgent"], "openenv.agents.environment"),
    **dict.fromkeys(["PROGRAMS", "AgentProgram"], "openenv.agents.programs"),
    "DockerSandbox": "openenv.agents.docker_sandbox",
    "ProcessSandbox": "openenv.agents.process_sandbox",
    **dict.fromkeys(["CommandResult", "Sandbox", "SandboxLimits", "SandboxSnapshot"], "openenv.agents.sandbox"),
}

__getattr__, __dir__ = _lazy(__name__, _HOMES)
