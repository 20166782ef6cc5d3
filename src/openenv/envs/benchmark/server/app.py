"""Apps of the benchmark environment, one for each kind of execution."""

from __future__ import annotations

from openenv import create_app
from openenv.envs.benchmark.server.benchmark_environment import (
    AsyncBenchmarkEnvironment,
    BenchmarkEnvironment,
    InlineBenchmarkEnvironment,
)

app = create_app(BenchmarkEnvironment, name="benchmark")
app_async = create_app(AsyncBenchmarkEnvironment, name="benchmark")
app_inline = create_app(InlineBenchmarkEnvironment, name="benchmark")
