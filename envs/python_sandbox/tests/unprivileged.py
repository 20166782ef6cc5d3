"""The environment on a server that is not root."""

from __future__ import annotations

from python_sandbox.server import walls
from python_sandbox.server.python_sandbox_environment import PythonSandboxEnvironment

__all__ = ["Unprivileged"]


class Unprivileged(PythonSandboxEnvironment):
    """An environment with a sandbox that creates a user namespace, and cannot change its user."""

    def __init__(self) -> None:
        super().__init__()
        walls._is_privileged = _no  # in the process of this session


def _no() -> bool:
    return False
