"""What environments use inside: other programs, behind small clients."""

from .git_server_client import GitServerClient, RepoInfo

__all__ = ["GitServerClient", "RepoInfo"]
