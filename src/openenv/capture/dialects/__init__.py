"""The APIs that agents speak, each converted to chat completions and back."""

from .base import Dialect, EngineAnswer, EventWriter, ModelCall, RequestRefused
from .detection import DIALECTS, detect

__all__ = ["DIALECTS", "Dialect", "EngineAnswer", "EventWriter", "ModelCall", "RequestRefused", "detect"]
