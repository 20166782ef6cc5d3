"""The environment as it is where the server is not root."""

from __future__ import annotations

from python_sandbox.server import walls
from python_sandbox.server.python_sandbox_environment import PythonSandboxEnvironment

__all__ = ["Unprivileged"]


class Unprivileged(PythonSandboxEnvironment):
    """Its sandbox makes a user namespace, and cannot change its user."""

    def __init__(self) -> None:
        super().__init__()
        walls._is_privileged = _no  # of this session's process


def _no() -> bool:
    return False
