from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openenv.cli import main
from openenv.cli import validate as command
from openenv.project.checks import Finding, Level, Outcome, ValidationReport
from openenv.project.checks.findings import InternalFault
from openenv.server import create_app
from openenv.testing.misbehaving import Mortal, Said, Say

from ..corpus import BROKEN, GOOD
from ..server.wires import served

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def validate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `openenv validate ...` in this process; returns its exit code, output and complaints."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["openenv", "validate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def project_of(name: str, folder: Path) -> str:
    return str(next(case for case in (*BROKEN, *GOOD) if case.name == name).write(folder))


@pytest.mark.real
def test_a_good_environment_passes_with_a_line_for_each_check(validate: Run) -> None:
    code, out, err = validate("echo", "--level", "runtime")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert any(line.startswith("pass  runtime.seed") for line in lines)
    assert any(line.startswith("skip  runtime.after-done") for line in lines)
    assert lines[-1].startswith("pass  echo: ")


@pytest.mark.real
def test_a_fault_fails_and_says_what_was_seen_and_what_to_do(validate: Run, tmp_path: Path) -> None:
    code, out, _ = validate(project_of("dockerfile_port", tmp_path), "--level", "static")
    assert code == 1
    assert "FAIL  static.port" in out
    assert "saw:  server/Dockerfile, line 9: CMD has port 7860" in out
    assert "fix:  " in out
    assert "1 failed" in out.splitlines()[-1]


@pytest.mark.real
def test_the_report_as_json_is_all_there_is_on_stdout(validate: Run, tmp_path: Path) -> None:
    kept = tmp_path / "report.json"
    code, out, err = validate(project_of("readme_port", tmp_path), "--level=static", "--json", "-o", str(kept))
    assert (code, err) == (1, "")
    report = json.loads(out)
    assert report == json.loads(kept.read_text(encoding="utf-8"))
    assert report["passed"] is False
    (failed,) = [each for each in report["findings"] if each["outcome"] == "fail"]
    assert failed["check"] == "static.readme"
    assert set(failed) == {"check", "level", "outcome", "saw", "mend", "seconds"}


@pytest.mark.real
def test_a_warning_passes(validate: Run, tmp_path: Path) -> None:
    code, out, _ = validate(project_of("dockerfile_no_healthcheck", tmp_path), "--level", "static")
    assert code == 0
    assert "warn  static.healthcheck" in out
    assert "1 warned" in out.splitlines()[-1]


@pytest.mark.parametrize("target", [(), ("gone",), ("no_such_environment",), ("gone.app:app",)])
def test_what_is_no_environment_is_exit_code_2(
    validate: Run, target: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = validate(*target)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    code, out, err = validate(*target, "--json")
    assert code == 2
    assert json.loads(out)["error"] in err


def test_an_error_of_a_check_is_exit_code_3(validate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> ValidationReport:
        raise InternalFault("runtime.seed", "KeyError: 'lost'")

    monkeypatch.setattr(command, "examine", broken)
    code, out, err = validate("echo")
    assert (code, out) == (3, "")
    assert "runtime.seed" in err
    assert "error of openenv" in err
    code, out, _ = validate("echo", "--json")
    assert code == 3
    assert "runtime.seed" in json.loads(out)["error"]


def test_options_reach_the_examination(validate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def examined(target: str, level: Level, timeout_s: float, **more: Any) -> ValidationReport:
        asked.append((target, level, timeout_s, more["sessions"], more["episodes"]))
        finding = Finding(check="static.it", level=Level.STATIC, outcome=Outcome.SKIPPED, saw="why " * 50)
        more["begun"]("static.it")
        more["heard"](finding)
        return ValidationReport(target=target, findings=[finding])

    monkeypatch.setattr(command, "examine", examined)
    code, out, _ = validate("--timeout", "2.5", "--sessions", "8", "--episodes", "50")
    assert code == 0
    assert out.count("why") == 50
    # As scripts call the released package's command.
    assert validate("echo", "--level", "semantic", "--skip-build", "--local", "--policy", "v1")[0] == 0
    assert asked == [(".", Level.LOAD, 2.5, 8, 50), ("echo", Level.SEMANTIC, 10.0, 64, 1000)]


@pytest.mark.real
def test_a_server_is_checked_by_its_address(validate: Run) -> None:
    with served(create_app(Mortal, Say, Said)) as url:
        for arguments in (("--url", url), (url,)):
            code, out, _ = validate(*arguments)
            assert code == 0, out
            assert "pass  url.health" in out


def test_a_target_and_an_address_are_one_too_many(validate: Run) -> None:
    code, _, err = validate("echo", "--url", "http://127.0.0.1:1")
    assert code == 2
    assert "not both" in err


def test_a_report_that_cannot_be_written_is_told(
    validate: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "examine", lambda target, *_, **__: ValidationReport(target=target, findings=[]))
    code, _, err = validate("echo", "-o", str(tmp_path / "gone" / "report.json"))
    assert code == 1
    assert "cannot be written" in err
