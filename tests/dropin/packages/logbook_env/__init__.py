"""A logbook that remembers who wrote what."""

from .client import LogbookEnv
from .models import CallToolAction, ListToolsAction

__all__ = ["CallToolAction", "ListToolsAction", "LogbookEnv"]
