"""The ASGI app. `openenv serve .` and other ASGI servers serve it."""

from __future__ import annotations

from openenv import create_app

from .repo_repair_environment import RepoRepairEnvironment

# Pass the class, not an instance: each session gets a new instance.
app = create_app(RepoRepairEnvironment, name="repo_repair")
