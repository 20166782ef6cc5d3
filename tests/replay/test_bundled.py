"""Recorded episodes of the bundled environments are the same when they are played again.

`scripts/replay_bundled.py` does this with a thousand episodes of each, a real server and processes of their own.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.project.target import load
from openenv.recording import Recording
from openenv.recording.difference import within
from openenv.replay import ReplayRules, ReplaySummary, app_target, replay
from openenv.testing.harness import ConformanceHarness

pytestmark = pytest.mark.anyio

ENVS = Path(__file__).parent.parent.parent / "envs"
EPISODES, STEPS = 12, 20


@pytest.mark.parametrize("target", ["echo", "benchmark", "gymnasium:CartPole-v1", "envs/gridworld", "envs/word_game"])
async def test_episodes_are_the_same_again_to_the_last_digit(target: str, tmp_path: Path) -> None:
    app = load(target.replace("envs/", f"{ENVS}/"))
    await _record(app, tmp_path)
    tally = ReplaySummary()
    venue = app_target(target, app)
    await replay(Recording(tmp_path).episodes(), lambda _: venue, ReplayRules(within(0.0)), 4, tally.add)
    await venue.aclose()
    assert tally.sentence() == f"{EPISODES} the same"
    assert tally.steps > EPISODES


async def _record(app: Any, folder: Path) -> None:
    actions = await ConformanceHarness(app).actions()
    async with GenericEnvClient(app=app, record=str(folder)) as client:
        for seed in range(EPISODES):
            policy = random.Random(seed)
            result = await client.reset(seed=seed)
            for _ in range(STEPS):
                if result.done:
                    break
                result = await client.step(policy.choice(actions))
