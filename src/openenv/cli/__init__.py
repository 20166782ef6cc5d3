"""The command line: `openenv COMMAND`. The only package that prints."""

from .main import main

__all__ = ["main"]
