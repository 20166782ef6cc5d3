from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.cli import main
from openenv.cli.replay import shown, worded
from openenv.envs.echo.server.app import app as echo

from ..modules import forget
from ..replay.records import changed, recorded
from ..server.wires import served
from .projects import write_module

Run = Callable[..., tuple[int, str, str]]
ACTIONS = [{"message": "hi"}, {"message": "you"}]


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Works in an empty folder; modules and search paths of a test are forgotten after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    forget(tmp_path)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Three episodes of echo."""
    return asyncio.run(recorded(tmp_path / "record.jsonl", [1, 2, 3], ACTIONS, app=echo))


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `openenv replay ...` in this process; returns its exit code, output and complaints."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["openenv", "replay", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def differing(lines: list[dict[str, Any]]) -> None:
    lines[4]["observation"]["echoed_message"] = "ho"


def test_a_record_is_checked_against_what_it_names(replay: Run, record: Path) -> None:
    code, out, _ = replay(record, "--check")
    assert code == 0
    assert out.startswith("3 episodes, 6 steps in ")
    assert out.endswith(" s against echo: 3 the same\n")


def test_the_first_difference_is_told_and_is_exit_code_1(replay: Run, record: Path) -> None:
    code, out, _ = replay(changed(record, differing), "--check")
    assert code == 1
    assert out.splitlines()[0] == (
        "episode s1-1 of echo (seed 2): step 1: observation.echoed_message is 'ho' recorded, 'hi' played"
    )
    assert "2 the same, 1 different" in out


def test_floats_that_json_does_not_have_are_words() -> None:
    values = {"value": [float("-inf"), float("nan"), 1.0]}
    text = '{"value":["-Infinity","NaN",1.0]}'
    assert shown(values) == text
    assert json.loads(json.dumps(worded(values)), parse_constant=pytest.fail) == json.loads(text)


def test_in_json_there_is_one_document(replay: Run, record: Path) -> None:
    code, out, _ = replay(changed(record, differing), "--check", "--json")
    report = json.loads(out)
    assert code == 1
    assert (report["same"], report["episodes"], report["against"]) == (False, 3, ["echo"])
    assert report["outcomes"]["different"] == 1
    assert report["noted"][0]["difference"] == {
        "step": 1,
        "path": "observation.echoed_message",
        "recorded": "ho",
        "played": "hi",
    }


def test_what_an_environment_prints_is_no_part_of_the_document(replay: Run, record: Path, somewhere: Path) -> None:
    write_module(
        somewhere / "loud.py",
        """
        from openenv.envs.echo.models import EchoAction, EchoObservation
        from openenv.envs.echo.server.echo_environment import EchoEnvironment
        from openenv.server import create_app

        class Loud(EchoEnvironment):
            def step(self, action, timeout_s=None, **kwargs):
                print("LOUD")
                return super().step(action)

        app = create_app(Loud, EchoAction, EchoObservation, env_name="echo")
        """,
    )
    code, out, err = replay(record, "--check", "--target", "loud:app", "--json")
    assert (code, json.loads(out)["same"]) == (0, True)
    assert "LOUD" in err


def test_without_check_episodes_are_shown_as_they_are_played(replay: Run, record: Path) -> None:
    code, out, _ = replay(changed(record, differing), "--limit", 2)
    assert code == 0
    assert "episode s0-1 of echo, seed 1, played against echo" in out
    assert 'step 1   {"message":"hi"}  reward 0.2' in out
    assert "differs: step 1: observation.echoed_message is 'ho' recorded, 'hi' played" in out
    assert "episode s2-1" not in out


def test_it_is_played_at_a_server_that_runs(replay: Run, record: Path) -> None:
    with served(echo) as address:
        code, out, _ = replay(record, "--check", "--base-url", f"http://{address}")
    assert code == 0
    assert f"against http://{address}: 3 the same" in out


def test_it_is_played_against_a_target(replay: Run, record: Path) -> None:
    code, _, err = replay(record, "--check", "--target", "nothing.there:app")
    assert code == 2
    assert "nothing" in err
    assert replay(record, "--check", "--target", "openenv.envs.echo.server.app:app")[0] == 0


def test_some_episodes_are_picked(replay: Run, record: Path) -> None:
    assert json.loads(replay(record, "--check", "--json", "--episode", "s1-1")[1])["episodes"] == 1
    assert json.loads(replay(record, "--check", "--json", "--environment", "echo", "--limit", 2)[1])["episodes"] == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines.clear(), "has no such episode: `openenv episodes ls"),
        (
            lambda lines: [each.update(schema="beef") for each in lines],
            "with schemas beef (openenv 1.0.0), and echo has",
        ),
        (
            lambda lines: [each.update(seed=None) for each in lines],
            "without a seed, so a repeat may differ; --unse",
        ),
        (
            lambda lines: [each.update(environment="nobody") for each in lines],
            "the record is of 'nobody', and no environment",
        ),
        (lambda lines: [each.update(environment="os:system") for each in lines], "no environment here has this name"),
    ],
)
def test_where_nothing_can_be_compared_the_exit_code_is_2(
    replay: Run, record: Path, change: Callable[[Any], None], said: str
) -> None:
    code, _, err = replay(changed(record, change), "--check")
    assert code == 2
    assert said in err
    assert len([line for line in err.splitlines() if line.startswith("error:")]) == 1


def test_what_is_no_record_is_exit_code_2(replay: Run, somewhere: Path) -> None:
    code, _, err = replay("nowhere.jsonl", "--check")
    assert code == 2
    assert "nowhere.jsonl is not there" in err
    (somewhere / "a.parquet").write_bytes(b"no")
    code, _, err = replay("a.parquet", "--check")
    assert code == 2
    assert "not a readable Parquet file" in err


def test_an_option_too_many_is_exit_code_2(replay: Run, record: Path) -> None:
    assert "not both" in replay(record, "--target", "echo", "--base-url", "http://127.0.0.1:1")[2]
    assert replay(record, "--tolerance", "-1")[0] == 2
    assert replay(record, "--concurrency", "0")[0] == 2
    code, _, err = replay(record, "--check", "--base-url", "http://127.0.0.1:1")
    assert code == 2
    assert "no answer from http://127.0.0.1:1" in err


def test_a_torn_end_is_told_and_harms_nothing(replay: Run, record: Path) -> None:
    record.write_text(record.read_text()[:-30])
    code, out, err = replay(record, "--check")
    assert code == 0
    assert "3 the same" in out
    assert "the file ends in the middle of it" in err


def test_a_damaged_line_is_told_and_is_exit_code_1(replay: Run, record: Path) -> None:
    record.write_text("what\n" + record.read_text())
    code, out, err = replay(record, "--check")
    assert code == 1
    assert "3 the same" in out
    assert "line 1: it is not JSON" in err


def test_a_folder_with_episodes_of_several_environments_is_played_against_each(replay: Run, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    asyncio.run(recorded(folder / "a.jsonl", [1, 2], ACTIONS, app=echo))
    from openenv.envs.benchmark.server.app import app_inline

    asyncio.run(recorded(folder / "b.jsonl", [1], [{"wait_seconds": 0.0}], app=app_inline))
    code, out, _ = replay(folder, "--check")
    assert (code, "against benchmark, echo: 3 the same" in out) == (0, True)


def test_a_project_in_the_current_folder_is_found_by_its_name(
    replay: Run, record: Path, somewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (somewhere / "openenv.yaml").write_text("spec_version: 1\nname: mine\napp: openenv.envs.echo.server.app:app\n")
    changed(record, lambda lines: [each.update(environment="mine") for each in lines][:0])
    code, out, _ = replay(record, "--check")
    assert (code, "against .: 3 the same" in out) == (0, True)
