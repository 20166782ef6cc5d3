"""Apps that serve the benchmark environment, one for each way in which a server can run it."""

from __future__ import annotations

from fastapi import FastAPI

from openenv.envs.benchmark.models import BenchmarkAction, BenchmarkObservation
from openenv.envs.benchmark.server.benchmark_environment import (
    AsyncBenchmarkEnvironment,
    BenchmarkEnvironment,
    InlineBenchmarkEnvironment,
)
from openenv.server import create_app


def _serving(environment: type[BenchmarkEnvironment]) -> FastAPI:
    return create_app(environment, BenchmarkAction, BenchmarkObservation, env_name="benchmark")


app = _serving(BenchmarkEnvironment)
app_async = _serving(AsyncBenchmarkEnvironment)
app_inline = _serving(InlineBenchmarkEnvironment)
