"""What a shell block calls, held against what there is: options of `openenv`, verbs of make, modules and scripts."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from collections.abc import Iterator

import click

from openenv.cli.main import app

from .page import ROOT

__all__ = ["complaints", "complaints_of_mention"]

# Words after which a command begins.
_BEGINS = {";", "|", "||", "&", "&&", "(", ")", "do", "then", "else", "done", "fi", "{", "}", "!", "exec", "time"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# Of a command in a sentence: `completion SHELL`, and an option without its value.
_PLACEHOLDER = re.compile(r"'[A-Z]+' is not one of|requires an argument\.$")
_REDIRECTION = re.compile(r"[<>]+&?")


def complaints(script: str) -> Iterator[str]:
    """What is wrong with a script that nobody runs."""
    parsed = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    if parsed.returncode:
        yield parsed.stderr
        return
    for command in _commands(script):
        yield from _complaints(command)


def complaints_of_mention(code: str) -> Iterator[str]:
    """What is wrong with a command in a sentence; the value of its last option may be left out."""
    words = [word for word in shlex.split(code) if word != "..." and "*" not in word]
    while words and _ASSIGNMENT.match(words[0]):
        words.pop(0)
    return (complaint for complaint in _complaints(words) if not _PLACEHOLDER.search(complaint))


def _complaints(words: list[str]) -> Iterator[str]:
    """What is wrong with a command of ours."""
    match words:
        case ["openenv" | ".venv/bin/openenv", *arguments]:
            yield from _openenv(app, click.Context(app, info_name="openenv"), arguments)
        case ["make", *verbs]:
            makefile = (ROOT / "Makefile").read_text()
            for verb in verbs:
                if not re.match(r"-|\w+=", verb) and not re.search(rf"^{re.escape(verb)}:", makefile, re.MULTILINE):
                    yield f"make has no verb {verb}"
        case [python, "-m", module, *_] if python.endswith(("python", "python3")):
            if module != "venv" and importlib.util.find_spec(module) is None:
                yield f"there is no module {module}"
        case [python, script, *_] if python.endswith("python") and script.startswith("scripts/"):
            if not (ROOT / script).exists():
                yield f"there is no {script}"


def _commands(script: str) -> Iterator[list[str]]:
    """Each simple command, without what it is given and where its output goes."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.commenters = "#"
        command: list[str] = []
        skip = False
        for word in lexer:
            if skip:
                skip = False
            elif word in _BEGINS or set(word) <= set(";|&()"):
                yield command
                command = []
            elif _REDIRECTION.fullmatch(word):
                skip = True
            elif command or not _ASSIGNMENT.match(word):
                command.append(word)
        yield command


def _openenv(command: click.Command, context: click.Context, arguments: list[str]) -> Iterator[str]:
    """What click would say, without looking for files or calling anything."""
    place = context.command_path
    below = command.get_command(context, arguments[0]) if isinstance(command, click.Group) and arguments else None
    if below is not None:  # also of a group that takes a target of its own
        yield from _openenv(below, click.Context(below, info_name=arguments[0], parent=context), arguments[1:])
        return
    parser = command.make_parser(context)
    try:
        values, rest, _ = parser.parse_args(args=list(arguments))
    except click.UsageError as error:
        yield f"{place}: {error.format_message()}"
        return
    if isinstance(command, click.Group):
        if rest:
            inner = command.get_command(context, rest[0])
            if inner is None:
                yield f"{place} has no command {rest[0]}"
            else:
                yield from _openenv(inner, click.Context(inner, info_name=rest[0], parent=context), rest[1:])
        return
    if rest:
        yield f"{place} does not take {' '.join(rest)}"
    for parameter in command.params:
        value = values.get(parameter.name) if parameter.name else None
        if isinstance(parameter.type, (click.Choice, click.types.FuncParamType)) and isinstance(value, str):
            try:
                parameter.type_cast_value(context, value)
            except click.UsageError as error:
                yield f"{place}: {error.format_message()}"
