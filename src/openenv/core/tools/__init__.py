"""`openenv.tools` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ...tools import GitServerClient, PyExecutor, RepoInfo
    from . import git_server_client as git_server_client
    from . import local_python_executor as local_python_executor

__all__ = [
    "GitServerClient",
    "PyExecutor",
    "RepoInfo",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "GitServerClient": "openenv.tools",
        "PyExecutor": "openenv.tools",
        "RepoInfo": "openenv.tools",
        "git_server_client": "openenv.core.tools.git_server_client",
        "local_python_executor": "openenv.core.tools.local_python_executor",
    },
)
