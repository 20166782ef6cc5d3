"""`openenv.tools` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy

if TYPE_CHECKING:
    from ...tools import GitServerClient, RepoInfo
    from . import git_server_client as git_server_client

__all__ = [
    "GitServerClient",
    "RepoInfo",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "GitServerClient": "openenv.tools",
        "RepoInfo": "openenv.tools",
        "git_server_client": "openenv.core.tools.git_server_client",
    },
)
