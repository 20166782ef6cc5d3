"""Agents that are whole programs: sandboxes in which they run on a task, and what they leave there is scored.

See docs/how-to/agents.md. Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from .._imports import lazy as _lazy

if TYPE_CHECKING:
    from .docker_sandbox import DockerSandbox
    from .process_sandbox import ProcessSandbox
    from .sandbox import CommandResult, Sandbox, SandboxLimits, SandboxSnapshot

__all__ = ["CommandResult", "DockerSandbox", "ProcessSandbox", "Sandbox", "SandboxLimits", "SandboxSnapshot"]

_HOMES = {
    "DockerSandbox": "openenv.agents.docker_sandbox",
    "ProcessSandbox": "openenv.agents.process_sandbox",
    **dict.fromkeys(["CommandResult", "Sandbox", "SandboxLimits", "SandboxSnapshot"], "openenv.agents.sandbox"),
}

__getattr__, __dir__ = _lazy(__name__, _HOMES)
