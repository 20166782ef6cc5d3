"""`openenv list`, `openenv discover` and `openenv catalog`: find environments, by name or by what they are for."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import click

from ..errors import MissingExtra, UsageError
from ..project.catalog import EnvironmentEntry, entries
from .terminal import FILE, FOLDER, PATH, ProgressBar, pairs, print_json, table_lines, tame

# Packages may import slow modules.
IMPORT_S = 60.0
AT_ONCE = 4
# The package's code may print, hang, and end the process that runs it.
_CHILD = """
import json, sys
package, sys.path[:] = sys.argv[1], json.loads(sys.argv[2])
from openenv.errors import OpenEnvError
from openenv.project import import_module
try:
    import_module(package, package)
except OpenEnvError as error:
    sys.exit("\\n" + " ".join(error.message.split()))
"""


class ListedEnvironment(NamedTuple):
    """An environment, and whether it can be used.

    Attributes:
        entry: The catalog entry.
        description: One line about it.
        problem: Why its package cannot be imported or its manifest cannot be read; None if it can be used.
    """

    entry: EnvironmentEntry
    description: str
    problem: str | None

    def facts(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        entry = self.entry
        return {
            "name": entry.key,
            "package": entry.package,
            "distribution": entry.distribution,
            "version": entry.version,
            "description": self.description,
            "folder": str(entry.folder),
            "manifest": None if entry.manifest_path is None else str(entry.manifest_path),
            "bundled": entry.distribution is None,
            "importable": self.problem is None,
            "problem": self.problem,
        }


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document instead of a table.")
def list_(as_json: bool) -> None:
    """Lists the installed environments and those that come with openenv: name (as for AutoEnv.from_env), version,
    description and folder. Each package is imported once, and an import that fails is shown with its reason. The
    exit code is 0 in both cases.

    \b
    Examples:
      openenv list
      openenv list --json
    """
    found = asyncio.run(_listed(entries()))
    if as_json:
        print_json({"environments": [each.facts() for each in found]})
        return
    if not found:
        click.echo("no environments: install one (pip install openenv-NAME), or create one with `openenv init NAME`")
        return
    entry_rows = [
        (each.entry.key, each.entry.version or "-", each.entry.distribution or "comes with openenv", each.description)
        for each in found
    ]
    indent = " " * max(len(key) for key, *_ in entry_rows)
    for line, listed in zip(table_lines(entry_rows), found, strict=True):
        click.echo(line)
        click.echo(f"{indent}  {listed.entry.folder}")
        if listed.problem is not None:
            click.echo(f"{indent}  {click.style('cannot be used:', fg='red')} {listed.problem}")


async def _listed(there: Sequence[EnvironmentEntry]) -> list[ListedEnvironment]:
    """Imports each package once, some at the same time."""
    gate = asyncio.Semaphore(AT_ONCE)
    found: list[ListedEnvironment] = []
    with ProgressBar() as progress:
        async with asyncio.TaskGroup() as group:
            for task in [group.create_task(_check(entry, gate)) for entry in there]:
                found.append(await task)
                if progress.live:
                    progress.show("importing", len(found), len(there), found[-1].entry.key)
    return found


async def _check(entry: EnvironmentEntry, gate: asyncio.Semaphore) -> ListedEnvironment:
    """Checks in a separate process whether an environment can be imported."""
    try:
        manifest = entry.manifest
    except UsageError as error:
        return ListedEnvironment(entry, entry.summary, error.message)
    description = (manifest.description if manifest else None) or entry.summary
    async with gate:
        problem = await _import_problem(entry.package)
    return ListedEnvironment(entry, " ".join(description.split()), problem)


async def _import_problem(package: str) -> str | None:
    """Why a package cannot be imported; None if it can."""
    command = [sys.executable, "-P", "-c", _CHILD, package, json.dumps(sys.path)]
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
    try:
        async with asyncio.timeout(IMPORT_S):
            _, said = await process.communicate()
    except TimeoutError:
        return f"importing {package} takes more than {IMPORT_S:g} s"
    finally:
        if process.returncode is None:  # also after Ctrl-C, which cancels this
            process.kill()
            await process.wait()
    code = await process.wait()
    if code == 0:
        return None
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"importing {package} ended the process {how}"


_CATALOG = "The file of a catalog (`openenv catalog build`)."


@click.command()
@click.argument("query", default="")
@click.option("--catalog", type=FILE, help=f"{_CATALOG} [default: this machine]")
@click.option("--local", type=FOLDER, default=Path(), show_default="this folder", help="Search this folder, too.")
@click.option("--hub", is_flag=True, help="Search the Spaces of the Hub, too.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Most results.")
@click.option("--filter", "filters", multiple=True, metavar="FIELD=VALUE", help="A value that results must have.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document.")
def discover(
    query: str, catalog: Path | None, local: Path, hub: bool, limit: int, filters: tuple[str, ...], as_json: bool
) -> None:
    """Finds environments that have words of QUERY in name, description or tags; without a QUERY, all. Searches what
    is installed and the projects in this folder, or a catalog. Only metadata is read: nothing is imported, nothing
    runs.

    \b
    Examples:
      openenv discover "word game"
      openenv discover --hub coding --filter license=mit
      openenv discover chess --catalog catalog.json --json
    """
    chosen = pairs("--filter", filters)
    if catalog is None:
        _discover_here(query, local, hub, chosen, limit, as_json)
        return
    from ..discovery import load_catalog, search_catalog

    snapshot = load_catalog(catalog)
    matches = search_catalog(snapshot, query, filters=chosen, limit=limit)
    if as_json:
        results = [
            {**each.entry.model_dump(by_alias=True, exclude_none=True, mode="json"), "score": each.score}
            for each in matches
        ]
        print_json({"results": results, "snapshot": snapshot.digest, "metadataOnly": True})
        return
    for entry in (each.entry for each in matches):
        card = entry.data
        _show(
            entry.display_name, card.description, f"{card.source.uri} {card.source.path}", f"license: {card.license}"
        )
        click.echo(f"  {entry.identifier}")
    _say_if_none(len(matches), query)


def _discover_here(query: str, folder: Path, hub: bool, filters: dict[str, str], limit: int, as_json: bool) -> None:
    from ..discovery import sources

    with ExitStack() as stack:
        found = chain(sources.installed(), sources.local(folder))
        if hub:
            from ..project.hub import Hub

            found = chain(found, sources.spaces(stack.enter_context(Hub()), query))
        matches = sources.search(found, query, filters, limit)
    if as_json:
        results: list[dict[str, Any]] = [{**each._asdict(), "score": score} for score, each in matches]
        print_json({"results": results, "metadataOnly": True})
        return
    for _, each in matches:
        _show(each.name, each.description, f"{each.source}: {each.place}", each.use)
    _say_if_none(len(matches), query)


def _show(name: str, description: str, *lines: str) -> None:
    click.echo(tame(f"{name}: {description}" if description else name))
    for line in lines:
        click.echo(f"  {tame(line)}")


def _say_if_none(count: int, query: str) -> None:
    if not count:
        click.echo(f"nothing has a word of {query!r}: use other words, or search the Hub (--hub)", err=True)


@click.group()
def catalog() -> None:
    """Builds the catalog of a Git repository, in which `openenv discover` searches, and shows its entries.

    \b
    Examples:
      openenv catalog build --repository . --publisher acme.org \\
          --repository-uri https://github.com/acme/envs.git --output catalog.json
      openenv catalog inspect IDENTIFIER --catalog catalog.json
    """


@catalog.command(short_help="Build the catalog of a Git repository.")
@click.option("--repository", type=PATH, required=True, help="A local clone.")
@click.option("--repository-uri", required=True, help="Its public address, https://github.com/OWNER/NAME.git.")
@click.option("--publisher", required=True, help="A DNS name under which the catalog is published.")
@click.option("--output", type=FILE, required=True, help="The file to write.")
@click.option("--revision", default="HEAD", show_default=True, help="A commit, branch or tag.")
@click.option("--root", default="envs", show_default=True, help="The folder of the environments.")
@click.option("--namespace", default="openenv", show_default=True, help="A part of the identifiers.")
def build(
    repository: Path, repository_uri: str, publisher: str, output: Path, revision: str, root: str, namespace: str
) -> None:
    """Reads the committed openenv.yaml, pyproject.toml, README.md and discovery.json of each environment; no file
    is imported. Exit code 1 if the files of an environment are invalid: the catalog says which, and is not searched.

    \b
    Examples:
      openenv catalog build --repository . --publisher acme.org \\
          --repository-uri https://github.com/acme/envs.git --output catalog.json
    """
    try:
        from ..discovery import build_catalog, write_catalog
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "packaging", "hub") from None

    snapshot = build_catalog(
        repository,
        repository_uri=repository_uri,
        publisher=publisher,
        namespace=namespace,
        revision=revision,
        root=root,
    )
    write_catalog(snapshot, output)
    for issue in snapshot.issues:
        click.echo(f"{issue.severity}: {issue.path}: {issue.message}", err=True)
    click.echo(f"{len(snapshot.entries)} environments, {snapshot.digest}: {output}")
    if not snapshot.complete:
        raise click.exceptions.Exit(1)


@catalog.command(short_help="Print an entry of a catalog.")
@click.argument("identifier")
@click.option("--catalog", "file", type=FILE, required=True, help=_CATALOG)
def inspect(identifier: str, file: Path) -> None:
    """Prints the entry with this IDENTIFIER as JSON.

    \b
    Examples:
      openenv catalog inspect IDENTIFIER --catalog catalog.json
    """
    from ..discovery import load_catalog, resolve_entry

    print_json(
        resolve_entry(load_catalog(file), identifier).model_dump(by_alias=True, exclude_none=True, mode="json")
    )
