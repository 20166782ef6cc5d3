"""What environments use inside: other programs, behind small clients."""

from .git_server_client import GitServerClient, RepoInfo
from .python_executor import PyExecutor

__all__ = ["GitServerClient", "PyExecutor", "RepoInfo"]
