"""The catalog of a Git repository: what it takes from committed files, how it is searched, and what it refuses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from openenv.cli.main import app
from openenv.discovery import (
    CatalogError,
    CatalogSnapshot,
    build_catalog,
    compare_catalogs,
    load_catalog,
    resolve_entry,
    search_catalog,
    write_catalog,
)

ROOT = Path(__file__).parents[2]
PEER = ROOT / ".venv-peer" / "bin" / "python"
URI = "https://github.com/acme/envs.git"

_RELEASED = """
import json, sys
from openenv.discovery import build_catalog, load_catalog, search_catalog, write_catalog
repository, uri, theirs, ours = sys.argv[1:]
catalog = build_catalog(repository, repository_uri=uri, publisher="acme.org")
write_catalog(catalog, theirs)
print(json.dumps([(each.entry.identifier, each.score) for each in search_catalog(load_catalog(ours), "the words")]))
"""

GUESS = {
    "openenv.yaml": "spec_version: 1\nname: guess\ndescription: Guess words from hints.\n",
    "README.md": "---\ntags:\n- words\n- game\n---\n# Guess\n",
    "pyproject.toml": '[project]\nname = "guess"\nlicense = "mit"\ndependencies = ["openenv>=1.0", "numpy"]\n',
}


class Repository:
    """A Git repository."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> None:
        name = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(["git", *name, *arguments], cwd=self.folder, check=True, capture_output=True)

    def commit(self, name: str, files: dict[str, str]) -> None:
        for path, text in files.items():
            place = self.folder / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")

    def catalog(self, **given: Any) -> CatalogSnapshot:
        return build_catalog(self.folder, repository_uri=URI, publisher="acme.org", **given)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path)
    made.commit("envs/guess", GUESS)
    return made


def test_an_entry_has_what_the_committed_files_say_and_where(repository: Repository) -> None:
    # What is not committed does not count, and no file is imported.
    (repository.folder / "envs/guess/openenv.yaml").write_text("name: other")
    (repository.folder / "envs/guess/__init__.py").write_text("raise SystemExit")
    catalog = repository.catalog()
    (entry,) = catalog.entries
    card = entry.data
    assert (card.name, card.description) == ("guess", "Guess words from hints.")
    assert (card.license, card.framework_requirement, entry.tags) == ("MIT", "openenv>=1.0", ["game", "words"])
    assert (
        card.license_url == f"https://github.com/acme/envs/blob/{catalog.source.revision}/envs/guess/pyproject.toml"
    )
    assert entry.metadata["provenance"] == {
        "name": "envs/guess/openenv.yaml#name",
        "description": "envs/guess/openenv.yaml#description",
        "source": URI,
        "license": "envs/guess/pyproject.toml",
        "framework_requirement": "envs/guess/pyproject.toml#project.dependencies",
        "manifest_spec_version": "envs/guess/openenv.yaml#spec_version",
    }


def test_a_discovery_file_declares_tools_and_takes_precedence(repository: Repository) -> None:
    declared = {
        "description": "Guess.",
        "tags": ["hints"],
        "license": "unknown",
        "artifact_availability": "external",
        "representative_queries": ["a word game", "practise spelling"],
        "agent_tools": {"protocol": "mcp", "names": ["guess"], "source": "envs/guess/openenv.yaml"},
    }
    repository.commit("envs/guess", {"discovery.json": json.dumps(declared)})
    (entry,) = repository.catalog().entries
    assert (entry.description, entry.tags, entry.capabilities) == ("Guess.", ["hints"], ["guess"])
    assert (entry.data.license, entry.data.license_url, entry.data.artifacts) == ("unknown", None, [])
    assert [each.role for each in entry.data.interfaces] == ["orchestration", "agent-tools"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"openenv.yaml": "name: ["}, "openenv.yaml is invalid"),
        ({"openenv.yaml": "name: guess"}, "needs a description"),
        ({"openenv.yaml": "- guess"}, "must have keys and values"),
        ({"pyproject.toml": "[project"}, "pyproject.toml is invalid"),
        ({"pyproject.toml": '[project]\ndependencies = ["openenv", "openenv>1"]'}, "more than once"),
        ({"README.md": "---\ntags: words\n---\n"}, "tags must be a list"),
        ({"discovery.json": '{"tags": [], "tags": []}'}, "a key is there twice"),
        ({"discovery.json": '{"colour": "red"}'}, "colour"),
        ({"discovery.json": '{"license": "MIT", "license_source": "LICENSE"}'}, "no file LICENSE"),
        ({"discovery.json": '{"representative_queries": ["one"]}'}, "two to five"),
        (
            {"discovery.json": '{"agent_tools": {"protocol": "mcp", "names": ["step"], "source": "envs/guess/x"}}'},
            "none of close, reset",
        ),
        (
            {"discovery.json": '{"agent_tools": {"protocol": "mcp", "names": ["a"], "source": "../x"}}'},
            "relative path",
        ),
    ],
)
def test_invalid_files_leave_an_environment_out_and_say_why(
    repository: Repository, tmp_path: Path, files: dict[str, str], said: str
) -> None:
    repository.commit("envs/other", GUESS)
    repository.commit("envs/guess", files)
    catalog = repository.catalog()
    (issue,) = catalog.issues
    assert (issue.path, issue.severity) == ("envs/guess", "error")
    assert said in issue.message
    assert [entry.data.source.path for entry in catalog.entries] == ["envs/other"]
    assert not catalog.complete
    # Such a catalog can be kept, and is not searched.
    write_catalog(catalog, tmp_path / "catalog.json")
    with pytest.raises(CatalogError, match="incomplete"):
        load_catalog(tmp_path / "catalog.json")


def test_two_licenses_that_differ_are_a_warning(repository: Repository) -> None:
    repository.commit("envs/guess", {"README.md": "---\nlicense: apache-2.0\n---\n"})
    catalog = repository.catalog()
    assert [issue.code for issue in catalog.issues] == ["license_conflict"]
    assert (catalog.complete, catalog.entries[0].data.license) == (True, "unknown")


def test_symbolic_links_are_not_followed(repository: Repository) -> None:
    secret = repository.folder.parent / "secret.yaml"
    secret.write_text("name: secret\ndescription: secret\n")
    (repository.folder / "envs/link").mkdir()
    (repository.folder / "envs/link/openenv.yaml").symlink_to(secret)
    repository.commit("envs/guess", {})
    assert [entry.data.name for entry in repository.catalog().entries] == ["guess"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"publisher": "acme"}, "DNS name"),
        ({"namespace": "a:b"}, "namespace"),
        ({"root": "../envs"}, "relative path"),
        ({"root": "nothing"}, "no folder nothing"),
        ({"revision": "nothing"}, "cannot be read by git"),
        ({"revision": "--output=x"}, "cannot be read by git"),
        ({"repository_uri": "git@github.com:acme/envs.git"}, "https://github.com/OWNER/NAME.git"),
    ],
)
def test_invalid_arguments_are_named(repository: Repository, given: dict[str, str], said: str) -> None:
    with pytest.raises(CatalogError, match=said):
        build_catalog(repository.folder, **{"repository_uri": URI, "publisher": "acme.org"} | given)


def test_a_search_compares_words_and_filters(repository: Repository) -> None:
    other = {"openenv.yaml": "name: maze\ndescription: Find the way out.\n"}
    repository.commit("envs/maze", other)
    catalog = repository.catalog()

    def found(query: str, **filters: str) -> list[tuple[str, int]]:
        return [(each.entry.display_name, each.score) for each in search_catalog(catalog, query, filters=filters)]

    assert found("GUESS the words") == [("guess", 67), ("maze", 33)]
    assert found("chess") == []
    assert {name for name, _ in found("")} == {"guess", "maze"}
    assert found("guess", license="Apache-2.0") == []
    assert found("guess", tags="words", provider="github") == [("guess", 100)]
    with pytest.raises(CatalogError, match="no filter colour"):
        found("guess", colour="red")
    with pytest.raises(CatalogError, match="limit must be from 1 to 1000"):
        search_catalog(catalog, "", limit=0)
    assert resolve_entry(catalog, catalog.entries[0].identifier) == catalog.entries[0]
    with pytest.raises(CatalogError, match="no entry 'guess'"):
        resolve_entry(catalog, "guess")


def test_two_catalogs_are_compared(repository: Repository) -> None:
    before = repository.catalog()
    repository.commit("envs/maze", {"openenv.yaml": "name: maze\ndescription: Find the way out.\n"})
    after = repository.catalog()
    changes = compare_catalogs(before, after)
    assert [entry.display_name for entry in changes.added] == ["maze"]
    assert [each.current.display_name for each in changes.superseded] == ["guess"]
    assert (changes.withdrawn, changes.corrected) == ([], [])
    assert [entry.display_name for entry in compare_catalogs(after, before).withdrawn] == ["maze"]
    with pytest.raises(CatalogError, match="different folders"):
        compare_catalogs(before, repository.catalog(root="."))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("Guess words", "Guess secrets"), "was changed"),
        (lambda text: text.replace('"complete": true', '"complete": true, "complete": true'), "twice"),
        (lambda text: text.replace("0.1-draft", "9"), "no catalog of the format"),
        (lambda text: text[:100], "is no catalog"),
        (lambda text: text + " " * 2**24, "larger than"),
    ],
)
def test_a_file_that_is_not_as_it_was_built_is_refused(
    repository: Repository, tmp_path: Path, change: Any, said: str
) -> None:
    file = tmp_path / "catalog.json"
    write_catalog(repository.catalog(), file)
    load_catalog(file)
    file.write_text(change(file.read_text()))
    with pytest.raises(CatalogError, match=said):
        load_catalog(file)


@pytest.mark.skipif(not PEER.exists(), reason="the released package is not installed: make .venv-peer/.installed")
def test_the_released_package_builds_the_same_catalog_and_reads_ours(repository: Repository, tmp_path: Path) -> None:
    declared = {
        "tags": ["hints"],
        "agent_tools": {"protocol": "mcp", "names": ["a"], "source": "envs/maze/README.md"},
    }
    repository.commit("envs/maze", GUESS | {"discovery.json": json.dumps(declared)})
    theirs, ours = tmp_path / "theirs.json", tmp_path / "ours.json"
    catalog = repository.catalog()
    write_catalog(catalog, ours)
    command = [str(PEER), "-c", _RELEASED, str(repository.folder), URI, str(theirs), str(ours)]
    done = subprocess.run(command, check=True, capture_output=True)
    assert ours.read_text() == theirs.read_text()
    found = [[each.entry.identifier, each.score] for each in search_catalog(catalog, "the words")]
    assert found == json.loads(done.stdout)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=True)


def test_the_commands(repository: Repository, tmp_path: Path) -> None:
    file = str(tmp_path / "catalog.json")
    options = ["--repository", str(repository.folder), "--repository-uri", URI, "--publisher", "acme.org"]
    made = run("catalog", "build", *options, "--output", file)
    assert (made.exit_code, made.stdout.startswith("1 environments, sha256:")) == (0, True)
    found = run("discover", "words", "--catalog", file)
    name, place, license_, identifier = found.stdout.splitlines()
    assert (name, place, license_) == (
        "guess: Guess words from hints.",
        f"  {URI} envs/guess",
        "  license: MIT",
    )
    assert (
        json.loads(run("catalog", "inspect", identifier.strip(), "--catalog", file).stdout)["displayName"] == "guess"
    )
    nothing = run("discover", "chess", "--catalog", file)
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "nothing has a word of 'chess'" in nothing.stderr
    repository.commit("envs/guess", {"openenv.yaml": "name: guess"})
    (repository.folder / "envs/guess/pyproject.toml").unlink()
    broken = run("catalog", "build", *options, "--output", file)
    assert broken.exit_code == 1
    assert "error: envs/guess: " in broken.stderr


def test_what_is_on_this_machine_is_found_without_a_catalog(tmp_path: Path) -> None:
    project = tmp_path / "envs" / "guess"
    project.mkdir(parents=True)
    for name, text in GUESS.items():
        (project / name).write_text(text)
    (project / "__init__.py").write_text("raise SystemExit")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "openenv.yaml").write_text("name: [")

    found = run("discover", "hints", "--local", str(tmp_path))
    assert found.stdout.splitlines() == [
        "guess: Guess words from hints.",
        f"  local: {project}",
        f"  openenv serve {project}",
    ]
    everything = json.loads(run("discover", "--local", str(tmp_path), "--json", "--limit", "1000").stdout)
    sources = {each["name"]: each["source"] for each in everything["results"]}
    assert (sources["guess"], sources["echo"]) == ("local", "bundled")
    filtered = run("discover", "--local", str(tmp_path), "--filter", "tags=words")
    assert filtered.stdout.startswith("guess:")
    assert run("discover", "--filter", "colour=red").exit_code == 1
