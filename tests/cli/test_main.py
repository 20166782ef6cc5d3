from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

import openenv
from openenv.cli import main
from openenv.cli.main import app


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


def test_the_overview_is_grouped(command):
    output = command("--help")[1]
    places = [output.index(f"\n{heading}:\n") for heading in ("Begin", "Publish", "Measure", "Operate")]
    assert places == sorted(places)
    commands = output[places[0] :]
    order = [commands.index(f"  {name} ") for name in ("init", "serve", "validate", "push", "bench", "deploy")]
    assert order == sorted(order)
    assert "worker" not in output


def every_command(
    found: click.Command, context: click.Context
) -> Iterator[tuple[list[str], click.Command, click.Context]]:
    """A command and all below it that are not hidden, with the words that name them."""
    yield context.command_path.split(), found, context
    if isinstance(found, click.Group):
        for name in found.list_commands(context):
            inner = found.get_command(context, name)
            assert inner is not None
            if not inner.hidden and inner.add_help_option:  # a wheel lacks some of `openenv bench`
                yield from every_command(inner, click.Context(inner, parent=context, info_name=name))


COMMANDS = list(every_command(app, click.Context(app, info_name="openenv", **app.context_settings)))


@pytest.mark.parametrize(("words", "found", "context"), COMMANDS, ids=[" ".join(words) for words, _, _ in COMMANDS])
def test_every_help_has_examples_of_its_command_with_options_that_there_are(words, found, context):
    text = found.get_help(context)
    _, _, examples = text.partition("Examples:\n")
    lines = [line.strip() for line in examples.partition("\n\n")[0].splitlines()]
    assert lines
    named = [line for line in lines if " ".join(words) in line or words == ["openenv"]]
    assert named
    options = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for line in named:
        for word in line.partition(" ".join(words))[2].replace(")", " ").replace('"', " ").split():
            if word in {"|", ">"}:
                break
            if word.startswith("-") and not isinstance(found, click.Group):
                assert word in options, line


@pytest.mark.parametrize("width", [80, 140])
def test_no_line_of_a_help_is_wider_than_the_terminal(width):
    options = {**app.context_settings, "terminal_width": min(width, app.context_settings["max_content_width"])}
    wide = [
        (" ".join(words), line)
        for words, found, context in every_command(app, click.Context(app, info_name="openenv", **options))
        for line in found.get_help(context).splitlines()
        if len(line) > width
    ]
    assert wide == []


def test_variables_without_an_option_have_a_line_each(command):
    output = command("serve", "--help")[1]
    _, _, variables = output.partition("\nFurther variables:\n")
    assert {"OPENENV_WORKER_RESTARTS", "OPENENV_MAX_BATCH"} < {line.split()[0] for line in variables.splitlines()}


def test_the_overview_hides_the_commands_that_hide_themselves():
    table = [lazy for commands in app.sections.values() for lazy in commands]
    assert all(lazy.hidden == lazy.load().hidden for lazy in table)


def test_the_overview_and_a_new_project_wait_for_no_library():
    code = (
        "import sys, openenv.cli.main, openenv.cli.init\n"
        "print(*sorted({'pydantic', 'fastapi', 'asyncio', 'rich', 'httpx'} & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == []


def test_without_arguments_it_shows_its_help(command):
    code, output, complaints = command()
    assert code == 2
    assert "serve" in output + complaints


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["fly"], "fly"),
        (["contract", "dump", "--ulr", "x"], "--url"),
        (["srve"], "openenv serve"),
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
    assert complaints.startswith("error: ")
    assert complaints.count("\n") == 1


@pytest.mark.parametrize(("typed", "meant"), [("valdate", "validate"), ("int", "init"), ("benchmark", "bench")])
def test_a_command_that_is_not_there_names_the_one_that_was_meant(command, typed, meant):
    assert f"did you mean `openenv {meant}`?" in command(typed)[2]


def test_a_command_like_no_other_names_all(command):
    complaints = command("xyzzy")[2]
    assert "validate" in complaints
    assert "worker" not in complaints


@pytest.mark.parametrize("target", [[], ["."]])
def test_a_folder_that_is_no_project_says_how_to_begin_one(command, monkeypatch, tmp_path, target):
    monkeypatch.chdir(tmp_path)
    code, _, complaints = command("serve", *target)
    assert code == 1
    assert str(tmp_path) in complaints
    assert "openenv init NAME" in complaints


def test_a_bundled_environment_that_is_misspelt(command):
    assert "did you mean echo?" in command("serve", "ecko")[2]


def test_an_error_of_ours_is_one_line(command):
    code, output, complaints = command("serve", "nothing")
    assert (code, output) == (1, "")
    assert complaints.startswith("error: 'nothing' cannot be served")
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
