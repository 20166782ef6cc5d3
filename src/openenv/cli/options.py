"""What the options of several commands have in common: types, completion of values, groups, `NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ..errors import UsageError
from ..providers.redaction import redact, secrets_of
from ..settings import variable_here

Command = TypeVar("Command", bound=Callable[..., Any])
COUNT = click.IntRange(min=1)
PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one, for commands that have them in common."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _targets(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Bundled environments, and folders. Not `type="dir"`: shells then offer nothing else."""
    from ..project.target import bundled

    names = [CompletionItem(name, help="comes with openenv") for name in bundled() if name.startswith(incomplete)]
    base, slash, start = incomplete.rpartition("/")
    try:
        folders = [
            CompletionItem(f"{base}{slash}{place.name}")
            for place in sorted(Path(f"{base}{slash}" or ".").expanduser().iterdir())
            if place.name.startswith(start) and place.is_dir() and (start or not place.name.startswith("."))
        ]
    except (OSError, RuntimeError):  # no folder to look into, or no such user (~user/)
        folders = []
    return names + folders


TARGET: Complete = _targets
"""For arguments that are targets, as those of `openenv serve`."""


def variable(text: str) -> tuple[str, str]:
    """The name and value of `NAME=VALUE`; a name alone has the value that it has here.

    Raises:
        UsageError: It is not set here; or a secret stands on the command line.
    """
    name, given, value = text.partition("=")
    if given:
        if secrets_of({name: value}):
            raise UsageError(f"a command line can be read by everybody: set {name} here, and give --env {name} alone")
        return name, value
    here = variable_here(name)
    if here is None:
        raise UsageError(f"--env {name}: it is not set here; give --env {name}=VALUE")
    return name, here


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Names with their values, as they are given on a command line; a name alone has the value that it has here.

    Raises:
        UsageError: It is not set here; or it is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, given, value = text.partition("=")
        here = value if given else variable_here(name)
        if not name or here is None:
            raise UsageError(f"{option} {redact(name, ())}: it is not set here; set it, or write {option} NAME=VALUE")
        if found.setdefault(name, here) != here:
            raise UsageError(f"{option} {name} is given twice, with two values: leave out one")
    return found


def yaml_pairs(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """`NAME=VALUE`, the value as YAML has it: numbers, lists, true and false are such."""
    import yaml

    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{option} is {text!r}: write NAME=VALUE")
        if secrets_of({name: value}):
            raise UsageError(
                f"{option} {name}: everybody can read a command line, and results repeat it: set a variable "
                "in its place (HF_TOKEN, KUBECONFIG)"
            )
        try:
            found[name.replace("-", "_")] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"{option} {name}: {error}") from None
    return found
