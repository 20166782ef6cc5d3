"""Commands that are refused, and how results look. `tests/real/test_bench_*.py` runs the commands."""

import io
import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks.compare import compare
from benchmarks.result import Result
from benchmarks.tables import compare_table, demo_table
from openenv.bench.batch import BatchSummary
from openenv.cli import display as module
from openenv.cli.bench import app
from openenv.cli.display import Display, milliseconds, scale_table, step_table
from openenv.errors import UsageError

from .rows import cost, failed, play, summary, workload


def shown(*parts, width=110):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


@pytest.fixture
def log(monkeypatch):
    """What a display writes where there is no terminal."""
    file = io.StringIO()
    monkeypatch.setattr(module, "console", lambda stderr: Console(file=file, highlight=False, width=110))
    return file


@pytest.fixture
def terminal(monkeypatch):
    """What a display writes to a terminal."""
    file = io.StringIO()
    monkeypatch.setattr(
        module, "console", lambda stderr: Console(file=file, force_terminal=True, highlight=False, width=110)
    )
    return file


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scale"], "give one of --url ADDRESS, --serve TARGET and --provider"),
        (["scale", "--url", "localhost:1", "--serve", "echo"], "more than one server: give one of --url"),
        (["scale", "--provider", "local", "--serve", "echo"], "more than one server: give one of --url"),
        (["scale", "--provider", "local"], "--image and --target"),
        (["scale", "--provider", "local", "--image", "a", "--target", "b"], "--image and --target"),
        (["scale", "--serve", "echo", "--replicas", "2"], "--replicas needs --provider"),
        (["scale", "--serve", "echo", "--option", "a=b"], "--option needs --provider"),
        (["scale", "--provider", "local", "--target", "echo", "--option", "b"], "NAME=VALUE"),
        (["scale", "--serve", "echo", "--requests-grid", "3", "--expected-hosts", "4"], "cannot reach 4 hosts"),
        (["steps"], "either --url"),
        (["scale", "--serve", "echo", "--requests-grid", "1,many"], "--requests-grid is '1,many'"),
        (["scale", "--serve", "echo", "--wait-grid", ""], "--wait-grid is ''"),
        (["scale", "--serve", "echo", "--timeout", "0.5"], "--timeout"),
        (["scale", "--serve", "echo", "--requests-grid", "9999999"], "--processes"),
        (["steps", "--serve", "echo", "--action", "{"], "--action is not valid JSON"),
        (["steps", "--serve", "echo", "--action", "[1]"], "must be a JSON object"),
        (["steps", "--url", "localhost:1", "--server-pid", "99999999"], "no process 99999999"),
        (["demo", "--sessions", "9999999"], "too many"),
        (["steps", "--serve", "echo", "--sessions", "9999999"], "--processes"),
        (["steps", "--serve", "echo", "--vector", "9999999"], "--processes"),
        (["frames", "--shape", "84xa"], "--shape is '84xa'"),
        (["frames", "--shape", "84x0"], "--shape is 84x0"),
        (["frames", "--env", "Nowhere-v0"], "cannot make Nowhere-v0"),
        (["frames", "--env", "Blackjack-v1"], "whose observations are an array"),
        (["compare", "/no/such.json", "/no/other.json"], "cannot read /no/such.json"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(arguments, message):
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, UsageError)
    assert message in result.exception.message


def test_worlds_of_mujoco_need_mujoco(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    result = CliRunner().invoke(app, ["batched", "--world", "pendulums"])
    assert isinstance(result.exception, UsageError)
    assert "pip install mujoco" in result.exception.message


def test_an_unknown_mode_is_refused():
    result = CliRunner().invoke(app, ["scale", "--serve", "echo", "--mode", "smoke"])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (12.3456, "12,346"), (0.1234, "123"), (0.01234, "12.3"), (0.0012, "1.20"), (0.0, "0.00")],
)
def test_milliseconds_have_three_digits(seconds, text):
    assert milliseconds(seconds) == text


def test_the_demo_is_one_table_that_fits_a_terminal():
    names = ("benchmark", "CartPole-v1", "Blackjack-v1")
    text = shown(demo_table([workload(name) for name in names]), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for words in ("connect", "reset", "step", "total", "sessions/s", "steps/s", "KB/session", "P50", "P95", "P99"):
        assert words in text
    assert re.search(r"step P99 +│ +3\.0 │ +3\.0 │ +3\.0 ", text)


def test_the_demo_table_shows_failures():
    assert "75.00" in shown(demo_table([workload("benchmark", [*(play(n) for n in range(3)), failed_play()])]))


def test_batches_fit_a_terminal():
    batches = [summary(16_384, wait=wait, repetition=2, total=98.7654) for wait in (0.1, 10.0)]
    text = shown(scale_table(batches), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert text.count("16,384") >= 2
    assert text.count("98,765") == 6


def test_batches_are_a_line_each():
    text = shown(scale_table([summary(2048), summary(4096, successful=2048, repetition=2)]))
    assert re.search(r"2,048 .* 100\.00 .* 1,500 .* 2\.00", text)
    assert re.search(r"4,096 .* 2 .* 50\.00", text)
    assert "…" not in text
    assert len(BatchSummary.columns()) > 20  # the table shows a part of them


def test_a_step_is_priced_on_both_sides():
    text = shown(step_table(cost()))
    for words in ("100,000", "12.4 ms", "13.3 us", "35.3 us", "14.5 KiB"):
        assert words in text
    assert "empty server" not in text


def test_an_unknown_price_says_how_to_learn_it():
    text = shown(step_table(cost(server_us_per_step=None, kib_per_session=None)))
    assert "--server-pid" in text
    assert re.search(r"both together +│ +- ", text)
    assert re.search(r"memory per session +│ +- ", text)


def test_the_floor_stands_beside_with_the_ratio():
    text = shown(step_table(cost(), cost(server_us_per_step=6.63, kib_per_session=None)))
    assert re.search(r"server CPU per step +│ +13\.3 us +│ +6\.6 us +│ +2\.00", text)
    assert re.search(r"memory per session +│ +14\.5 KiB +│ +- +│ +-", text)


def result(figures, name="", cases=("",)):
    trials = [asdict(cost(**{figure: value})) for figure, values in figures.items() for value in values]
    return Result(Path(name), "steps", {}, dict.fromkeys(cases, trials))


def test_a_comparison_says_it_plainly():
    before, after = result({"p50": (0.010, 0.0101)}), result({"p50": (0.005, 0.00501)})
    text = shown(compare_table(compare(before, after)))
    assert re.search(r"latency P50 +│ +10\.\d ms +│ +5\.0\d ms +│ +0\.49\d +│ +0\.4\d+ to 0\.5\d+ +│ +faster", text)
    assert re.search(r"latency P99 .* no difference shown", text)


def test_cases_of_a_comparison_are_named_once():
    several = result({"p50": (0.010, 0.0101)}, cases=("64 sessions", "128 sessions"))
    text = shown(compare_table(compare(several, several)))
    assert text.count("64 sessions") == text.count("128 sessions") == 1


class TestDisplay:
    def test_a_log_gets_a_line_for_each_stage_and_the_last_state_of_each_bar(self, log):
        with Display() as display:
            display.say("serving echo")
            display.show("storm", {"connect": (1, 2000), "close": (0, 2000)})
            display.show("storm", {"connect": (2000, 2000), "close": (1999, 2000)}, "1 failed")
            display.say("done")
        assert log.getvalue().splitlines() == [
            "· serving echo",
            "  storm: connect 2,000/2,000, close 1,999/2,000, 1 failed",
            "· done",
        ]

    def test_a_log_gets_a_line_now_and_then(self, log, monkeypatch):
        monkeypatch.setattr(module, "LOG_PERIOD_S", 0.0)
        with Display() as display:
            for count in range(3):
                display.show("storm", {"connect": (count, 2)})
        assert log.getvalue().splitlines() == [f"  storm: connect {count}/2" for count in range(3)]

    def test_another_label_begins_anew(self, log):
        with Display() as display:
            display.show("one", {"connect": (1, 1)})
            display.show("two", {"connect": (0, 5)})
        assert log.getvalue().splitlines() == ["  one: connect 1/1", "  two: connect 0/5"]

    def test_nothing_to_show_is_nothing(self, log):
        with Display():
            pass
        assert log.getvalue() == ""

    def test_a_terminal_gets_bars(self, terminal):
        with Display() as display:
            display.show("storm", {"connect": (7, 9), "reset": (3, 9)}, "2 failed")
            display.show("storm", {"connect": (9, 9), "reset": (9, 9)})
        text = terminal.getvalue()
        assert "━" in text
        assert "7/9" in text
        assert "storm: connect 9/9, reset 9/9" in text


def failed_play():
    row = play(3)
    row.success, row.error_type, row.error_message = False, "TimeoutError", str(failed().error_message)
    return row
