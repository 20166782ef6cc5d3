"""`openenv.tools` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._homes import *

if TYPE_CHECKING:
    from . import git_server_client as git_server_client
    from . import local_python_executor as local_python_executor

__all__ = [
    "GitServerClient",
    "PyExecutor",
    "RepoInfo",
]

__getattr__, __dir__ = take(__name__, __all__)
