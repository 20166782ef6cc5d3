"""`openenv contract`: the types of an environment, saved in a file and compared with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..errors import OpenEnvError, ProtocolViolation, UsageError
from ..protocol.contract import Contract, differences
from ..protocol.typescript import typescript_of
from .terminal import FILE, NoAnswer, complete_target, together

DIFFERS = 1


@click.group(name="contract")
def contract() -> None:
    """Writes the JSON Schemas of an environment's action, observation and state to a file, and compares them with it:
    CI then finds a change that breaks clients before it is released.

    \b
    Examples:
      openenv contract dump . -o contract.json
      openenv contract check . contract.json
      openenv contract types . -o contract.ts
    """


_of_environment = together(
    click.option("--url", help="Read the types of the server at this URL instead of a target."),
    click.option(
        "--api-key", envvar="OPENENV_API_KEY", help="API key for that server, of any scope. [OPENENV_API_KEY]"
    ),
)


@contract.command(short_help="Print the contract, or write it to a file.")
@click.argument("target", required=False, shell_complete=complete_target)
@_of_environment
@click.option("-o", "--output", type=FILE, help="Write the contract to this file instead of printing it.")
def dump(target: str | None, url: str | None, api_key: str | None, output: Path | None) -> None:
    """Prints the contract of TARGET (as for `openenv serve`), or of the server at --url, as JSON: the schemas, their
    hash, and the version of openenv. Exit code 2: the environment was not found.

    \b
    Examples:
      openenv contract dump . -o contract.json
      openenv contract dump --url http://127.0.0.1:8000
    """
    with _answered():
        found = Contract(_schemas_of(target, url, api_key))
    document = {"openenv": __version__, "hash": found.hash, "schemas": found.schemas}
    _write(json.dumps(document, indent=2) + "\n", output)


@contract.command(short_help="Write the types for a client in TypeScript.")
@click.argument("target", required=False, shell_complete=complete_target)
@_of_environment
@click.option(
    "--language", type=click.Choice(["typescript"]), default="typescript", help="Language of the types. [typescript]"
)
@click.option("-o", "--output", type=FILE, help="Write the types to this file instead of printing them.")
def types(target: str | None, url: str | None, api_key: str | None, language: str, output: Path | None) -> None:
    """Prints the types of TARGET (as for `openenv serve`), or of the server at --url, as a module for `connect` of
    the npm package openenv: action, observation and state, with their descriptions. Exit code 2: the environment was
    not found.

    \b
    Examples:
      openenv contract types . -o contract.ts
      openenv contract types --url http://127.0.0.1:8000 --language typescript
    """
    with _answered():
        schemas = _schemas_of(target, url, api_key)
        text = typescript_of(schemas, Contract(schemas).hash)
    _write(text, output)


@contract.command(short_help="Check that an environment still matches a saved contract.")
@click.argument("arguments", nargs=-1, metavar="[TARGET] FILE", required=True)
@_of_environment
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of lines.")
def check(arguments: tuple[str, ...], url: str | None, api_key: str | None, as_json: bool) -> None:
    """Compares TARGET, or the server at --url, with the contract that `openenv contract dump` wrote to FILE, and
    lists every field that differs. Titles, descriptions, defaults and order are ignored.

    Exit code 0: the same; 1: they differ; 2: no comparison (no such file, no such environment, no answer).

    \b
    Examples:
      openenv contract check . contract.json
      openenv contract check --url http://127.0.0.1:8000 contract.json --json
    """
    if len(arguments) != 2 - bool(url):
        raise click.UsageError("give TARGET and FILE, or --url URL and FILE")
    target = None if url else arguments[0]
    with _answered():
        kept, found = _read(Path(arguments[-1])), Contract(_schemas_of(target, url, api_key))
    differing = differences(found, kept)
    unknown = [name for name, schema in kept.schemas.items() if (schema is None) != (found.schemas[name] is None)]
    if as_json:
        report = {
            "same": not differing,
            "hash": {"now": found.hash, "file": kept.hash},
            "differences": [{"place": each.place, "now": each.mine, "file": each.theirs} for each in differing],
            "not_compared": unknown,
        }
        print(json.dumps(report))
    else:
        for name in unknown:
            print(
                f"{name}: not compared, since it has a schema only {'now' if found.schemas[name] else 'in the file'}"
            )
        for each in differing:
            print(each.sentence("now", f"in {arguments[-1]}"))
        print(f"{len(differing)} different" if differing else f"the same ({found.hash})")
    if differing:
        raise click.exceptions.Exit(DIFFERS)


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except OpenEnvError as error:
        raise NoAnswer(error.message) from error


def _read(file: Path) -> Contract:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{file} is not valid JSON: {error}") from None
    schemas = document.get("schemas") if isinstance(document, dict) else None
    if not isinstance(schemas, dict):
        raise UsageError(f"{file} contains no schemas: write it with `openenv contract dump -o {file}`")
    try:
        return Contract(schemas)
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from None


def _schemas_of(target: str | None, url: str | None, api_key: str | None) -> dict[str, Any]:
    """The JSON Schemas of an environment, with descriptions and defaults. A `Contract` can be made of them."""
    if (target is None) == (url is None):
        raise UsageError("give a target, or the --url of a server")
    if url is None:
        from ..project.target import load

        server = getattr(getattr(load(str(target)), "state", None), "openenv", None)
        if server is None:
            raise UsageError(f"the types of {target} are unknown: the app was not made by create_app")
        return {name: server.schemas[name] for name, known in server.contract.schemas.items() if known is not None}
    from ..replay import schemas_at

    found = schemas_at(url, api_key)
    try:
        Contract(found)
    except ValueError as error:
        raise ProtocolViolation(f"{url}/schema did not return a JSON Schema: {error}") from None
    return found


def _write(text: str, output: Path | None) -> None:
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NoAnswer(f"{output} cannot be written: {error.strerror}") from None
