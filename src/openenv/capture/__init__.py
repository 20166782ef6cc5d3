"""A proxy between agents and a model: it records every token that the agents' calls sampled, as data to train on.

See docs/capture.md. Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from .._imports import lazy as _lazy

if TYPE_CHECKING:
    from .export import (
        TurnNode,
        export_session,
        measure_retokenization_skew,
        rollout_of,
        to_trace_entries,
        to_training_trace,
        to_turn_records,
        training_segments,
    )
    from .forwarding import make_forwarder
    from .probe import LLMReport, require_llm, validate_llm
    from .server import CaptureServer
    from .service import CaptureOptions, CaptureService
    from .sessions import CaptureSession, SessionOpened, SessionStore
    from .upstream import InferenceClient

__all__ = [
    "CaptureOptions",
    "CaptureServer",
    "CaptureService",
    "CaptureSession",
    "InferenceClient",
    "LLMReport",
    "SessionOpened",
    "SessionStore",
    "TurnNode",
    "export_session",
    "make_forwarder",
    "measure_retokenization_skew",
    "require_llm",
    "rollout_of",
    "to_trace_entries",
    "to_training_trace",
    "to_turn_records",
    "training_segments",
    "validate_llm",
]

_HOMES = {
    **dict.fromkeys(["CaptureOptions", "CaptureService"], "openenv.capture.service"),
    "CaptureServer": "openenv.capture.server",
    **dict.fromkeys(["CaptureSession", "SessionOpened", "SessionStore"], "openenv.capture.sessions"),
    "InferenceClient": "openenv.capture.upstream",
    **dict.fromkeys(["LLMReport", "require_llm", "validate_llm"], "openenv.capture.probe"),
    **dict.fromkeys(["TurnNode", "export_session", "measure_retokenization_skew"], "openenv.capture.export"),
    **dict.fromkeys(["rollout_of", "to_trace_entries", "to_training_trace"], "openenv.capture.export"),
    **dict.fromkeys(["to_turn_records", "training_segments"], "openenv.capture.export"),
    "make_forwarder": "openenv.capture.forwarding",
}

__getattr__, __dir__ = _lazy(__name__, _HOMES)
