from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from openenv.errors import MissingArray, UnreadableRecord
from openenv.recording import reader
from openenv.recording.reader import Episode, Recording

from .written import STEM, array_mark, episode, line, write_lines, write_parquet


def read(path: Path) -> list[Episode]:
    return list(Recording(path).episodes())


def steps(each: Episode) -> list[int]:
    return [transition.step for transition in each.transitions()]


def by_session(path: Path) -> dict[str, list[int]]:
    return {each.session_id: steps(each) for each in read(path)}


def test_an_episode_is_read_with_all_that_its_lines_say(tmp_path: Path) -> None:
    (found,) = read(write_lines(tmp_path / "a.jsonl", episode(2)))
    assert (found.episode_id, found.session_id, found.environment) == ("s1-1", "s1", "counter")
    assert (found.seed, found.schema, found.versions["environment"]) == (7, "abc", "0.1")
    assert (found.steps, found.episode_return, found.outcome, found.whole) == (2, 2.0, "terminated", True)
    assert (found.began, found.ended, found.errors) == (1000.0, 1002.5, {})
    first, *_, last = found.transitions()
    assert (first.seed, first.arguments, first.action, first.reward) == (7, {}, None, None)
    assert (last.step, last.action, last.observation, last.done) == (2, {"by": 1}, {"value": 2}, True)


def test_sessions_that_were_mixed_are_told_apart(tmp_path: Path) -> None:
    mixed = [each for pair in zip(episode(3, "a"), episode(3, "b"), strict=True) for each in pair]
    assert by_session(write_lines(tmp_path / "a.jsonl", mixed)) == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}


def test_a_reset_begins_another_episode_even_of_the_same_id(tmp_path: Path) -> None:
    found = read(write_lines(tmp_path / "a.jsonl", [*episode(1), *episode(2), line(0)]))
    assert [each.steps for each in found] == [1, 2, 0]
    assert {each.episode_id for each in found} == {"s1-1"}
    assert found[2].outcome == "open"


def test_an_episode_goes_on_in_the_next_file_of_its_recorder(tmp_path: Path) -> None:
    lines = episode(5)
    write_parquet(tmp_path / f"{STEM}-000001.parquet", lines[:2])
    write_lines(tmp_path / f"{STEM}-000002.jsonl", lines[2:4])
    write_lines(tmp_path / f"{STEM}-000003.jsonl", lines[4:])
    (found,) = read(tmp_path)
    assert steps(found) == [0, 1, 2, 3, 4, 5]
    assert found.outcome == "terminated"


def test_sessions_of_other_recorders_are_other_sessions(tmp_path: Path) -> None:
    write_lines(tmp_path / f"{STEM}-000001.jsonl", [line(0), line(1)])
    write_lines(tmp_path / "20261123T020000-aaaaaa-000001.jsonl", [line(2)])
    assert [(each.first_step, each.steps, each.whole) for each in read(tmp_path)] == [(0, 1, True), (2, 2, False)]


def test_a_file_that_is_there_in_both_forms_is_read_once(tmp_path: Path) -> None:
    write_lines(tmp_path / f"{STEM}-000001.jsonl", episode(2))
    write_parquet(tmp_path / f"{STEM}-000001.parquet", episode(3))
    assert [each.steps for each in read(tmp_path)] == [3]


def test_what_is_unfinished_and_what_is_none_of_ours_is_left_out(tmp_path: Path) -> None:
    write_lines(tmp_path / f"{STEM}-000001.jsonl", episode(1))
    write_lines(tmp_path / f"{STEM}-000002.parquet.part", [])
    write_lines(tmp_path / "arrays" / "ab" / "odd.jsonl", episode(1))
    (tmp_path / "README.md").write_text("episodes")
    recording = Recording(tmp_path)
    assert len(list(recording.episodes())) == 1
    assert recording.damage.sentences() == []


def test_folders_within_a_folder_are_read_too(tmp_path: Path) -> None:
    write_lines(tmp_path / "a" / f"{STEM}-000001.jsonl", episode(1))
    write_lines(tmp_path / "b" / f"{STEM}-000001.jsonl", episode(1))
    assert len(read(tmp_path)) == 2


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_parquet_is_read_as_the_lines_are(tmp_path: Path, rows: int) -> None:
    lines = [*episode(3), *episode(2, "b", seed=None), line(1, "c", error="StepFailed: oh", observation=None)]
    lines = [lines[0], *lines[4:], *lines[1:4]]
    written = read(write_lines(tmp_path / "a.jsonl", lines))
    rotated = read(write_parquet(tmp_path / "b.parquet", lines, rows))
    assert [each.facts() for each in written] == [each.facts() for each in rotated]
    assert [[*each.transitions()] for each in written] == [[*each.transitions()] for each in rotated]


def test_a_line_that_is_cut_off_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    torn = json.dumps(line(2))[:-20]
    recording = Recording(write_lines(tmp_path / "a.jsonl", [line(0), line(1)], torn))
    (found,) = recording.episodes()
    assert (steps(found), found.outcome) == ([0, 1], "open")
    assert (recording.damage.torn, recording.damage.count) == (1, 0)
    assert recording.damage.faults[0].torn
    assert "line 3: the file ends in the middle of it" in recording.damage.sentences()[0]


def test_a_file_is_read_while_it_is_written(tmp_path: Path) -> None:
    lines = [json.dumps(each) for each in episode(2)]
    file = tmp_path / "a.jsonl"
    with file.open("w") as written:
        written.write(f"{lines[0]}\n{lines[1][:30]}")
        written.flush()
        assert [each.steps for each in read(file)] == [0]
        written.write(f"{lines[1][30:]}\n{lines[2]}\n")
        written.flush()
        assert [(each.steps, each.done) for each in read(file)] == [(2, True)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("{nonsense", "it is not JSON"),
        ('{"a": 1}', "it is not a transition: Object missing required field `step`"),
        ('{"step": 1}', "missing required field `observation`"),
        ('{"step": "1", "observation": {}}', "Expected `int`, got `str` - at `$.step`"),
        ('{"step": -1, "observation": {}}', "its step is below 0"),
        ("[]", "it is not a transition"),
        ("\x00\x01", "it is not JSON"),
        ('{"step": 0, "observation": ' + "[" * 2000, "it is not JSON"),
    ],
)
def test_a_line_that_is_none_is_told_and_the_rest_is_read(tmp_path: Path, wrong: str, said: str) -> None:
    lines = [json.dumps(each) for each in episode(1)]
    file = tmp_path / "a.jsonl"
    file.write_text(f"{lines[0]}\n{wrong}\n\n{lines[1]}\n")
    recording = Recording(file)
    assert [steps(each) for each in recording.episodes()] == [[0, 1]]
    assert recording.damage.count == 1
    assert "line 2" in recording.damage.sentences()[0]
    assert said in recording.damage.sentences()[0]


def test_of_many_faults_the_first_are_told_and_all_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("what\n" * 50)
    recording = Recording(file)
    assert list(recording.episodes()) == []
    assert recording.damage.count == 50
    assert recording.damage.sentences()[-1] == "and 30 more"


def test_a_file_that_is_no_parquet_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    write_lines(tmp_path / "b.jsonl", episode(1))
    with pytest.raises(UnreadableRecord, match=r"a\.parquet is not a readable Parquet file"):
        read(tmp_path / "a.parquet")
    recording = Recording(tmp_path)
    assert len(list(recording.episodes())) == 1
    assert "a.parquet: not a readable Parquet file" in recording.damage.sentences()[0]


def test_parquet_that_was_damaged_is_told(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", [each for name in range(50) for each in episode(9, f"s{name}")], 100)
    content = file.read_bytes()
    file.write_bytes(content[:4] + bytes(2000) + content[2004:])
    recording = Recording(file)
    assert list(recording.episodes()) == []
    assert "from row 1 on: it is damaged" in recording.damage.sentences()[0]


def test_values_of_parquet_that_were_damaged_are_told(tmp_path: Path) -> None:
    from pyarrow import parquet

    file = write_parquet(tmp_path / "a.parquet", [line(0, observation={"text": "x" * 50})])
    chunk = parquet.ParquetFile(file).metadata.row_group(0)
    column = next(
        chunk.column(at) for at in range(chunk.num_columns) if chunk.column(at).path_in_schema == "observation"
    )
    start = column.dictionary_page_offset or column.data_page_offset
    content = file.read_bytes()
    file.write_bytes(content[:start] + bytes(20) + content[start + 20 :])
    (found,) = read(file)
    with pytest.raises(UnreadableRecord, match=r"a\.parquet is damaged"):
        list(found.transitions())


def test_parquet_of_somebody_else_is_told_with_what_it_lacks(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"prompt": ["hi"]}), tmp_path / "a.parquet")
    with pytest.raises(UnreadableRecord, match="is not a record of openenv: it lacks the columns action, arguments"):
        read(tmp_path / "a.parquet")


def test_a_path_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRecord, match=r"nowhere is not there: name a file or folder"):
        Recording(tmp_path / "nowhere")


def test_an_empty_folder_holds_no_episodes(tmp_path: Path) -> None:
    assert read(tmp_path) == []


def test_arrays_are_put_back_by_their_hash(tmp_path: Path) -> None:
    array = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    mark = array_mark(tmp_path, array)
    small = {"$array": {"dtype": "<i4", "shape": [1], "data": "BwAAAA=="}}
    shown = {"screen": mark, "all": [mark], "small": small, "odd": {"$object": {"$bytes": "no"}}}
    (found,) = read(write_lines(tmp_path / "a.jsonl", [line(0, observation=shown)]))
    (seen,) = found.transitions()
    assert numpy.array_equal(seen.observation["screen"], array)
    assert seen.observation["screen"].dtype == numpy.float32
    assert numpy.array_equal(seen.observation["all"][0], array)
    assert seen.observation["small"].tolist() == [7]
    assert seen.observation["odd"] == {"$bytes": "no"}
    (raw,) = found.transitions(arrays=False)
    assert raw.observation == shown


def test_an_array_that_is_missing_is_told_and_what_to_do(tmp_path: Path) -> None:
    mark = array_mark(tmp_path, numpy.zeros(3))
    (stored,) = (tmp_path / "arrays").rglob("*.npy")
    (found,) = read(write_lines(tmp_path / "a.jsonl", [line(0, observation={"x": mark})]))
    stored.write_bytes(stored.read_bytes()[:-1] + b"\1")
    with pytest.raises(MissingArray, match="is not what it was"):
        list(found.transitions())
    stored.unlink()
    with pytest.raises(
        MissingArray, match="cannot be read: No such file or directory; copy the record together with"
    ):
        list(found.transitions())


@pytest.mark.parametrize(
    "mark",
    [
        {"$array": {"dtype": "<f4", "shape": [2], "sha256": "../../etc/passwd"}},
        {"$array": {"dtype": "<f4", "shape": [2], "sha256": 7}},
        {"$array": {"dtype": "<f4", "shape": [2]}},
        {"$bytes": 1},
    ],
)
def test_marks_that_are_wrong_are_told(tmp_path: Path, mark: Any) -> None:
    (found,) = read(write_lines(tmp_path / "a.jsonl", [line(0, observation={"x": mark})]))
    with pytest.raises(UnreadableRecord, match=r"a\.jsonl, at byte 0: "):
        list(found.transitions())


def test_an_array_of_another_shape_than_it_says_is_told(tmp_path: Path) -> None:
    mark = array_mark(tmp_path, numpy.zeros(3))
    mark["$array"]["shape"] = [4]
    (found,) = read(write_lines(tmp_path / "a.jsonl", [line(0, observation={"x": mark})]))
    with pytest.raises(UnreadableRecord, match="needs 32 bytes has 24"):
        list(found.transitions())


def test_a_fork_begins_where_its_source_stood(tmp_path: Path) -> None:
    source = {"session_id": "s1", "episode_id": "s1-1", "step": 2}
    lines = [*episode(3), line(3, "f", source=source), line(4, "f"), line(3, "f", source=source)]
    found = read(write_lines(tmp_path / "a.jsonl", lines))
    forked = [each for each in found if each.session_id == "f"]
    assert [(each.first_step, each.steps, each.source, each.whole) for each in forked] == [
        (3, 4, source, False),
        (3, 3, source, False),
    ]


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ({"done": True, "terminated": True}, "terminated"),
        ({"done": True, "truncated": True, "terminated": False}, "truncated"),
        ({"done": True, "truncated": True, "terminated": True}, "terminated"),
        ({"done": True, "truncated": None, "terminated": None}, "done"),
        ({"error": "StepTimeout: late", "observation": None, "reward": None}, "failed"),
        ({}, "open"),
    ],
)
def test_how_an_episode_ended_is_told(tmp_path: Path, end: dict[str, Any], outcome: str) -> None:
    (found,) = read(write_lines(tmp_path / "a.jsonl", [line(0), line(1, **end)]))
    assert found.outcome == outcome
    assert found.errors == ({"StepTimeout": 1} if "error" in end else {})


@pytest.mark.parametrize(
    "facts",
    [{"step": 10**30}, {"step": 2**63}, {"seed": 10**30}, {"time": 1e308}, {"time": -1.0}, {"duration_s": 1e15}],
)
def test_a_number_that_is_none_of_ours_makes_no_transition(tmp_path: Path, facts: dict[str, Any]) -> None:
    recording = Recording(write_lines(tmp_path / "a.jsonl", [line(0), {**line(1), **facts}]))
    (found,) = recording.episodes()
    assert steps(found) == [0]
    assert "line 2: it is not a transition" in recording.damage.sentences()[0]


def test_no_more_than_so_many_episodes_are_kept_that_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MOST_OPEN", 2)
    lines = [line(0, "a"), line(0, "b"), line(1, "a"), line(0, "c"), line(0, "d")]
    found = [each.session_id for each in Recording(write_lines(tmp_path / "a.jsonl", lines)).episodes()]
    assert found == ["b", "a", "c", "d"]


def test_episodes_come_while_the_rest_is_unread(tmp_path: Path) -> None:
    recording = Recording(write_lines(tmp_path / "a.jsonl", [*episode(1), *episode(2)], "torn"))
    episodes = recording.episodes()
    assert steps(next(episodes)) == [0, 1]
    assert recording.damage.torn == 0
    assert steps(next(episodes)) == [0, 1, 2]


def test_an_episode_is_read_from_a_file_that_was_rotated_away(tmp_path: Path) -> None:
    file = write_lines(tmp_path / f"{STEM}-000001.jsonl", episode(2))
    (found,) = read(tmp_path)
    file.unlink()
    assert steps(found) == [0, 1, 2]


def test_a_file_that_is_rotated_between_listing_and_opening_is_read_as_what_it_has_become(tmp_path: Path) -> None:
    write_lines(tmp_path / f"{STEM}-000001.jsonl", episode(1))
    second = write_lines(tmp_path / f"{STEM}-000002.jsonl", episode(2, "b"))
    third = write_lines(tmp_path / f"{STEM}-000003.jsonl", episode(2, "c"))
    write_lines(tmp_path / f"{STEM}-000004.jsonl", [line(0, "a"), line(0, "a"), line(0, "d")])
    recording = Recording(tmp_path)
    write_lines(tmp_path / f"{STEM}-000001.jsonl", [line(0), line(0), line(0)])
    episodes = recording.episodes()
    next(episodes)
    second.unlink()
    third.unlink()
    write_parquet(second.with_suffix(".parquet"), episode(2, "b"))
    assert {each.session_id for each in episodes} == {"s1", "a", "b", "d"}
    assert "000003" in recording.damage.sentences()[0]
    assert "it was removed meanwhile" in recording.damage.sentences()[0]


def test_one_environment_is_picked_by_its_name(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", [*episode(1), *episode(2, "b", environment="other")])
    assert [each.environment for each in Recording(file, "other").episodes()] == ["other"]
