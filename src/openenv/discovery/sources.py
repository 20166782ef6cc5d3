"""The environments that can be had without a catalog: on this machine, in a folder, and on the Hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError
from ..project.catalog import entries
from ..project.hub import Hub
from ..project.manifest import FILE_NAME, FrontMatter, Project, read_text
from .catalog import CatalogError, match

LOCAL_FILTERS = ("name", "tags", "license", "source")
"""The fields by which a search without a catalog can be restricted."""
_MOST_SPACES = 1000
_TAG = "openenv"


class AvailableEnvironment(NamedTuple):
    """An environment, and the command that uses it.

    Attributes:
        name: Its name.
        description: One line about it, or "".
        source: `installed`, `bundled`, `local` or `hub`.
        place: Its folder or address.
        use: A command that serves or downloads it.
        tags: Its tags.
        license: Its license, or "".
    """

    name: str
    description: str
    source: str
    place: str
    use: str
    tags: tuple[str, ...] = ()
    license: str = ""

    def has(self, field: str, value: str) -> bool:
        """Whether a field has a value."""
        return value in self.tags if field == "tags" else getattr(self, field) == value


def search(
    found: Iterator[AvailableEnvironment], query: str, filters: Mapping[str, str], limit: int
) -> list[tuple[int, AvailableEnvironment]]:
    """Finds environments by the words of a query. An empty query finds all.

    Args:
        found: Where to search.
        query: Words of the task.
        filters: Values that the environments must have, by the names in `LOCAL_FILTERS`.
        limit: Most results.

    Returns:
        The share of the query's words in percent and the environment, the best first.

    Raises:
        CatalogError: There is no such filter.
    """
    if unknown := sorted(filters.keys() - {*LOCAL_FILTERS}):
        raise CatalogError(f"there is no filter {', '.join(unknown)}: use {', '.join(LOCAL_FILTERS)}, or a --catalog")
    scored = []
    for each in found:
        score = match(query, (each.name, each.description, *each.tags))
        if score is not None and all(each.has(field, value) for field, value in filters.items()):
            scored.append((score, each))
    return sorted(scored, key=lambda pair: (-pair[0], pair[1]))[:limit]


def installed() -> Iterator[AvailableEnvironment]:
    """The environments that are installed, and those that come with openenv. None of them is imported."""
    for entry in entries():
        try:
            manifest = entry.manifest
        except UsageError:  # `openenv list` shows what is wrong with it
            manifest = None
        description = (manifest.description if manifest else None) or entry.summary
        source = "bundled" if entry.distribution is None else "installed"
        use = f"openenv serve {entry.key if source == 'bundled' else entry.folder}"
        yield AvailableEnvironment(entry.key, description, source, str(entry.folder), use, **_readme(entry.folder))


def local(folder: Path) -> Iterator[AvailableEnvironment]:
    """The projects in a folder: itself, its folders, and theirs. A project with an invalid manifest is left out."""
    for manifest in sorted({path for depth in ("", "*/", "*/*/") for path in folder.glob(depth + FILE_NAME)}):
        try:
            project = Project.find(manifest)
        except UsageError:
            continue
        named, place = project.manifest, project.folder
        facts = _readme(place)
        yield AvailableEnvironment(
            named.name, named.description or "", "local", str(place), f"openenv serve {place}", **facts
        )


def spaces(hub: Hub, query: str) -> Iterator[AvailableEnvironment]:
    """The Spaces of the Hub that have the tag `openenv`, at most 1,000 for each word of the query.

    Raises:
        OpenEnvError: The Hub cannot be asked.
    """
    seen = set()
    for word in query.split() or [""]:

        def ask(word: str = word) -> list[Any]:
            return list(hub.api.list_spaces(filter=_TAG, search=word or None, limit=_MOST_SPACES, full=True))

        for space in hub.ask("searching the Spaces of the Hub", ask):
            if space.id not in seen:
                seen.add(space.id)
                facts = space.card_data.to_dict() if space.card_data is not None else {}
                yield AvailableEnvironment(
                    space.id,
                    str(facts.get("short_description") or facts.get("title") or ""),
                    "hub",
                    f"{hub.endpoint}/spaces/{space.id}",
                    f"openenv pull {space.id}",
                    tuple(map(str, space.tags or ())),
                    str(facts.get("license") or ""),
                )


def _readme(folder: Path) -> dict[str, Any]:
    """The tags and the license that the README of a folder states."""
    try:
        values = FrontMatter.read(read_text(folder / "README.md")).values
    except UsageError:
        return {}
    tags = values.get("tags")
    return {
        "tags": tuple(map(str, tags)) if isinstance(tags, list) else (),
        "license": str(values.get("license") or ""),
    }
