"""Code mode: Python that calls tools."""

from .client import SnippetEnv
from .models import SnippetAction

__all__ = ["SnippetAction", "SnippetEnv"]
