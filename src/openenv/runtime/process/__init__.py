"""Process isolation: a fork server forks one process for each session, and no process outlives the server."""

from .executor import ProcessExecutor
from .pool import ProcessPool

__all__ = ["ProcessExecutor", "ProcessPool"]
