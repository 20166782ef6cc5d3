"""Benchmark: an environment whose step takes exactly as long as it is told to, and says where it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv.envs.benchmark.models import BenchmarkAction, BenchmarkObservation

if TYPE_CHECKING:
    from openenv.envs.benchmark.client import BenchmarkEnv

__all__ = ["BenchmarkAction", "BenchmarkEnv", "BenchmarkObservation"]


def __getattr__(name: str) -> Any:
    # A server imports this package too, and has no use for the client: it is loaded here, and not at the top.
    if name == "BenchmarkEnv":
        from openenv.envs.benchmark.client import BenchmarkEnv  # noqa: PLC0415

        return BenchmarkEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
