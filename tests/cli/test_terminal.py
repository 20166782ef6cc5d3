"""What a command says while it works."""

from __future__ import annotations

import io
import sys

import pytest

from openenv.cli.terminal import ProgressBar, cut


class Terminal(io.StringIO):
    """A terminal, as far as anybody asks."""

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_is_a_line_for_each_thing(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as progress:
        assert not progress.live
        progress.say("begun")
        progress.show("one", 0, 2, "a" * 500)
        progress.show("one", 1, 2, "too soon for another")
        progress.show("two", 1, 2)
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert lines[0] == "begun"
    assert lines[1].startswith("one: aaa")
    assert lines[1].endswith("aaa...")
    assert len(lines[1]) < 100
    assert lines[2:] == ["two"]


def test_at_a_terminal_there_is_a_bar_and_what_was_said_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressBar() as progress:
        assert progress.live
        progress.say("[bold] is no markup")
        progress.show("step 1/2", 1, 2, "[/] neither")
        progress.show("step 2/2", 0, 0)
    assert "[bold] is no markup" in terminal.getvalue()


def test_a_terminal_without_rich_has_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich", None)
    with ProgressBar() as progress:
        assert not progress.live
        progress.show("one", 0, 2, "note")
    assert capsys.readouterr().err == "one: note\n"


@pytest.mark.parametrize(
    ("text", "shown"), [("short", "short"), ("of ten....", "of ten...."), ("of eleven..", "of elev...")]
)
def test_what_is_cut_ends_with_an_ellipsis(text: str, shown: str) -> None:
    assert cut(text, 10) == shown
