"""Record episodes of each bundled environment at a real server, and check that a replay is identical.

    .venv/bin/python scripts/replay_bundled.py --episodes 1000

`openenv serve --record` serves each environment. Clients play it over WebSockets with seeds 0, 1, ... and random
actions that its schemas allow, drawn from the seed. Then `openenv replay --check --tolerance 0` plays the records in
another process and compares. Exit code 1: a record differs or is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from openenv.bench.served import ServedProcess
from openenv.client import GenericEnvClient
from openenv.errors import StepFailed
from openenv.project.target import load
from openenv.testing.harness import ConformanceHarness

ROOT = Path(__file__).parent.parent
BUNDLED = ("echo", "benchmark", "gymnasium:CartPole-v1")
# Some environments never end an episode.
STEPS = 30
SESSIONS = 32


class Outcome(NamedTuple):
    """The result of one environment."""

    target: str
    episodes: int
    steps: int
    same: bool
    record_s: float
    replay_s: float
    megabytes: float
    files: str
    said: str


def targets() -> list[str]:
    """The bundled environments, and the projects in envs/."""
    return [*BUNDLED, *(str(each.parent) for each in sorted((ROOT / "envs").glob("*/openenv.yaml")))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000, help="episodes of each environment")
    parser.add_argument("--steps", type=int, default=STEPS, help="maximum number of steps of an episode")
    parser.add_argument("--target", action="append", help="play only this environment; may be repeated")
    arguments = parser.parse_args()
    failed = False
    print(f"{'environment':<24}{'episodes':>9}{'steps':>9}{'recorded':>10}{'replayed':>10}{'MB':>8}  files   outcome")
    for target in arguments.target or targets():
        found = replayed(target, arguments.episodes, arguments.steps)
        failed |= not found.same
        print(
            f"{Path(found.target).name:<24}{found.episodes:>9,}{found.steps:>9,}{found.record_s:>9.1f}s"
            f"{found.replay_s:>9.1f}s{found.megabytes:>8.1f}  {found.files:<7} {found.said}",
            flush=True,
        )
    return int(failed)


def replayed(target: str, episodes: int, steps: int) -> Outcome:
    """Records episodes and replays them."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "records"
        began = time.monotonic()
        asyncio.run(_record(target, folder, episodes, steps))
        record_s = time.monotonic() - began
        command = [sys.executable, "-m", "openenv", "replay", str(folder), "--check", "--tolerance", "0", "--json"]
        began = time.monotonic()
        done = subprocess.run([*command, "--target", target], capture_output=True, text=True, check=False)  # noqa: S603
        replay_s = time.monotonic() - began
        files = [each for each in folder.rglob("*") if each.is_file()]
        size = sum(each.stat().st_size for each in files) / 1e6
        kinds = "/".join(str(sum(each.suffix == kind for each in files)) for kind in (".jsonl", ".parquet"))
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return Outcome(target, 0, 0, False, record_s, replay_s, size, kinds, done.stderr.strip())
    compared = report["outcomes"]["same"] + report["outcomes"]["different"]
    same = done.returncode == 0 and report["outcomes"]["same"] == episodes
    said = "no difference" if same else json.dumps(report["outcomes"]) + json.dumps(report["noted"][:2])
    return Outcome(target, compared, report["steps"], same, record_s, replay_s, size, kinds, said)


async def _record(target: str, folder: Path, episodes: int, steps: int) -> None:
    actions = await _actions(target)
    command = [sys.executable, "-m", "openenv", "serve", target, "--host", "127.0.0.1", "--port", "0"]
    os.environ["OPENENV_RECORD_FILE_MB"] = "2"  # so that the server rotates some files
    served = ServedProcess([*command, "--record", str(folder)])
    await asyncio.to_thread(served.__enter__)
    try:
        numbers = iter(range(episodes))
        await asyncio.gather(*(_play(served.url, numbers, actions, steps) for _ in range(SESSIONS)))
    finally:
        await asyncio.to_thread(served.close)


async def _actions(target: str) -> list[dict[str, Any]]:
    harness = ConformanceHarness(load(target))
    try:
        return await harness.actions()
    finally:
        await harness.server.aclose()


async def _play(url: str, numbers: Iterator[int], actions: list[dict[str, Any]], steps: int) -> None:
    async with GenericEnvClient(url, connect_timeout_s=60, message_timeout_s=120) as client:
        for seed in numbers:
            policy = random.Random(seed)  # noqa: S311 - a policy, not a secret
            result = await client.reset(seed=seed)
            for _ in range(steps):
                if result.done:
                    break
                try:
                    result = await client.step(policy.choice(actions))
                except StepFailed:  # part of the episode and of its record
                    continue


if __name__ == "__main__":
    sys.exit(main())
