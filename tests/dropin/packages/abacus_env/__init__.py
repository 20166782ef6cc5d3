"""Abacus: an environment of MCP tools."""

from .client import AbacusEnv
from .models import CallToolAction, CallToolObservation, ListToolsAction

__all__ = ["AbacusEnv", "CallToolAction", "CallToolObservation", "ListToolsAction"]
