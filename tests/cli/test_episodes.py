from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from openenv.cli import main
from openenv.recording.reader import Recording

from ..recording.written import array_mark, episode, line, write_lines, write_parquet
from ..rollouts.folders import make_rollout, write_rollouts
from .process import running

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def episodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `openenv episodes ...` in this process; returns its exit code, output and complaints."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["openenv", "episodes", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Episodes that ended, one that failed, one that is open, one of another environment, one without its reset."""
    late = {"error": "StepTimeout: late", "observation": None, "reward": None}
    lines = [
        *episode(3, "a", time=50.0),
        *episode(1, "b", time=10.0, seed=8),
        *[line(0, "c", time=20.0), line(1, "c", time=21.0, **late)],
        *[line(0, "d", time=30.0), line(1, "d", time=31.0)],
        *episode(2, "e", time=40.0, environment="other", seed=None),
        line(5, "f", time=60.0),
    ]
    return write_lines(tmp_path / "record" / "a.jsonl", lines)


def rows(out: str) -> list[list[str]]:
    return [each.split() for each in out.splitlines()]


def test_episodes_are_listed_in_the_order_in_which_they_began(episodes: Run, record: Path) -> None:
    code, out, err = episodes("ls", record)
    head, *there = rows(out)
    assert (code, err) == (0, "")
    assert head[2:5] == ["episode", "environment", "seed"]
    assert [row[2] for row in there] == ["b-1", "c-1", "d-1", "e-1", "a-1", "f-1"]
    assert there[0] == ["1970-01-01", "00:00:10", "b-1", "counter", "8", "1", "1", "terminated"]
    assert there[1][-2:] == ["failed", "StepTimeout"]
    assert there[2][-3:] == ["1", "1", "open"]
    assert there[5][5:7] == ["5-5", "1"]


def test_episodes_are_picked(episodes: Run, record: Path) -> None:
    assert [row[2] for row in rows(episodes("ls", record, "--errors")[1])[1:]] == ["c-1"]
    assert [row[2] for row in rows(episodes("ls", record, "--environment", "other")[1])[1:]] == ["e-1"]
    assert [row[2] for row in rows(episodes("ls", record, "--limit", 2)[1])[1:]] == ["a-1", "f-1"]


def test_episodes_are_listed_in_json(episodes: Run, record: Path) -> None:
    code, out, _ = episodes("ls", record, "--json")
    listed = json.loads(out)["episodes"]
    assert code == 0
    assert [each["steps"] for each in listed] == [1, 1, 1, 2, 3, 5]
    assert (listed[4]["return"], listed[4]["outcome"], listed[4]["seed"]) == (3.0, "terminated", 7)


def test_what_cannot_be_read_is_told_beside_the_list(episodes: Run, record: Path) -> None:
    record.write_text("what\n" + record.read_text() + '{"step": 6, "obs')
    code, out, err = episodes("ls", record)
    assert (code, len(out.splitlines())) == (0, 7)
    assert "line 1: it is not JSON" in err
    assert "the file ends in the middle of it" in err
    assert len(json.loads(episodes("ls", record, "--json")[1])["faults"]) == 2


@pytest.mark.parametrize("command", ["ls", "show", "stats", "plot", "view"])
def test_a_path_that_is_not_there_is_exit_code_2(episodes: Run, tmp_path: Path, command: str) -> None:
    code, _, err = episodes(command, tmp_path / "nowhere")
    assert code == 2
    assert "nowhere is not there" in err


def test_an_empty_folder_has_no_episodes(episodes: Run, tmp_path: Path) -> None:
    assert episodes("ls", tmp_path) == (0, "", f"no such episodes in {tmp_path}\n")
    assert episodes("stats", tmp_path) == (0, "", f"no such episodes in {tmp_path}\n")
    assert json.loads(episodes("stats", tmp_path, "--json")[1])["environments"] == {}


def test_an_episode_is_shown_step_by_step(episodes: Run, record: Path) -> None:
    code, out, _ = episodes("show", record, "a-1")
    assert code == 0
    assert out.splitlines() == [
        "episode a-1 of counter, seed 7",
        'reset    {"seed":7}',
        '         {"value":0}',
        'step 1   {"by":1}  reward 1',
        '         {"value":1}',
        'step 2   {"by":1}  reward 1',
        '         {"value":2}',
        'step 3   {"by":1}  reward 1  done',
        '         {"value":3}',
        "terminated after 3 steps, return 3",
    ]
    assert "error: StepTimeout: late" in episodes("show", record, "c-1")[1]


def test_an_episode_is_shown_in_json(episodes: Run, record: Path) -> None:
    (shown,) = json.loads(episodes("show", record, "a-1", "--json")[1])["episodes"]
    assert [each["step"] for each in shown["transitions"]] == [0, 1, 2, 3]
    assert shown["transitions"][1]["action"] == {"by": 1}
    assert "action" not in shown["transitions"][0]


def test_an_episode_is_named_by_the_beginning_of_its_id_or_is_the_only_one(
    episodes: Run, record: Path, tmp_path: Path
) -> None:
    assert "episode e-1 of other" in episodes("show", record, "e")[1]
    code, _, err = episodes("show", record)
    assert code == 1
    assert "has 6 episodes: say which one (a-1, b-1, c-1, d-1, e-1, ...)" in err
    code, _, err = episodes("show", record, "zz")
    assert code == 1
    assert "has no episode 'zz': `openenv episodes ls" in err
    assert "episode s1-1" in episodes("show", write_lines(tmp_path / "one.jsonl", episode(1)))[1]


def test_statistics_keep_errors_and_episodes_without_an_end_apart(episodes: Run, record: Path) -> None:
    code, out, _ = episodes("stats", record)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "counter: 5 episodes, 7 steps"
    assert lines[1] == "  ended     2 terminated, 2 open, 1 failed"
    assert lines[2] == "  errors    1 StepTimeout, in 1 episode"
    assert lines[4].split() == ["return", "2", "1.414", "1", "1.1", "1.5", "2", "2.5", "2.9", "3"]
    assert lines[6].strip() == "of 2 episodes that ended"
    assert lines[7] == "other: 1 episode, 2 steps"


def test_statistics_in_json_are_of_each_environment(episodes: Run, record: Path) -> None:
    found = json.loads(episodes("stats", record, "--json")[1])["environments"]
    assert set(found) == {"counter", "other"}
    assert found["counter"]["returns"]["mean"] == 2.0
    assert found["counter"]["lengths"]["episodes"] == 2
    assert found["counter"]["errors"] == {"StepTimeout": 1}
    assert found["other"]["returns"]["std"] is None


def test_where_no_episode_ends_statistics_are_of_those_that_are_open(episodes: Run, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", [line(0), line(1), line(2)])
    assert "of 1 episode, none of which has an end" in episodes("stats", file)[1]


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_episodes_are_exported_one_after_the_other(episodes: Run, tmp_path: Path, name: str) -> None:
    mark = array_mark(tmp_path / "record", numpy.arange(3.0)) if (tmp_path / "record").mkdir() is None else {}
    mixed = [each for pair in zip(episode(2, "a"), episode(2, "b"), strict=True) for each in pair]
    mixed[0]["observation"] = {"screen": mark}
    write_lines(tmp_path / "record" / "a.jsonl", mixed)
    target = tmp_path / "to" / name
    code, out, _ = episodes("export", tmp_path / "record", "-o", target)
    assert code == 0
    assert out.startswith(f"{target}: 2 episodes, ")
    first, second = Recording(target).episodes()
    before = {each.session_id: each for each in Recording(tmp_path / "record").episodes()}
    assert first.facts() == before["a"].facts()
    assert [*second.transitions()] == [*before["b"].transitions()]
    assert next(first.transitions()).observation["screen"].tolist() == [0.0, 1.0, 2.0]
    assert sorted(each.name for each in target.parent.iterdir()) == ["arrays", name]


def test_chosen_episodes_are_exported(episodes: Run, record: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.jsonl"
    facts = json.loads(episodes("export", record, "-o", target, "--ended", "--json")[1])
    assert (facts["episodes"], facts["bytes"]) == (3, target.stat().st_size)
    assert {json.loads(each)["session_id"] for each in target.read_text().splitlines()} == {"a", "b", "e"}
    assert "1 episode," in episodes("export", record, "-o", tmp_path / "b.jsonl", "--episode", "c-1")[1]


def test_an_export_overwrites_nothing_and_leaves_nothing_that_is_not_whole(
    episodes: Run, record: Path, tmp_path: Path
) -> None:
    code, _, err = episodes("export", record, "-o", record)
    assert code == 1
    assert "exists already: remove it, or name another file" in err
    code, _, err = episodes("export", record, "-o", tmp_path / "a.csv")
    assert code == 1
    assert "it must end in .jsonl or .parquet" in err
    lost = {"$array": {"dtype": "<f8", "shape": [3], "sha256": "ab" * 32}}
    broken = write_lines(tmp_path / "broken" / "a.jsonl", [line(0, observation={"x": lost})])
    for name in ("b.jsonl", "b.parquet"):
        code, _, err = episodes("export", broken, "-o", tmp_path / name)
        assert code == 2
        assert "does not exist; copy the record together with its folder `arrays`" in err
        assert [each.name for each in tmp_path.iterdir() if each.name.startswith("b.")] == []


@pytest.mark.parametrize("picked", [[], ["a-1"]])
@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_returns_and_rewards_are_drawn(
    episodes: Run, record: Path, tmp_path: Path, picked: list[Any], name: str, begin: bytes
) -> None:
    target = tmp_path / "pictures" / name
    code, out, _ = episodes("plot", record, *picked, "-o", target)
    assert code == 0
    assert out.startswith(f"{target}: ")
    assert target.read_bytes().startswith(begin)


def test_what_cannot_be_drawn_is_told(episodes: Run, record: Path, tmp_path: Path) -> None:
    code, _, err = episodes("plot", record, "-o", "a.gif")
    assert code == 2
    assert "it must end in .png or .svg" in err
    nothing = write_lines(tmp_path / "no.jsonl", [line(0), line(1, reward=None)])
    code, _, err = episodes("plot", nothing, "-o", tmp_path / "a.png")
    assert code == 1
    assert "no episode with a reward to draw" in err
    code, _, err = episodes("plot", nothing, "s1-1", "-o", tmp_path / "a.png")
    assert code == 1
    assert "has no rewards to draw" in err


def test_parquet_is_read_like_lines(episodes: Run, record: Path, tmp_path: Path) -> None:
    lines = [json.loads(each) for each in record.read_text().splitlines()]
    rotated = write_parquet(tmp_path / "rotated.parquet", lines)
    assert episodes("ls", rotated)[1] == episodes("ls", record)[1]
    assert episodes("stats", rotated)[1] == episodes("stats", record)[1]


def test_a_record_gives_no_commands_to_the_terminal(episodes: Run, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\n"
    error = {"error": f"Step{evil}Failed: {evil}", "observation": None}
    lines = [line(0, episode_id=evil, environment=evil), line(1, episode_id=evil, environment=evil, **error)]
    file = write_lines(tmp_path / "a.jsonl", lines)
    for command in ("ls", "show", "stats"):
        code, out, err = episodes(command, file)
        assert code == 0
        assert "\x1b" not in out + err
        assert "\x07" not in out + err


def test_rollouts_are_served_until_ctrl_c(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "monday" / "rollouts-a.jsonl", make_rollout(0), make_rollout(1))
    with running("episodes", "view", str(tmp_path)) as server:
        assert str(tmp_path) in server.announcement
        answer = server.get("/rollouts/runs")
        while answer["reading"]:
            answer = server.get("/rollouts/runs")
        assert [(run["run"], run["rollouts"]) for run in answer["runs"]] == [("monday", 2)]
        code, complaints = server.end(signal.SIGINT)
    assert (code, "Traceback" in complaints) == (130, False)


def test_a_port_in_use_and_a_tokenizer_that_is_not_there_are_usage_errors(episodes: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = episodes("view", tmp_path, "--port", taken.getsockname()[1])
    assert (code, "--port" in err) == (1, True)
    code, _, err = episodes("view", tmp_path, "--tokenizer", tmp_path / "nothing")
    assert (code, "tokenizer" in err or "pip install 'openenv[transformers]'" in err) == (1, True)
