"""The ASGI app. `openenv serve .` and other ASGI servers serve it. It does not start without a working sandbox."""

from __future__ import annotations

from openenv import create_app

from . import walls
from .python_sandbox_environment import PythonSandboxEnvironment

walls.check()

# Pass the class, not an instance: each session gets a new instance.
app = create_app(PythonSandboxEnvironment, name="python_sandbox")
