from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.client import GenericEnvClient, VectorEnvClient
from openenv.errors import ConnectionLost, UsageError
from openenv.recording.reader import Episode, Recording
from openenv.replay import (
    ReplayOutcome,
    ReplayResult,
    ReplayRules,
    ReplaySummary,
    ReplayTarget,
    app_target,
    replay,
    server_target,
)

from ..server.wires import served
from .environments import Dice, Rolled
from .records import changed, dice_app, recorded

pytestmark = pytest.mark.anyio


async def tallied(file: Path, venue: ReplayTarget, sessions: int = 8) -> ReplaySummary:
    tally = ReplaySummary()
    await replay(Recording(file).episodes(), lambda _: venue, ReplayRules(), sessions, tally.add)
    return tally


async def test_many_episodes_are_played_at_once_and_each_has_a_verdict(tmp_path: Path) -> None:
    file = await recorded(tmp_path / "a.jsonl", range(40))
    app = dice_app()
    tally = await tallied(file, app_target("dice", app))
    assert (tally.episodes, tally.compared, tally.wrong, tally.steps) == (40, 40, 0, 120)
    assert tally.sentence() == "40 the same"
    assert app.state.openenv.active_sessions == 0


async def test_episodes_are_played_at_a_server_that_runs(tmp_path: Path) -> None:
    file = await recorded(tmp_path / "a.jsonl", range(4))
    with served(dice_app()) as address:
        venue = await asyncio.to_thread(server_target, address, None)
        assert (await tallied(file, venue)).sentence() == "4 the same"

        def change(lines: list[dict[str, Any]]) -> None:
            lines[1]["observation"]["clock"] = -1.0
            lines[5]["observation"]["eyes"] = [99]

        tally = await tallied(changed(file, change), venue)
    assert tally.sentence() == "3 the same, 1 different"


async def test_a_server_that_is_not_there_is_told() -> None:
    with pytest.raises(ConnectionLost, match="no answer from http://127"):
        await asyncio.to_thread(server_target, "127.0.0.1:1", None)


async def test_a_server_that_goes_away_fails_the_episodes_and_says_so(tmp_path: Path) -> None:
    file = await recorded(tmp_path / "a.jsonl", range(3))
    with served(dice_app()) as address:
        venue = await asyncio.to_thread(server_target, address, None)
    tally = await tallied(file, venue)
    assert tally.sentence() == "3 failed"
    assert "step 0 could not be played: Connect" in tally.kept[0].note


async def test_what_is_counted_is_kept_apart(tmp_path: Path) -> None:
    file = await recorded(tmp_path / "a.jsonl", [1, None, 2, 3])

    def change(lines: list[dict[str, Any]]) -> None:
        lines[1]["reward"] = 99.0
        for line in lines[12:]:
            line["schema"] = "beef"
        del lines[8]

    tally = await tallied(changed(file, change), app_target("dice", dice_app()))
    assert tally.sentence() == (
        "1 different, 1 not compared, without a seed, 1 not compared, without a beginning, 1 not compared, of other "
        "schemas"
    )
    assert (tally.episodes, tally.compared, tally.wrong) == (4, 1, 2)
    facts = tally.facts()
    assert facts["same"] is False
    assert facts["outcomes"]["mismatched"] == 1
    assert len(facts["noted"]) == 4


async def test_a_place_that_cannot_be_had_ends_it(tmp_path: Path) -> None:
    file = await recorded(tmp_path / "a.jsonl", range(3))

    def nowhere(episode: Episode) -> ReplayTarget:
        raise UsageError(f"nothing is called {episode.environment}")

    with pytest.raises(UsageError, match="nothing is called dice"):
        await replay(Recording(file).episodes(), nowhere, ReplayRules(), 2, lambda _: None)


async def test_an_app_of_somebody_else_is_no_place() -> None:
    with pytest.raises(UsageError, match="create_app did not make"):
        app_target("odd", object())


async def test_it_is_cancelled_and_no_session_is_left(tmp_path: Path) -> None:
    file = await recorded(tmp_path / "a.jsonl", range(3))
    Waiting.begun = asyncio.Semaphore(0)
    app = dice_app(Waiting)
    playing = asyncio.ensure_future(tallied(file, app_target("dice", app), 3))
    for _ in range(3):
        await Waiting.begun.acquire()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    await app.state.openenv.aclose()
    assert app.state.openenv.active_sessions == 0


async def test_an_environment_with_one_session_is_played_one_episode_after_the_other(tmp_path: Path) -> None:
    class Single(Dice):
        SUPPORTS_CONCURRENT_SESSIONS = False

    file = await recorded(tmp_path / "a.jsonl", range(5))
    venue = app_target("dice", dice_app(Single))
    assert venue.sessions == 1
    assert (await tallied(file, venue, 4)).sentence() == "5 the same"


async def test_records_are_read_no_further_than_they_are_played(tmp_path: Path) -> None:
    file = await recorded(tmp_path / "a.jsonl", range(20))
    read = heard = most = 0

    def counted() -> Iterator[Episode]:
        nonlocal read, most
        for episode in Recording(file).episodes():
            read += 1
            most = max(most, read - heard)
            yield episode

    def hear(_: ReplayResult) -> None:
        nonlocal heard
        heard += 1

    venue = app_target("dice", dice_app())
    await replay(counted(), lambda _: venue, ReplayRules(), 3, hear)
    assert (read, heard) == (20, 20)
    assert most <= 4


async def test_of_many_differences_the_first_are_kept() -> None:
    tally = ReplaySummary()
    for number in range(3000):
        tally.add(ReplayResult(str(number), "s", "dice", 1, ReplayOutcome.FAILED, note="no"))
    assert (tally.episodes, tally.wrong, len(tally.kept)) == (3000, 3000, 1000)


class Waiting(Dice):
    """Whose step never ends."""

    begun: asyncio.Semaphore

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        self.begun.release()
        await asyncio.Event().wait()


async def autoreset(folder: Path, environment: type[Dice], steps: int = 33, seeds: tuple[int, ...] = (1, 2)) -> Path:
    """The record of a vector client; an episode of dice has ten steps, and the next call begins another one."""
    app = dice_app(environment)
    with served(app) as address:
        async with VectorEnvClient(
            GenericEnvClient, address, len(seeds), autoreset_mode="next_step", record=str(folder)
        ) as envs:
            await envs.reset(seeds=list(seeds))
            for _ in range(steps):
                await envs.step([{}] * len(seeds))
    return folder


async def test_episodes_that_autoreset_began_are_played_after_the_one_before_them(tmp_path: Path) -> None:
    folder = await autoreset(tmp_path / "record", Dice)
    tally = await tallied(folder, app_target("dice", dice_app()))
    assert (tally.episodes, tally.sentence()) == (6 + 2, "8 the same")

    class Loaded(Dice):
        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Rolled:
            self.bias = 0 if seed is not None else 1
            return super().reset(seed, episode_id, **kwargs)

    tally = await tallied(folder, app_target("dice", dice_app(Loaded)))
    assert tally.sentence() == "2 the same, 2 different, 4 not compared, without a seed"


async def test_numbers_that_are_the_same_by_chance_in_some_repeats_are_no_difference(tmp_path: Path) -> None:
    # It is recorded with one seed. It is played with another, as are its first four repeats; the fifth differs.
    drawn = iter([1, *[2] * 5, 3])

    class Entropy(Dice):
        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Rolled:
            if seed is None:
                self.rng.seed(next(drawn))
            return super().reset(seed, episode_id, **kwargs)

    folder = await autoreset(tmp_path / "record", Entropy, steps=15, seeds=(1,))
    tally = await tallied(folder, app_target("dice", dice_app(Entropy)))
    assert tally.sentence() == "1 the same, 1 not compared, without a seed"


async def test_an_environment_that_draws_anew_without_a_seed_is_not_compared(tmp_path: Path) -> None:
    class Entropy(Dice):
        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Rolled:
            if seed is None:
                self.rng.seed()
            return super().reset(seed, episode_id, **kwargs)

    folder = await autoreset(tmp_path / "record", Entropy)
    tally = await tallied(folder, app_target("dice", dice_app(Entropy)))
    assert tally.sentence() == "2 the same, 6 not compared, without a seed"
