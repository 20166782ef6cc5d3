"""Servers in Pods that come and go with their sessions, behind a real Envoy."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from scripts.bench_autoscaling import SHORT, measure, pods

from .conftest import Space

pytest.importorskip("envoy", reason="make test-kubernetes installs what these tests need")
pytestmark = pytest.mark.real

SETTLED_S = 240.0  # a busy machine ends a Pod late


def test_pods_follow_a_load_that_rises_and_falls_and_no_episode_is_refused_or_lost(space: Space) -> None:
    result = asyncio.run(measure(replace(SHORT, settled_s=SETTLED_S), space.provider(), pods()))
    assert result["failures"] == []
    assert result["episodes"] >= 5
    # The load may be over before a busy machine has the second Pod ready.
    assert max(row["accepting"] + row["starting"] for row in result["samples"]) == 2
    assert result["samples"][-1]["accepting"] == 1
    assert result["samples"][-1]["draining"] == 0
    space.until_without("")
