"""A catalog of environments: a file of their descriptions, which is searched without running any of them.

The format is that of the released package (profile 0.1-draft), after the entries of Agentic Resource Discovery.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from ..errors import UsageError

ENVIRONMENT_MEDIA_TYPE: Final = "application/vnd.openenv.environment-card+json"
PROFILE_VERSION: Final = "0.1-draft"
MOST_BYTES = 16 * 2**20
"""Size limit of a catalog in bytes."""
FILTERS = ("license", "provider", "artifact_availability", "name", "tags", "type")
"""The fields by which a search can be restricted."""
_MOST_RESULTS = 1000
_MOST_QUERY = 8192


class CatalogError(UsageError):
    """A catalog that cannot be built, read or searched; the message says why, and what to do."""


def inside(path: str) -> str:
    """Checks that a path stays in its repository: relative, with `/`, without `..`; "." is the repository itself."""
    parts = path.split("/")
    if path != "." and (not all(parts) or {".", ".."} & {*parts} or not path.isprintable() or "\\" in path):
        raise ValueError("must be a relative path with /, without . and ..")
    return path


def _address(value: str) -> str:
    if not re.fullmatch(r"https://[^\s/@]+(/\S*)?", value):
        raise ValueError("must be an https address without a user")
    return value


Words = Annotated[str, StringConstraints(min_length=1, max_length=8192, pattern=r"\S")]
RepositoryPath = Annotated[Words, AfterValidator(inside)]
Revision = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{40}|[0-9a-f]{64})$")]
Publisher = Annotated[
    str,
    StringConstraints(
        max_length=253, pattern=r"^(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]{2,63}$"
    ),
]
Availability = Literal["resolvable", "external", "unknown"]


def _none_or_several(queries: list[str]) -> list[str]:
    if len(queries) not in {0, 2, 3, 4, 5}:
        raise ValueError("must have two to five queries, or none")
    return queries


Queries = Annotated[list[Words], AfterValidator(_none_or_several)]


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RepositorySource(StrictModel):
    """The commit that a catalog describes."""

    provider: Literal["github"] = "github"
    id: Words
    uri: Annotated[Words, AfterValidator(_address)]
    revision: Revision


class EnvironmentSource(RepositorySource):
    """The folder of an environment in that commit."""

    path: RepositoryPath


class Artifact(StrictModel):
    """A place from which an environment can be had."""

    kind: Literal["git"] = "git"
    uri: Annotated[Words, AfterValidator(_address)]
    path: RepositoryPath
    revision: Revision


class Owner(StrictModel):
    """An account, and the service that knows it."""

    authority: Words
    id: Words


class OrchestrationInterface(StrictModel):
    """How a trainer drives the environment."""

    role: Literal["orchestration"] = "orchestration"
    protocol: Literal["openenv"] = "openenv"


class AgentToolsInterface(StrictModel):
    """How an agent calls the environment's tools."""

    role: Literal["agent-tools"] = "agent-tools"
    protocol: Words
    status: Literal["declared"] = "declared"
    source_revision: Revision


class EnvironmentCard(StrictModel):
    """The description of an environment at one commit, of which each field comes from a committed file."""

    schema_version: Literal["0.1-draft"] = PROFILE_VERSION
    name: Words
    description: Words
    owner: Owner | Literal["unknown"]
    source: EnvironmentSource
    artifact_availability: Availability
    artifacts: list[Artifact]
    license: Words
    license_url: Annotated[Words, AfterValidator(_address)] | None = None
    interfaces: list[Annotated[OrchestrationInterface | AgentToolsInterface, Field(discriminator="role")]]
    manifest_spec_version: int | str | None = None
    framework_requirement: Words | None = None


class DiscoveryEntry(StrictModel):
    """An environment in a catalog.

    Attributes:
        identifier: `urn:air:PUBLISHER:NAMESPACE:LOCATOR:REVISION`; the locator is the SHA-256 of the repository's
            address and the folder's path.
        metadata: `provenance` has the file of each field.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    context: Annotated[Literal["https://agenticresourcediscovery.org/context/v1"], Field(alias="@context")] = (
        "https://agenticresourcediscovery.org/context/v1"
    )
    identifier: Words
    display_name: Words
    type: Literal["application/vnd.openenv.environment-card+json"] = ENVIRONMENT_MEDIA_TYPE
    data: EnvironmentCard
    description: Words
    tags: list[Words]
    capabilities: list[Words]
    representative_queries: Queries
    metadata: dict[str, JsonValue]

    def values(self, field: str) -> list[str]:
        """The values that a filter compares.

        Args:
            field: One of `FILTERS`.
        """
        if field == "provider":
            return [self.data.source.provider]
        if field == "tags":
            return self.tags
        return [self.type if field == "type" else str(getattr(self.data, field))]


class Generator(StrictModel):
    """The program that made a catalog."""

    name: Literal["openenv-git-catalog"] = "openenv-git-catalog"
    version: Literal["1"] = "1"


class Inventory(StrictModel):
    """The folders that were looked at."""

    root: RepositoryPath
    paths: list[RepositoryPath]


class CatalogIssue(StrictModel):
    """What is wrong with the files of one environment. An error leaves the environment out."""

    path: Words
    code: Words
    message: Words
    severity: Literal["warning", "error"]


class CatalogSnapshot(StrictModel):
    """The environments of a repository at one commit.

    Attributes:
        complete: Whether no environment was left out. Only complete catalogs are searched.
        digest: SHA-256 of all other fields as canonical JSON.
    """

    schema_version: Literal["0.1-draft"] = PROFILE_VERSION
    publisher: Publisher
    source: RepositorySource
    generator: Generator = Generator()
    inventory: Inventory
    entries: list[DiscoveryEntry]
    issues: list[CatalogIssue]
    complete: bool
    digest: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]

    def computed_digest(self) -> str:
        """The digest of what the snapshot has now."""
        content = self.model_dump(by_alias=True, exclude_none=True, exclude={"digest"}, mode="json")
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def check(self) -> None:
        """Raises `CatalogError` if the catalog is incomplete or was changed."""
        if not self.complete:
            raise CatalogError("the catalog is incomplete: correct what its `issues` say, and build it again")
        if self.computed_digest() != self.digest:
            raise CatalogError("the catalog was changed after it was built: build it again")


class SearchMatch(StrictModel):
    """An entry, and the share of the query's words that it has, in percent."""

    entry: DiscoveryEntry
    score: Annotated[int, Field(ge=0, le=100)]


class SupersededEntry(StrictModel):
    """An entry of two catalogs that differs between them."""

    previous: DiscoveryEntry
    current: DiscoveryEntry


class CatalogChanges(StrictModel):
    """The difference of two catalogs of the same folders.

    Attributes:
        superseded: Entries of another commit.
        corrected: Entries of the same commit with other content.
    """

    added: list[DiscoveryEntry]
    withdrawn: list[DiscoveryEntry]
    superseded: list[SupersededEntry]
    corrected: list[SupersededEntry]


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a JSON text, for `object_pairs_hook`. Raises `ValueError` if a key is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def load_catalog(path: str | Path) -> CatalogSnapshot:
    """Reads a catalog.

    Raises:
        CatalogError: The file cannot be read, is no catalog of this format, is incomplete, or was changed.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise CatalogError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise CatalogError(f"{path} is larger than {MOST_BYTES} bytes, the limit of a catalog")
    try:
        snapshot = CatalogSnapshot.model_validate(json.loads(data.decode(), object_pairs_hook=unique_keys))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise CatalogError(f"{path} is no catalog of the format {PROFILE_VERSION}: {place}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise CatalogError(f"{path} is no catalog: {error}") from None
    snapshot.check()
    return snapshot


def write_catalog(snapshot: CatalogSnapshot, path: str | Path) -> None:
    """Writes a catalog, complete or not. A file that is there is replaced as a whole, or kept.

    Raises:
        CatalogError: The snapshot was changed, is too large, or the file cannot be written.
    """
    if snapshot.computed_digest() != snapshot.digest:
        raise CatalogError("the digest of the snapshot is not that of its content: build it again")
    content = snapshot.model_dump(by_alias=True, exclude_none=True, mode="json")
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    if len(text.encode()) > MOST_BYTES:
        raise CatalogError(f"the catalog is larger than {MOST_BYTES} bytes: build it of fewer folders (--root)")
    goal = Path(path)
    part = None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=goal.parent, delete=False) as file:
            part = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(goal)
    except OSError as error:
        if part is not None:
            part.unlink(missing_ok=True)
        raise CatalogError(f"{goal} cannot be written: {error.strerror}") from None


def match(query: str, texts: Iterable[str]) -> int | None:
    """The share of a query's words that texts have, in percent. None if they have no word of it."""
    words = set(re.findall(r"[^\W_]+", query.casefold()))
    if not words:
        return 0
    shared = words & set(re.findall(r"[^\W_]+", " ".join(texts).casefold()))
    return round(100 * len(shared) / len(words)) if shared else None


def search_catalog(
    snapshot: CatalogSnapshot, query: str, *, filters: Mapping[str, str] | None = None, limit: int = 20
) -> list[SearchMatch]:
    """Finds entries by the words of a query. An empty query finds all.

    Args:
        snapshot: A complete catalog.
        query: Words of the task, at most 8,192 characters.
        filters: Values that entries must have, by the names in `FILTERS`.
        limit: Most results, from 1 to 1,000.

    Returns:
        The best first.

    Raises:
        CatalogError: The catalog is incomplete or was changed, or an argument is invalid.
    """
    snapshot.check()
    if not 1 <= limit <= _MOST_RESULTS:
        raise CatalogError(f"limit must be from 1 to {_MOST_RESULTS}, got {limit}")
    if len(query) > _MOST_QUERY:
        raise CatalogError(f"the query has {len(query)} characters: at most {_MOST_QUERY} are searched for")
    chosen = dict(filters or {})
    if unknown := sorted(chosen.keys() - {*FILTERS}):
        raise CatalogError(f"there is no filter {', '.join(unknown)}: use {', '.join(FILTERS)}")
    found = []
    for entry in snapshot.entries:
        if all(value in entry.values(field) for field, value in chosen.items()):
            texts = [entry.display_name, entry.data.description]
            texts += [*entry.tags, *entry.capabilities, *entry.representative_queries]
            score = match(query, texts)
            if score is not None:
                found.append(SearchMatch(entry=entry, score=score))
    return sorted(found, key=lambda each: (-each.score, each.entry.identifier))[:limit]


def resolve_entry(snapshot: CatalogSnapshot, identifier: str) -> DiscoveryEntry:
    """The entry with exactly this identifier.

    Raises:
        CatalogError: There is none, or the catalog is incomplete or was changed.
    """
    snapshot.check()
    for entry in snapshot.entries:
        if entry.identifier == identifier:
            return entry
    raise CatalogError(f"the catalog has no entry {identifier!r}: `openenv discover` prints the identifiers")


def compare_catalogs(previous: CatalogSnapshot, current: CatalogSnapshot) -> CatalogChanges:
    """What changed between two catalogs.

    Raises:
        CatalogError: One is incomplete or was changed, or they are not of the same publisher, repository and folder.
    """
    previous.check()
    current.check()
    scopes = [(each.publisher, each.source.uri, each.inventory.root) for each in (previous, current)]
    if scopes[0] != scopes[1]:
        raise CatalogError(f"the catalogs are of different folders: {scopes[0]} and {scopes[1]}")
    old = {entry.data.source.path: entry for entry in previous.entries}
    new = {entry.data.source.path: entry for entry in current.entries}
    both = [SupersededEntry(previous=old[path], current=new[path]) for path in sorted(old.keys() & new.keys())]
    kept = [each for each in both if each.previous.identifier == each.current.identifier]
    return CatalogChanges(
        added=[new[path] for path in sorted(new.keys() - old.keys())],
        withdrawn=[old[path] for path in sorted(old.keys() - new.keys())],
        superseded=[each for each in both if each.previous.identifier != each.current.identifier],
        corrected=[each for each in kept if each.previous != each.current],
    )
