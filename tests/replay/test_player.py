from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openenv.errors import SchemaMismatch, SeedIgnored
from openenv.recording.difference import within
from openenv.recording.reader import Episode, Recording
from openenv.replay import ReplayedTransition, ReplayOutcome, ReplayPlayer, ReplayResult, ReplayRules, app_target

from .environments import Dice
from .records import Change, changed, dice_app, recorded

pytestmark = pytest.mark.anyio


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    return await recorded(tmp_path / "a.jsonl")


def episode_in(file: Path) -> Episode:
    (found,) = Recording(file).episodes()
    return found


async def played(file: Path, rules: ReplayRules | None = None, environment: type[Dice] = Dice) -> ReplayResult:
    venue = app_target("dice", dice_app(environment))
    verdict = await ReplayPlayer(episode_in(file), venue, rules or ReplayRules(within(0.0))).verdict()
    await venue.aclose()
    return verdict


def of_step(step: int, **values: Any) -> Change:
    return lambda lines: lines[step].update(values)


async def test_an_episode_is_the_same_when_it_is_played_again(file: Path) -> None:
    verdict = await played(file)
    assert (verdict.outcome, verdict.steps, verdict.note) == (ReplayOutcome.SAME, 3, "")
    assert (verdict.episode_id, verdict.environment, verdict.seed) == ("s0-1", "dice", 1)


async def test_the_first_difference_is_told_with_step_and_path(file: Path) -> None:
    class Loaded(Dice):
        bias = 1

    verdict = await played(file, environment=Loaded)
    found = verdict.divergence
    assert found is not None
    assert (verdict.outcome, verdict.steps) == (ReplayOutcome.DIFFERENT, 2)
    assert (found.step, found.path) == (3, "observation.eyes[2]")
    assert found.difference.other == found.difference.one + 1
    assert "step 3: observation.eyes[2] is " in verdict.sentence()
    assert "episode s0-1 of dice (seed 1)" in verdict.sentence()


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (of_step(0, observation={"eyes": [7], "share": 0.0}), "observation.eyes"),
        (of_step(2, reward=9.0), "reward"),
        (of_step(2, reward=None), "reward"),
        (of_step(3, done=True), "done"),
        (of_step(3, terminated=True), "terminated"),
        (of_step(3, truncated=True), "truncated"),
        (of_step(2, error="StepFailed: oh", observation=None), "error"),
        (of_step(1, action={"fails": True}), "error"),
    ],
)
async def test_every_part_of_a_transition_is_compared(file: Path, change: Change, path: str) -> None:
    verdict = await played(changed(file, change))
    assert verdict.divergence is not None
    assert verdict.divergence.path == path


async def test_what_nobody_said_is_not_compared(file: Path) -> None:
    assert (await played(changed(file, of_step(3, terminated=None, truncated=None)))).outcome is ReplayOutcome.SAME


async def test_a_clock_that_is_marked_is_not_compared(file: Path) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[1]["observation"]["clock"] = 0.5

    assert (await played(changed(file, change))).outcome is ReplayOutcome.SAME


async def test_floats_may_differ_by_the_tolerance(file: Path) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[1]["observation"]["share"] += 1e-9

    assert (await played(changed(file, change))).outcome is ReplayOutcome.DIFFERENT
    assert (await played(file, ReplayRules())).outcome is ReplayOutcome.SAME


async def test_words_for_floats_that_json_does_not_have_are_those_floats(file: Path) -> None:
    class Endless(Dice):
        def _rolled(self, reward: float | None) -> Any:
            seen = super()._rolled(reward)
            seen.share = float("-inf") if self._state.step_count % 2 else float("nan")
            return seen

    def change(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line["observation"]["share"] = "-Infinity" if line["step"] % 2 else "NaN"

    assert (await played(changed(file, change), environment=Endless)).outcome is ReplayOutcome.SAME
    assert (await played(file)).outcome is ReplayOutcome.DIFFERENT


async def test_an_error_of_the_environment_is_the_same_again(tmp_path: Path) -> None:
    file = await recorded(tmp_path / "a.jsonl", actions=[{}, {"fails": True}, {}])
    verdict = await played(file)
    assert (verdict.outcome, verdict.steps) == (ReplayOutcome.SAME, 3)
    assert (await played(changed(file, of_step(2, error="the dice fell off")))).outcome is ReplayOutcome.SAME
    other = await played(changed(file, of_step(2, error="InvalidAction: no")))
    assert other.divergence is not None
    assert (other.divergence.path, other.divergence.difference.one) == ("error", "InvalidAction: no")


async def test_an_action_that_was_none_is_none_again(tmp_path: Path) -> None:
    file = await recorded(tmp_path / "a.jsonl", actions=[{"sides": 0}, {}])
    assert (await played(file)).outcome is ReplayOutcome.SAME


@pytest.mark.parametrize("error", ["StepTimeout: late", "EnvironmentCrashed: gone", "Cancelled: by its caller"])
async def test_it_is_compared_up_to_an_error_that_was_of_the_moment(file: Path, error: str) -> None:
    verdict = await played(changed(file, of_step(2, error=error, observation=None)))
    assert (verdict.outcome, verdict.steps) == (ReplayOutcome.SAME, 1)
    assert verdict.note == f"compared up to step 1: then {error.partition(':')[0]} was recorded"


async def test_it_is_compared_up_to_a_step_that_is_missing(file: Path) -> None:
    verdict = await played(changed(file, lambda lines: lines.pop(2)))
    assert (verdict.outcome, verdict.steps) == (ReplayOutcome.SAME, 1)
    assert verdict.note == "compared up to step 1: the record lacks step 2"


async def test_it_is_compared_up_to_a_step_with_arguments_of_its_own(file: Path) -> None:
    verdict = await played(changed(file, of_step(2, step_arguments={"hard": True})))
    assert (verdict.outcome, verdict.steps) == (ReplayOutcome.SAME, 1)
    assert "arguments beside its action" in verdict.note


async def test_without_a_seed_it_is_compared_only_if_asked_for(tmp_path: Path) -> None:
    # With this many sides, two rolls are the same by chance once in 10^12 runs.
    file = await recorded(tmp_path / "a.jsonl", [None], actions=({"sides": 10**12},) * 3)
    verdict = await played(file)
    assert (verdict.outcome, verdict.steps) == (ReplayOutcome.UNSEEDED, 0)
    assert (await played(file, ReplayRules(unseeded=True))).outcome is ReplayOutcome.DIFFERENT


async def test_of_an_environment_that_takes_no_seed_nothing_is_compared(file: Path) -> None:
    class Unseeded(Dice):
        def reset(self, episode_id: str | None = None) -> Any:
            return super().reset(None, episode_id)

    with pytest.warns(SeedIgnored):
        verdict = await played(file, environment=Unseeded)
    assert (verdict.outcome, verdict.note) == (
        ReplayOutcome.UNSEEDED,
        "its environment takes no seed, so a repeat may differ",
    )


async def test_a_seed_that_no_column_holds_is_found_among_the_arguments(tmp_path: Path) -> None:
    file = await recorded(tmp_path / "a.jsonl", [2**70])
    assert (
        await played(changed(file, of_step(0, seed=None, arguments={"seed": 2**70})))
    ).outcome is ReplayOutcome.SAME


async def test_an_episode_without_its_beginning_is_not_played(file: Path) -> None:
    verdict = await played(changed(file, lambda lines: lines.pop(0)))
    assert verdict.outcome is ReplayOutcome.INCOMPLETE
    assert "begins at step 1" in verdict.note


async def test_a_fork_is_not_played(file: Path) -> None:
    source = {"session_id": "before", "episode_id": "x", "step": 0}
    verdict = await played(changed(file, of_step(0, source=source)))
    assert (verdict.outcome, verdict.note) == (
        ReplayOutcome.INCOMPLETE,
        "it is a fork of session before at step 0",
    )


async def test_a_record_of_other_schemas_is_told_with_versions_and_what_to_do(file: Path) -> None:
    verdict = await played(changed(file, lambda lines: [line.update(schema="beef") for line in lines][:0]))
    assert verdict.outcome is ReplayOutcome.MISMATCHED
    assert "the record is of dice 0.1 with schemas beef (openenv 1.0.0), and dice has schemas " in verdict.note
    assert "play it against the version that it was recorded with" in verdict.note
    with pytest.raises(SchemaMismatch) as refused:
        app_target("dice", dice_app()).check("beef", "dice", {"environment": "0.1"})
    assert refused.value.data["recorded"] == "beef"


async def test_a_record_that_does_not_say_its_schemas_is_played(file: Path) -> None:
    assert (await played(changed(file, lambda lines: [each.pop("schema") for each in lines][:0]))).steps == 3


async def test_an_array_that_is_missing_fails_the_episode_and_says_so(file: Path) -> None:
    mark = {"$array": {"dtype": "<f4", "shape": [2], "sha256": "ab" * 32}}
    verdict = await played(changed(file, of_step(2, observation={"eyes": mark})))
    assert verdict.outcome is ReplayOutcome.FAILED
    assert "cannot be read: No such file" in verdict.note


async def test_what_the_place_does_is_no_difference_of_the_episode(file: Path) -> None:
    class Broken(Dice):
        def __init__(self) -> None:
            raise ValueError("no dice")

    verdict = await played(file, environment=Broken)
    assert verdict.outcome is ReplayOutcome.FAILED
    assert "step 0 could not be played: FactoryFailed" in verdict.note


async def test_the_id_that_a_client_gave_is_given_again_and_one_that_was_made_is_not(file: Path) -> None:
    class Named(Dice):
        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
            seen = super().reset(seed, episode_id)
            seen.eyes = [len(episode_id or "")]
            return seen

    verdict = await played(changed(file, of_step(0, observation={"eyes": [0], "share": 0.0, "clock": 0.0})))
    assert verdict.outcome is ReplayOutcome.DIFFERENT

    def change(lines: list[dict[str, Any]]) -> None:
        for line in lines[:1]:
            line["episode_id"] = "mine"
            line["observation"]["eyes"] = [4]

    del_others: Change = lambda lines: lines.__delitem__(slice(1, None))  # noqa: E731
    assert (await played(changed(changed(file, change), del_others), environment=Named)).outcome is ReplayOutcome.SAME


async def test_whoever_listens_hears_all_of_it_also_after_a_difference(file: Path) -> None:
    heard: list[ReplayedTransition] = []
    venue = app_target("dice", dice_app())
    changed(file, of_step(1, reward=9.0))
    verdict = await ReplayPlayer(episode_in(file), venue, ReplayRules()).verdict(heard.append)
    assert [pair.recorded.step for pair in heard] == [0, 1, 2, 3]
    assert [pair.divergence is None for pair in heard] == [True, False, True, True]
    assert verdict.divergence is heard[1].divergence


async def test_no_session_is_left(file: Path) -> None:
    app = dice_app()
    await ReplayPlayer(
        episode_in(changed(file, of_step(1, reward=9.0))), app_target("dice", app), ReplayRules()
    ).verdict()
    assert app.state.openenv.active_sessions == 0


def test_verdicts_are_facts_for_json() -> None:
    verdict = ReplayResult("e", "s", "dice", 1, ReplayOutcome.SAME, 3)
    assert verdict.facts() == {
        "episode_id": "e", "session_id": "s", "environment": "dice", "seed": 1, "outcome": "same", "steps": 3,
        "difference": None, "note": "",
    }  # fmt: skip
