"""Benchmark: an environment whose step takes a given time and reports where it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv.envs.benchmark.models import BenchmarkAction, BenchmarkObservation

if TYPE_CHECKING:
    from openenv.envs.benchmark.client import BenchmarkEnv

__all__ = ["BenchmarkAction", "BenchmarkEnv", "BenchmarkObservation"]


def __getattr__(name: str) -> Any:
    # Imported lazily: servers also import this package, and do not need the client.
    if name == "BenchmarkEnv":
        from openenv.envs.benchmark.client import BenchmarkEnv  # noqa: PLC0415

        return BenchmarkEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
