"""The result format of `openenv collect`, which the released package reads and writes too."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from openenv.errors import JournalInUse, UnreadableRecord
from openenv.rollouts.collected import (
    RESULTS_FILENAME,
    EpisodeRecord,
    ResultsFile,
    episode_record,
    public_metadata,
    read_results,
    write_metadata,
)

from .written import rollout_of

# A line that `openenv collect` of the released package writes.
RELEASED = {
    "episode_id": "ep-000000",
    "messages": [{"role": "user", "content": "hi"}],
    "reward": 1.0,
    "done": True,
    "tool_trace": [
        {
            "tool_name": "look",
            "arguments": {"at": 1},
            "result": {"data": {"x": 1}, "done": True, "metadata": {"reward": 1.0}, "error": None},
        }
    ],
    "metrics": {"turns": 1, "tool_calls": 1},
    "verify_metrics": {},
    "artifacts": {},
    "task": None,
    "extra": {},
}


def test_an_episode_has_the_fields_of_the_format(tmp_path: Path) -> None:
    with ResultsFile(tmp_path) as results:
        results.append(episode_record("ep-000000", rollout_of()))
    line = json.loads((tmp_path / RESULTS_FILENAME).read_text())
    assert line.keys() == RELEASED.keys()
    assert (line["reward"], line["done"]) == (1.0, True)
    assert line["tool_trace"][1]["result"] == {
        "data": {"seen": 9},
        "done": True,
        "metadata": {"reward": 1.0},
        "error": None,
    }
    assert line["metrics"]["turns"] == line["metrics"]["tool_calls"] == 2


def test_each_tool_call_has_a_reply(tmp_path: Path) -> None:
    messages = episode_record("ep", rollout_of()).messages
    called = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    replied = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert called == replied == ["call-0", "call-1"]
    assert json.loads(messages[-1]["content"]) == {"seen": 9}


def test_what_the_released_package_wrote_is_read_and_continued(tmp_path: Path) -> None:
    (tmp_path / RESULTS_FILENAME).write_text(json.dumps(RELEASED) + "\n")
    with ResultsFile(tmp_path) as results:
        assert results.ids == {"ep-000000"}
        results.append(EpisodeRecord("ep-000001", [], None, False))
    assert [record.episode_id for record in read_results(tmp_path)] == ["ep-000000", "ep-000001"]
    assert next(read_results(tmp_path)).tool_trace == RELEASED["tool_trace"]


@pytest.mark.parametrize("kept", [1, 40])
def test_a_torn_last_line_is_removed(tmp_path: Path, kept: int) -> None:
    whole = json.dumps(RELEASED)
    (tmp_path / RESULTS_FILENAME).write_text(f"{whole}\n{whole[:kept]}")
    assert len(list(read_results(tmp_path))) == 1
    with ResultsFile(tmp_path) as results:
        results.append(EpisodeRecord("ep-000001", [], 0.5, True))
    assert [record.episode_id for record in read_results(tmp_path)] == ["ep-000000", "ep-000001"]


def test_a_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    (tmp_path / RESULTS_FILENAME).write_text(json.dumps(RELEASED))
    with ResultsFile(tmp_path) as results:
        results.append(EpisodeRecord("ep-000001", [], 0.5, True))
    assert len(list(read_results(tmp_path))) == 2


def test_damage_in_the_middle_is_named_and_left(tmp_path: Path) -> None:
    text = f"{json.dumps(RELEASED)}\n{{broken\n{json.dumps(RELEASED)}\n"
    (tmp_path / RESULTS_FILENAME).write_text(text)
    with pytest.raises(UnreadableRecord, match=r"results\.jsonl:2"):
        ResultsFile(tmp_path)
    assert (tmp_path / RESULTS_FILENAME).read_text() == text


def test_a_full_disk_leaves_no_part_of_an_episode(tmp_path: Path) -> None:
    whole = json.dumps(RELEASED).encode() + b"\n"
    (tmp_path / RESULTS_FILENAME).write_bytes(whole + whole[:20])
    large = EpisodeRecord("ep-000001", [{"role": "user", "content": "x" * 100_000}], 1.0, True)
    with ResultsFile(tmp_path) as results:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                results.append(large)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / RESULTS_FILENAME).read_bytes() == whole


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with ResultsFile(tmp_path), pytest.raises(JournalInUse, match="another process"):
        ResultsFile(tmp_path)
    ResultsFile(tmp_path).close()


def test_metadata_to_publish_has_no_address(tmp_path: Path) -> None:
    facts = {"env": "echo", "env_base_url": "http://10.0.0.1:8000", "llm_endpoint": "http://h", "model": "m"}
    write_metadata(tmp_path, facts)
    assert json.loads((tmp_path / "metadata.json").read_text()) == facts
    assert public_metadata({**facts, "note": "see https://internal"}) == {"env": "echo", "model": "m"}
