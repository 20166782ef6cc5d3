"""`openenv discover` and `openenv catalog`: find environments by what they are for, without running them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import MissingExtra
from .terminal import FILE, FOLDER, PATH, pairs, print_json, tame

if TYPE_CHECKING:
    from ..discovery.sources import AvailableEnvironment

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
        _discover_here(query, _sources(local, query, hub), chosen, limit, as_json)
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


def _sources(folder: Path, query: str, hub: bool) -> Iterator[AvailableEnvironment]:
    from ..discovery import sources

    yield from chain(sources.installed(), sources.local(folder))
    if hub:
        from ..project.hub import Hub

        with Hub() as there:
            yield from sources.spaces(there, query)


def _discover_here(
    query: str, found: Iterator[AvailableEnvironment], filters: dict[str, str], limit: int, as_json: bool
) -> None:
    from ..discovery.sources import search

    matches = search(found, query, filters, limit)
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
