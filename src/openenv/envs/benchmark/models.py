"""Action and observation of the benchmark environment."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from openenv.types import Action, Observation

__all__ = ["BenchmarkAction", "BenchmarkObservation"]


class BenchmarkAction(Action):
    """A step with a given duration."""

    wait_seconds: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Duration of the step in seconds", examples=[0.0, 0.001]
    )


# Marks a field that does not depend on the seed of a reset: checks compare all other fields.
_UNSEEDED: dict[str, Any] = {"seeded": False}


class BenchmarkObservation(Observation):
    """Place, time and duration of the call."""

    host_url: str = Field(description="Name of the machine or container", json_schema_extra=_UNSEEDED)
    pid: int = Field(description="Process that ran the call", json_schema_extra=_UNSEEDED)
    session_hash: str = Field(description="16 hex characters, unique for the session", json_schema_extra=_UNSEEDED)
    waited_seconds: float = Field(default=0.0, ge=0, description="Requested duration of the step in seconds")
    timestamp: float = Field(description="End of the call, in seconds since the epoch", json_schema_extra=_UNSEEDED)
    step_count: int = Field(default=0, ge=0, description="Steps since the last reset")
