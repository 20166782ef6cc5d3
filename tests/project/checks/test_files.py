"""What the checks of files see; the corpus has the faults that most people make, and these are the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openenv.errors import NotAProject
from openenv.project.checks import Finding, Outcome
from openenv.project.checks.findings import run
from openenv.project.checks.static import FILE_CHECKS

from ...corpus import GOOD


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return next(case for case in GOOD if case.name == "thread").write(tmp_path)


def found(project: Path) -> dict[str, Finding]:
    return {each.check: each for each in run(FILE_CHECKS, project) if each.outcome is not Outcome.PASS}


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_a_whole_project_passes(project: Path) -> None:
    assert found(project) == {}


@pytest.mark.parametrize(
    ("file", "old", "new", "check", "words"),
    [
        ("openenv.yaml", "port: 8000", "port: many", "static.manifest", "`port`"),
        ("pyproject.toml", "[project]", "[project", "static.package", "cannot be read"),
        ("pyproject.toml", 'name = "maze"\n', "", "static.package", "no [project] name"),
        ("pyproject.toml", "openenv>=1.0", "openenvironment", "static.package", "does not depend on openenv"),
        ("README.md", "sdk: docker", "sdk: gradio", "static.readme", "sdk: gradio"),
        ("README.md", "app_port: 8000\n", "", "static.readme", "none (7860)"),
        ("README.md", "colorTo: green", "colorTo: gold", "static.readme", "colorTo: gold"),
        ("README.md", "title: Maze", f"short_description: {'x' * 61}\ntitle: Maze", "static.readme", "61 characters"),
        ("README.md", "title: Maze", "title: [Maze", "static.readme", "line 3"),
        ("README.md", "---\ntitle", "---\n- title", "static.readme", "is not valid YAML"),
        ("server/Dockerfile", "FROM", "#", "static.dockerfile", "no FROM"),
        ("server/Dockerfile", "CMD [", "RUN [", "static.dockerfile", "no CMD"),
        ("server/Dockerfile", "USER 1000", "USER 0:0", "static.user", "runs as root"),
        ("server/Dockerfile", "EXPOSE 8000", "EXPOSE 7860", "static.port", "line 6: EXPOSE has port 7860"),
        ("server/Dockerfile", "1:8000/health", "1:7860/health", "static.port", "HEALTHCHECK has port 7860"),
    ],
)
def test_a_fault_is_told_with_what_to_do(
    project: Path, file: str, old: str, new: str, check: str, words: str
) -> None:
    change(project / file, old, new)
    finding = found(project)[check]
    assert finding.outcome is Outcome.FAIL
    assert words in finding.saw
    assert finding.mend


@pytest.mark.parametrize(
    ("file", "old", "new", "check"),
    [
        ("README.md", "base_path: /web\n", "", "static.readme"),
        ("README.md", "  - openenv", "  - maze", "static.readme"),
        ("README.md", "title: Maze\n", "", "static.readme"),
        ("server/Dockerfile", "USER 1000\n", "", "static.user"),
        ("server/Dockerfile", "HEALTHCHECK", "HEALTHCHECK NONE\n#", "static.healthcheck"),
    ],
)
def test_what_works_all_the_same_is_a_warning(project: Path, file: str, old: str, new: str, check: str) -> None:
    change(project / file, old, new)
    findings = found(project)
    assert list(findings) == [check]
    assert findings[check].outcome is Outcome.WARNING
    assert findings[check].mend


def test_one_of_several_ports_is_enough(project: Path) -> None:
    change(project / "server/Dockerfile", "EXPOSE 8000", "EXPOSE 8000 9000")
    assert found(project) == {}


def test_without_a_pyproject_it_cannot_be_installed(project: Path) -> None:
    (project / "pyproject.toml").unlink()
    assert found(project)["static.package"].outcome is Outcome.WARNING
    (project.parent / "__init__.py").touch()
    assert found(project)["static.package"].outcome is Outcome.SKIPPED


SETUPTOOLS = """
[tool.setuptools]
packages = ["maze", "maze.server"]
package-dir = { maze = "." }
"""


@pytest.fixture
def wheel(project: Path) -> Path:
    """A project built by setuptools, with code that names a file of data."""
    pyproject = project / "pyproject.toml"
    change(pyproject, '["hatchling"]', '["setuptools>=64"]')
    change(pyproject, "hatchling.build", "setuptools.build_meta")
    pyproject.write_text(pyproject.read_text() + SETUPTOOLS)
    (project / "server" / "data").mkdir()
    (project / "server" / "data" / "tasks.json").write_text("[]")
    app = project / "server" / "app.py"
    app.write_text(app.read_text() + '\nTASKS = "data/tasks.json"\n')
    return pyproject


def test_a_wheel_lacks_the_data_that_its_code_names(project: Path, wheel: Path) -> None:
    finding = found(project)["static.data"]
    assert finding.outcome is Outcome.WARNING
    assert "server/data/tasks.json" in finding.saw
    assert "'data/*.json' to maze.server" in str(finding.mend)


@pytest.mark.parametrize("pattern", ["data/*.json", "data/*", "data/**", "**/*.json"])
def test_a_wheel_has_the_data_of_its_globs(project: Path, wheel: Path, pattern: str) -> None:
    wheel.write_text(f'{wheel.read_text()}[tool.setuptools.package-data]\n"maze.server" = ["{pattern}"]\n')
    assert found(project) == {}


@pytest.mark.parametrize("pattern", ["", "/data/*", "data/**.txt", "[", "../*"])
def test_globs_that_find_nothing_are_no_data(project: Path, wheel: Path, pattern: str) -> None:
    wheel.write_text(f'{wheel.read_text()}[tool.setuptools.package-data]\n"*" = ["{pattern}"]\n')
    assert found(project)["static.data"].outcome is Outcome.WARNING


def test_a_wheel_needs_no_data_that_its_modules_do_not_name(project: Path, wheel: Path) -> None:
    change(project / "server" / "app.py", "data/tasks.json", "nothing")
    (project / "tests" / "cases").mkdir(parents=True)
    (project / "tests" / "cases" / "one.json").touch()
    (project / "tests" / "test_all.py").write_text('CASES = "tests/cases/one.json"\n')
    (project / ".dockerignore").unlink(missing_ok=True)
    assert found(project) == {}


@pytest.mark.parametrize("manifest", [True, False])
def test_data_that_others_choose_is_not_judged(project: Path, wheel: Path, manifest: bool) -> None:
    if manifest:
        (project / "MANIFEST.in").write_text("graft server/data\n")
    else:
        change(wheel, '"setuptools>=64"', '"setuptools>=64", "setuptools-scm"')
    assert found(project) == {}


def test_what_push_writes_by_itself_may_be_missing(project: Path) -> None:
    (project / "README.md").write_text("# A maze\n")
    assert found(project)["static.readme"].outcome is Outcome.WARNING
    (project / "README.md").unlink()
    assert found(project)["static.readme"].outcome is Outcome.WARNING


def test_what_is_broken_hides_what_depends_on_it(project: Path) -> None:
    (project / "server" / "Dockerfile").unlink()
    findings = found(project)
    assert findings.pop("static.dockerfile").outcome is Outcome.FAIL
    assert {each.outcome for each in findings.values()} == {Outcome.SKIPPED}
    assert set(findings) == {"static.user", "static.healthcheck", "static.port"}
    assert "static.dockerfile" in findings["static.port"].saw


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(["title", "sdk", "app_port", "colorFrom", "short_description", "base_path", "tags"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(front=st.dictionaries(keys, values))
def test_no_front_matter_makes_the_check_itself_fail(project: Path, front: dict[str, Any]) -> None:
    good = {"title": "Maze", "sdk": "docker", "app_port": 8000, "base_path": "/web", "tags": ["openenv"]}
    text = yaml.safe_dump({**good, **front}, allow_unicode=True)
    (project / "README.md").write_text(f"---\n{text}---\n", encoding="utf-8", errors="replace")
    found(project)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(contents=st.binary(max_size=60), file=st.sampled_from(["README.md", "server/Dockerfile", "pyproject.toml"]))
def test_no_contents_of_a_file_make_a_check_itself_fail(project: Path, contents: bytes, file: str) -> None:
    for before in (b"", b"---\n", b"FROM a AS b\nFROM b\nUSER ", b"[project]\nname = 'a'\n", b"project = "):
        (project / file).write_bytes(before + contents)
        found(project)


@pytest.mark.parametrize("text", ["project = 3", "[project]\nname = 'a'\ndependencies = 'openenv'", "project = {}"])
def test_a_pyproject_of_odd_types_is_a_fault(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(text, encoding="utf-8")
    assert found(project)["static.package"].outcome is Outcome.FAIL


def test_a_folder_that_is_no_project_is_no_finding(tmp_path: Path) -> None:
    with pytest.raises(NotAProject):
        run(FILE_CHECKS, tmp_path)
