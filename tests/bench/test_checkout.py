"""Commands of `openenv bench` that are in `benchmarks/` alone: where there is a checkout, and where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import openenv
from openenv.bench.scale import ScaleResult
from openenv.cli import bench
from openenv.cli.main import app
from openenv.errors import MissingExtra, UsageError

from .rows import summary

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An openenv as `pip install openenv` leaves it."""
    monkeypatch.setattr(openenv, "__file__", str(tmp_path / "lib" / "site-packages" / "openenv" / "__init__.py"))


def test_this_is_a_checkout() -> None:
    assert bench.checkout() == ROOT


@pytest.mark.usefixtures("wheel")
def test_a_wheel_is_none() -> None:
    assert bench.checkout() is None


@pytest.mark.parametrize("name", bench.CHECKOUT_COMMANDS)
def test_a_command_of_the_checkout_has_the_help_of_the_overview(name: str) -> None:
    assert bench.CHECKOUT_COMMANDS[name] in run("--help").output
    found = bench.app.get_command(bench.app.make_context("bench", [], resilient_parsing=True), name)
    assert found is not None
    assert found.short_help == bench.CHECKOUT_COMMANDS[name]


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("name", bench.CHECKOUT_COMMANDS)
@pytest.mark.parametrize("further", [[], ["--help"], ["--unknown", "3", "file.json"]], ids=" ".join)
def test_a_wheel_says_where_a_command_is(name: str, further: list[str]) -> None:
    error = run(name, *further).exception
    assert isinstance(error, UsageError)
    assert f"`openenv bench {name}` is not in the wheel" in str(error)
    assert "folder benchmarks/" in str(error)
    assert bench.CHECKOUT_COMMANDS[name] in run("--help").output


def test_without_benchmarks_the_command_line_says_one_line_and_has_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "openenv").symlink_to(ROOT / "src" / "openenv")
    code = (
        "import openenv, sys; openenv.__file__ = '/a/b/openenv/__init__.py'; sys.argv[1:] = ['bench', 'demo', '-x'];"
    )
    code += "from openenv.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: `openenv bench demo` is not in the wheel")


def test_another_package_of_that_name_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "commands.py").touch()
    code = (
        "import sys, benchmarks.commands; from pathlib import Path; from openenv.cli import bench;"
        f"bench._from_checkout(Path({str(tmp_path)!r}), 'commands')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert "is another package `benchmarks`" in done.stderr


def test_a_checkout_asks_for_matplotlib_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = run("scale", "--serve", "echo").exception
    assert isinstance(error, MissingExtra)
    assert "matplotlib" in str(error)


@pytest.mark.usefixtures("wheel")
def test_a_wheel_measures_without_matplotlib_and_names_the_command_for_the_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("openenv.bench.scale.measure_scale", lambda *_, **__: ScaleResult(2, [summary(4)]))
    monkeypatch.setattr("openenv.bench.served.probe", lambda url: None)
    monkeypatch.chdir(tmp_path)
    done = run("scale", "--url", "http://localhost:1", "--output-dir", "out")
    assert done.exit_code == 0, done.output
    assert "written: out/result.json, summary.csv, raw.jsonl" in done.output
    assert "`openenv bench report out` in a checkout" in done.output


class TestReport:
    def test_a_folder_without_a_result_is_refused(self, tmp_path: Path) -> None:
        error = run("report", str(tmp_path)).exception
        assert isinstance(error, UsageError)
        assert f"cannot read {tmp_path}/result.json" in str(error)

    @pytest.mark.parametrize("document", ["no json", "{}", "[]", json.dumps({"bench": "steps", "trials": []})])
    def test_another_file_is_refused(self, tmp_path: Path, document: str) -> None:
        (tmp_path / "result.json").write_text(document)
        (tmp_path / "raw.jsonl").touch()
        error = run("report", str(tmp_path)).exception
        assert isinstance(error, UsageError)
        assert "no result of `openenv bench scale`" in str(error)
