from __future__ import annotations

import runpy
import sys

import pytest

import openenv
from openenv.cli import main


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `openenv ...` in this process; returns its exit code, output and complaints."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["openenv", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run


def test_the_version(command):
    assert command("--version") == (0, f"openenv {openenv.__version__}\n", "")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_lists_the_commands(command, flag):
    code, output, _ = command(flag)
    assert code == 0
    for word in ("Usage: openenv", "serve", "bench", "--version"):
        assert word in output


def test_without_arguments_it_shows_its_help(command):
    code, output, complaints = command()
    assert code == 2
    assert "serve" in output + complaints


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["fly"], "fly"),
        (["serve"], "TARGET"),
        (["serve", "echo", "--wings", "2"], "--wings"),
        (["serve", "echo", "--port", "many"], "many"),
        (["serve", "echo", "more"], "more"),
    ],
)
def test_a_mistake_on_the_command_line(command, arguments, complaint):
    code, output, complaints = command(*arguments)
    assert (code, output) == (2, "")
    assert complaint in complaints
    assert "--help" in complaints


def test_an_error_of_ours_is_one_line(command):
    code, output, complaints = command("serve", "nothing")
    assert (code, output) == (1, "")
    assert complaints.startswith("error: 'nothing' is nothing to serve")
    assert complaints.count("\n") == 1


@pytest.mark.parametrize("target", ["[red]nothing[/red]", "[/x]", "100%s", "{nothing}"])
def test_an_error_shows_what_was_given_as_it_is(command, target):
    code, _, complaints = command("serve", target)
    assert code == 1
    assert repr(target) in complaints


def test_the_name_of_an_extra_is_shown(command, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("gymnasium", "openenv.adapters"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    code, _, complaints = command("serve", "gymnasium:CartPole-v1")
    assert code == 1
    assert "pip install 'openenv[gymnasium]'" in complaints


def test_an_interrupt_is_not_a_traceback(command, monkeypatch, tmp_path):
    (tmp_path / "interrupted.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, output, complaints = command("serve", "interrupted:app")
    assert (code, output, complaints.strip()) == (130, "", "")


def test_an_error_of_the_user_s_module_keeps_its_traceback(monkeypatch, tmp_path, capsys):
    (tmp_path / "broken.py").write_text("raise LookupError('inside')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["openenv", "serve", "broken:app"])
    with pytest.raises(SystemExit) as ended:
        main()
    complaints = capsys.readouterr().err
    assert ended.value.code == 1
    assert "Traceback" in complaints
    assert complaints.rstrip().splitlines()[-1].startswith("error: broken:app: importing broken failed: LookupError")


def test_python_m_openenv_is_the_same(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["somewhere/__main__.py", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("openenv", run_name="__main__")
    assert not ended.value.code
    assert capsys.readouterr().out == f"openenv {openenv.__version__}\n"


def test_importing_the_main_module_runs_nothing():
    runpy.run_module("openenv.__main__", run_name="imported")
