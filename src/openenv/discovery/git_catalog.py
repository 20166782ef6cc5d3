"""The catalog of a Git repository, from the files of one commit: nothing of them is imported. (Extra `hub`.)"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import Field, TypeAdapter, ValidationError, field_validator

from ..errors import UsageError
from ..project.manifest import FrontMatter
from . import catalog

_GIT_S = 60.0
_MOST_FILE = 2**20
_MOST_ENVIRONMENTS = 10_000
_REPOSITORY = re.compile(r"https://github\.com/(?P<id>[\w.-]+/[\w.-]+?)(\.git)?/?", re.ASCII)
_CONTROLS = frozenset({"reset", "step", "state", "close"})
_FILES = ("openenv.yaml", "pyproject.toml", "README.md", "discovery.json")


class _Tools(catalog.StrictModel):
    """The tools that a `discovery.json` declares for agents, and the file that shows them."""

    protocol: catalog.Words
    names: list[catalog.Words] = Field(min_length=1, max_length=256)
    source: catalog.RepositoryPath

    @field_validator("names")
    @classmethod
    def _tools_of_the_task(cls, names: list[str]) -> list[str]:
        if len({*names}) < len(names) or _CONTROLS & {name.casefold() for name in names}:
            raise ValueError(f"must be different names, and none of {', '.join(sorted(_CONTROLS))}")
        return names


class _Declaration(catalog.StrictModel):
    """The contents of a `discovery.json`, all of them optional."""

    description: catalog.Words | None = None
    tags: list[catalog.Words] = Field(default_factory=list)
    representative_queries: catalog.Queries = Field(default_factory=list)
    license: catalog.Words | None = None
    license_source: catalog.RepositoryPath | None = None
    artifact_availability: catalog.Availability = "resolvable"
    agent_tools: _Tools | None = None


class _Invalid(Exception):
    """A file of an environment that cannot be used."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class _Commit:
    """The regular files of one commit. Of symbolic links and submodules nothing is read."""

    def __init__(self, repository: Path, uri: str, revision: str):
        found = _REPOSITORY.fullmatch(uri)
        if found is None:
            raise catalog.CatalogError(f"--repository-uri must be https://github.com/OWNER/NAME.git, got {uri!r}")
        self.uri, self.id, self._repository = uri, found["id"], repository
        # What follows --end-of-options is never an option.
        named = self._git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
        self.revision = named.decode("ascii").strip()
        self._blobs: dict[str, str] = {}
        for row in self._git("ls-tree", "-r", "-z", "--full-tree", self.revision).split(b"\0"):
            facts, _, name = row.partition(b"\t")
            if facts.startswith(b"100"):
                self._blobs[name.decode(errors="replace")] = facts.split()[2].decode("ascii")

    def __contains__(self, path: str) -> bool:
        return path in self._blobs

    def environments(self, root: str) -> list[str]:
        """The folders directly in `root` that have a manifest."""
        prefix = "" if root == "." else f"{root}/"
        if not any(path.startswith(prefix) for path in self._blobs):
            raise catalog.CatalogError(f"the commit has no folder {root}: give the one of the environments (--root)")
        manifests = re.compile(f"{re.escape(prefix)}[^/]+/openenv.yaml")
        found = sorted(path.rpartition("/")[0] for path in self._blobs if manifests.fullmatch(path))
        if len(found) > _MOST_ENVIRONMENTS:
            raise catalog.CatalogError(
                f"{root} has {len(found)} environments: a catalog has at most {_MOST_ENVIRONMENTS}"
            )
        return found

    def read(self, path: str) -> str | None:
        """The text of a file, None if the commit does not have it."""
        if path not in self._blobs:
            return None
        data = self._git("cat-file", "blob", self._blobs[path])
        if len(data) > _MOST_FILE:
            raise _Invalid("invalid_metadata", f"{path} is larger than {_MOST_FILE} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise _Invalid("invalid_metadata", f"{path} is not UTF-8") from None

    def require(self, path: str) -> None:
        """Raises if the commit does not have a file."""
        if path not in self._blobs:
            raise _Invalid("missing_metadata", f"the commit has no file {path}")

    def address(self, path: str) -> str:
        """The web address of a file."""
        return f"https://github.com/{self.id}/blob/{self.revision}/{path}"

    def _git(self, *arguments: str) -> bytes:
        command = ["git", "-C", str(self._repository), "--no-replace-objects", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_GIT_S, check=False)  # noqa: S603 - no shell
        except FileNotFoundError:
            raise catalog.CatalogError("git is not installed: a catalog is read by it") from None
        except subprocess.TimeoutExpired:
            raise catalog.CatalogError(f"git {arguments[0]} did not end within {_GIT_S:g} s") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
            raise catalog.CatalogError(f"{self._repository} cannot be read by git: {said}")
        return done.stdout


class _Files(NamedTuple):
    """What the files of one environment say."""

    manifest: Mapping[str, Any]
    project: Mapping[str, Any]
    readme: Mapping[str, Any]
    declared: _Declaration

    @classmethod
    def of(cls, commit: _Commit, path: str) -> _Files:
        """Reads them. Raises `_Invalid` if one is not in its format."""
        texts = [commit.read(f"{path}/{name}") for name in _FILES]
        name = f"{path}/{_FILES[0]}"
        try:
            manifest = yaml.safe_load(texts[0] or "")
            name = f"{path}/README.md"
            readme = FrontMatter.read(texts[2] or "").values
            name = f"{path}/discovery.json"
            declared = _Declaration.model_validate(
                json.loads(texts[3] or "{}", object_pairs_hook=catalog.unique_keys)
            )
        except (yaml.YAMLError, UsageError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:400]
            raise _Invalid("invalid_metadata", f"{name} is invalid: {reason}") from None
        if not isinstance(manifest, dict):
            raise _Invalid("invalid_metadata", f"{path}/openenv.yaml must have keys and values")
        return cls(manifest, _project(f"{path}/pyproject.toml", texts[1]), readme, declared)


def _project(path: str, text: str | None) -> Mapping[str, Any]:
    """The table `[project]` of a `pyproject.toml`, empty if there is none."""
    try:
        found = tomllib.loads(text or "").get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise _Invalid("invalid_metadata", f"{path} is invalid: {error}") from None
    if not isinstance(found, dict):
        raise _Invalid("invalid_metadata", f"{path}: `project` must be a table")
    return found


def _stated(key: str, places: list[tuple[Mapping[str, Any], str]]) -> tuple[str, str]:
    """The first value of a key, and where it stands."""
    for values, place in places:
        if values.get(key) is not None:
            if not isinstance(values[key], str) or not values[key].strip():
                break
            return values[key], f"{place}{'.' if '#' in place else '#'}{key}"
    raise _Invalid("invalid_metadata", f"the environment needs a {key}, a text in one of its files")


def _expression(value: Any) -> str | None:
    """A license as SPDX expression; "other" if it is not one, "unknown" if only a file is named, None without one."""
    if isinstance(value, dict):
        value = value.get("text", "")
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or value == "unknown":
        return "unknown"
    try:
        return str(canonicalize_license_expression(value.strip()))
    except InvalidLicenseExpression:
        return "other"


def _license(
    commit: _Commit, path: str, files: _Files, root_project: Mapping[str, Any]
) -> tuple[str, str | None, bool]:
    """The license, the file that states it, and whether two files contradict each other."""
    declared = files.declared
    if declared.license is not None:
        place = declared.license_source or f"{path}/discovery.json"
        commit.require(place)
        return _expression(declared.license) or "unknown", place, False
    stated = [
        (expression, place)
        for value, place in (
            (files.project.get("license"), f"{path}/pyproject.toml"),
            (files.readme.get("license"), f"{path}/README.md"),
        )
        if (expression := _expression(value)) is not None
    ]
    if stated:
        # Two that are no expressions cannot be compared.
        if len(stated) > 1 and (stated[0][0] != stated[1][0] or stated[0][0] == "other"):
            return "unknown", None, True
        return *stated[0], False
    inherited = _expression(root_project.get("license"))
    if inherited is None:
        return "unknown", None, False
    texts = root_project.get("license-files", [])
    return inherited, next((name for name in texts if name in commit), "pyproject.toml"), False


def _requirement(path: str, project: Mapping[str, Any]) -> str | None:
    """The dependency on openenv."""
    try:
        there = [
            each for each in project.get("dependencies", []) if canonicalize_name(Requirement(each).name) == "openenv"
        ]
    except (InvalidRequirement, TypeError) as error:
        raise _Invalid("invalid_metadata", f"{path}/pyproject.toml: dependencies: {error}") from None
    if len(there) > 1:
        raise _Invalid("invalid_metadata", f"{path}/pyproject.toml depends on openenv more than once")
    return there[0] if there else None


def _entry(
    commit: _Commit, path: str, scope: str, root_project: Mapping[str, Any]
) -> tuple[catalog.DiscoveryEntry, list[catalog.CatalogIssue]]:
    """One environment, and what to improve in its files."""
    files = _Files.of(commit, path)
    declared = files.declared
    in_manifest, in_project = (
        (files.manifest, f"{path}/openenv.yaml"),
        (files.project, f"{path}/pyproject.toml#project"),
    )
    name, name_place = _stated("name", [in_manifest, in_project])
    explicit = declared.model_dump(exclude_none=True)
    description, description_place = _stated(
        "description",
        [(explicit, f"{path}/discovery.json"), in_manifest, in_project, (files.readme, f"{path}/README.md")],
    )
    license_name, license_place, contradicts = _license(commit, path, files, root_project)
    requirement = _requirement(path, files.project)
    provenance: dict[str, Any] = {"name": name_place, "description": description_place, "source": commit.uri}
    if license_place is not None:
        provenance["license"] = license_place
    if requirement is not None:
        provenance["framework_requirement"] = f"{path}/pyproject.toml#project.dependencies"
    if "spec_version" in files.manifest:
        provenance["manifest_spec_version"] = f"{path}/openenv.yaml#spec_version"
    interfaces: list[catalog.OrchestrationInterface | catalog.AgentToolsInterface] = [
        catalog.OrchestrationInterface()
    ]
    tools = declared.agent_tools
    if tools is not None:
        if not tools.source.startswith(f"{path}/"):
            raise _Invalid("invalid_metadata", f"{path}/discovery.json: the source of the tools must be in {path}")
        commit.require(tools.source)
        interfaces.append(catalog.AgentToolsInterface(protocol=tools.protocol, source_revision=commit.revision))
        provenance["agent_tools"] = tools.source
    tags = declared.tags or files.readme.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise _Invalid("invalid_metadata", f"{path}/README.md: tags must be a list of texts")
    artifacts = []
    if declared.artifact_availability == "resolvable":
        artifacts = [catalog.Artifact(uri=commit.uri, path=path, revision=commit.revision)]
    card = catalog.EnvironmentCard(
        name=name,
        description=description,
        owner=catalog.Owner(authority="github.com", id=commit.id.partition("/")[0]),
        source=catalog.EnvironmentSource(id=commit.id, uri=commit.uri, path=path, revision=commit.revision),
        artifact_availability=declared.artifact_availability,
        artifacts=artifacts,
        license=license_name,
        license_url=None if license_place is None or license_name == "unknown" else commit.address(license_place),
        interfaces=interfaces,
        manifest_spec_version=files.manifest.get("spec_version"),
        framework_requirement=requirement,
    )
    locator = hashlib.sha256(f"{commit.uri}\n{path}".encode()).hexdigest()
    entry = catalog.DiscoveryEntry(
        identifier=f"urn:air:{scope}:{locator}:{commit.revision}",
        display_name=name,
        description=description,
        data=card,
        tags=sorted({*tags}),
        capabilities=tools.names if tools is not None else [],
        representative_queries=declared.representative_queries,
        metadata={"provenance": provenance},
    )
    if not contradicts:
        return entry, []
    message = f"{path}/pyproject.toml and README.md state different licenses: state the same in both"
    return entry, [catalog.CatalogIssue(path=path, code="license_conflict", message=message, severity="warning")]


def build_catalog(
    repository: str | Path,
    *,
    repository_uri: str,
    publisher: str,
    namespace: str = "openenv",
    revision: str = "HEAD",
    root: str = "envs",
) -> catalog.CatalogSnapshot:
    """The catalog of the environments in a folder of a Git repository, from committed files only.

    Args:
        repository: A local clone.
        repository_uri: Its public address, `https://github.com/OWNER/NAME.git`.
        publisher: A DNS name under which the catalog is published; that it is yours is not checked.
        namespace: A name of letters, digits, `.`, `_` and `-`.
        revision: A commit, branch or tag.
        root: The folder; each folder in it that has an `openenv.yaml` is an environment. "." is the repository.

    Returns:
        The snapshot. An environment with invalid files is left out: `issues` says why, and `complete` is False.

    Raises:
        CatalogError: An argument is invalid, or git cannot read the repository.
    """
    try:
        TypeAdapter(catalog.Publisher).validate_python(publisher)
    except ValidationError:
        raise catalog.CatalogError(
            f"the publisher must be a DNS name such as example.org, got {publisher!r}"
        ) from None
    if not re.fullmatch(r"[\w.-]+", namespace, re.ASCII):
        raise catalog.CatalogError(f"the namespace may have letters, digits, . _ and -, got {namespace!r}")
    try:
        catalog.inside(root)
    except ValueError as error:
        raise catalog.CatalogError(f"root {error}, got {root!r}") from None
    commit = _Commit(Path(repository), repository_uri, revision)
    paths = commit.environments(root)
    entries: list[catalog.DiscoveryEntry] = []
    issues: list[catalog.CatalogIssue] = []
    try:
        root_project = _project("pyproject.toml", commit.read("pyproject.toml"))
    except _Invalid as error:
        raise catalog.CatalogError(str(error)) from None
    for path in paths:
        try:
            entry, remarks = _entry(commit, path, f"{publisher}:{namespace}", root_project)
        except (_Invalid, ValidationError) as error:
            code = error.code if isinstance(error, _Invalid) else "invalid_metadata"
            said = " ".join(str(error).split())[:400]
            issues.append(catalog.CatalogIssue(path=path, code=code, message=said, severity="error"))
        else:
            entries.append(entry)
            issues += remarks
    snapshot = catalog.CatalogSnapshot(
        publisher=publisher,
        source=catalog.RepositorySource(id=commit.id, uri=commit.uri, revision=commit.revision),
        inventory=catalog.Inventory(root=root, paths=paths),
        entries=entries,
        issues=issues,
        complete=not any(issue.severity == "error" for issue in issues),
        digest=f"sha256:{'0' * 64}",
    )
    return snapshot.model_copy(update={"digest": snapshot.computed_digest()})
