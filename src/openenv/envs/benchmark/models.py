"""What goes into the benchmark environment and what comes out."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from openenv.types import Action, Observation

__all__ = ["BenchmarkAction", "BenchmarkObservation"]


class BenchmarkAction(Action):
    """Asks for a step of a given length."""

    wait_seconds: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Seconds the step shall take", examples=[0.0, 0.001]
    )


# Of a field that does not follow from the seed of a reset: a checker compares all others.
_UNSEEDED: dict[str, Any] = {"seeded": False}


class BenchmarkObservation(Observation):
    """Says where, when and for how long the call ran."""

    host_url: str = Field(description="Name of the machine or container", json_schema_extra=_UNSEEDED)
    pid: int = Field(description="Process that ran the call", json_schema_extra=_UNSEEDED)
    session_hash: str = Field(description="16 hex characters that no other session has", json_schema_extra=_UNSEEDED)
    waited_seconds: float = Field(default=0.0, ge=0, description="Seconds the step was asked to take")
    timestamp: float = Field(description="End of the call, in seconds since the epoch", json_schema_extra=_UNSEEDED)
    step_count: int = Field(default=0, ge=0, description="Steps since the last reset")
