"""Environments in processes of their own: a warm parent forks one for each session, and none outlives the server."""

from .executor import ProcessExecutor, RemoteEnvironment
from .nursery import Nursery

__all__ = ["Nursery", "ProcessExecutor", "RemoteEnvironment"]
