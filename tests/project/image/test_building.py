"""Building, on a stand-in for an engine."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from openenv.errors import LaunchFailed, ProviderBusy, ProviderFailed, UsageError
from openenv.project import Project
from openenv.project.image import BuildProgress, BuildRequest, build

from ...providers.engine import Engine, Events

FINE = Events(
    [
        {"stream": "Step 1/2 : FROM a\n"},
        {"stream": " ---> Using cache\n"},
        {"stream": "Step 2/2 : RUN x\n"},
        {"aux": {"ID": "sha256:1"}},
    ]
)


@pytest.fixture(autouse=True)
def from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wheel is made: tests of wheels are elsewhere."""
    monkeypatch.setattr("openenv.project.image.building.from_index", lambda: True)
    monkeypatch.setattr("openenv.project.image.building.own_wheel", lambda _: None)


def sent(engine: Engine) -> dict[str, str]:
    """The files of the last context."""
    with tarfile.open(fileobj=io.BytesIO(engine.contexts[-1])) as archive:
        files = {entry.name: archive.extractfile(entry) for entry in archive if entry.isfile()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_an_image_is_built_and_has_all_its_names(engine: Engine, project: Project) -> None:
    engine.said["build"] = FINE
    shown: list[BuildProgress | str] = []
    built = build(project, BuildRequest(tags=("a:1", "b")), shown.append)
    assert (built.id, built.names, built.size) == ("sha256:1", ("a:1", "b:latest"), 1)
    assert (built.executed, len(built.steps)) == (1, 2)
    assert {"a:1", "b:latest"} <= engine.images
    assert engine.made["build"] == {
        "dockerfile": "server/Dockerfile",
        "t": "a:1",
        "nocache": "False",
        "q": "False",
        "rm": "True",
        "forcerm": "True",
        "pull": "False",
    }
    assert set(sent(engine)) == {"openenv.yaml", "models.py", "server/Dockerfile"}
    assert [each.step.number for each in shown if isinstance(each, BuildProgress) and each.ended] == [1, 2]


def test_the_request_reaches_the_engine(engine: Engine, project: Project) -> None:
    engine.said["build"] = FINE
    request = BuildRequest(
        base_image="b:2", cache=False, arguments={"X": "1"}, platform="linux/arm64", variables={"UI": "false"}
    )
    built = build(project, request)
    asked = engine.made["build"]
    assert (asked["nocache"], asked["buildargs"], asked["platform"]) == ("True", '{"X": "1"}', "linux/arm64")
    assert asked["t"] == "openenv-my_env:latest"
    text = sent(engine)["server/Dockerfile"]
    assert text.startswith("ARG BASE_IMAGE=b:2\n")
    assert text.endswith("\nENV UI=false\n")
    assert built.base == "${BASE_IMAGE}"
    assert "b:2" not in (project.folder / "server" / "Dockerfile").read_text()  # the project is as it was


def test_a_dockerfile_of_elsewhere_gets_into_no_image(engine: Engine, project: Project, tmp_path: Path) -> None:
    engine.said["build"] = FINE
    other = tmp_path / "Other"
    other.write_text("FROM a\nCOPY . /app\n")
    (project.folder / ".dockerignore").write_text("*.md\n")
    build(project, BuildRequest(dockerfile=other))
    files = sent(engine)
    assert engine.made["build"]["dockerfile"] in files
    assert engine.made["build"]["dockerfile"] in files[".dockerignore"].splitlines()
    assert files[".dockerignore"].startswith("*.md\n")


@pytest.mark.parametrize("folder", ["my_env/server", "."])
def test_an_older_tree_is_built_from_where_its_dockerfile_copies(
    engine: Engine, project: Project, tmp_path: Path, folder: str
) -> None:
    engine.said["build"] = FINE
    (tmp_path / folder / "only-there").write_text("")
    (project.folder / "server" / "Dockerfile").write_text("FROM a\nCOPY only-there /x\n")
    build(project, BuildRequest())
    assert "only-there" in sent(engine)


def test_a_context_that_is_named_has_its_own_dockerfile(engine: Engine, project: Project) -> None:
    engine.said["build"] = FINE
    (project.folder / "other").mkdir()
    (project.folder / "other" / "Dockerfile").write_text("FROM b\n")
    build(project, BuildRequest(context=project.folder / "other"))
    assert sent(engine) == {"Dockerfile": "FROM b\n"}


def test_a_dockerfile_that_fails_is_one_error_with_its_last_lines(engine: Engine, project: Project) -> None:
    engine.said["build"] = Events(
        [
            {"stream": "Step 4/4 : RUN pip install     openenv\n"},
            {"stream": "no such package, key hush-hush\n"},
            {"error": "The command '/bin/sh -c pip' returned a non-zero code: 1"},
        ]
    )
    with pytest.raises(UsageError) as caught:
        build(project, BuildRequest(arguments={"MY_TOKEN": "hush-hush"}))
    first, *rest = caught.value.message.splitlines()
    assert first == (
        "server/Dockerfile, line 5: step 4 of 4 (`RUN pip install openenv`) failed: "
        "the command ended with exit code 1; the end of its output:"
    )
    assert rest == ["  no such package, key ***"]
    assert caught.value.data == {
        "dockerfile": "server/Dockerfile",
        "line": 5,
        "step": 4,
        "log": ["no such package, key ***"],
    }


@pytest.mark.parametrize(
    ("step", "reason", "hint"),
    [
        ("FROM nothing", "pull access denied", "set another base image with --base-image"),
        ("COPY x /x", "COPY failed: file not found in build context", "set another folder with --context"),
        ("COPY x /x", "write /x: no space left on device", "docker system prune"),
        ("RUN cat x", "no such file or directory", "directory$"),
    ],
)
def test_a_failure_says_what_to_do(engine: Engine, project: Project, step: str, reason: str, hint: str) -> None:
    engine.said["build"] = Events([{"stream": f"Step 2/2 : {step}\n"}, {"error": reason}])
    with pytest.raises(UsageError, match=hint):
        build(project, BuildRequest())


def test_an_engine_that_ends_in_the_midst_is_a_passing_failure(engine: Engine, project: Project) -> None:
    engine.said["build"] = Events([{"stream": "Step 1/2 : FROM a\n"}])
    with pytest.raises(ProviderBusy, match="try it again"):
        build(project, BuildRequest())


def test_a_secret_among_the_arguments_is_warned_of_and_not_repeated(engine: Engine, project: Project) -> None:
    engine.said["build"] = FINE
    built = build(project, BuildRequest(arguments={"MY_TOKEN": "hush-hush", "PLAIN": "x"}))
    assert len(built.warnings) == 1
    assert "MY_TOKEN" in built.warnings[0]
    assert "hush" not in repr((built, BuildRequest(arguments={"MY_TOKEN": "hush-hush"})))


def test_a_context_with_much_in_it_is_warned_of(
    engine: Engine, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.said["build"] = FINE
    monkeypatch.setattr("openenv.project.image.building.LARGE", 100)
    (project.folder / "weights").write_bytes(b"0" * 200)
    built = build(project, BuildRequest())
    assert "does not need in .dockerignore" in built.warnings[0]


def test_what_the_engine_warns_of_is_told(engine: Engine, project: Project) -> None:
    engine.said["build"] = Events([*FINE, {"stream": "[Warning] One or more build-args [X] were not consumed\n"}])
    assert build(project, BuildRequest()).warnings == ("One or more build-args [X] were not consumed",)


def test_a_wheel_of_what_runs_here_goes_where_the_dockerfile_looks_for_it(
    engine: Engine, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(folder: Path) -> Path:
        (folder / "openenv-9-py3-none-any.whl").write_bytes(b"wheel")
        return folder / "openenv-9-py3-none-any.whl"

    monkeypatch.setattr("openenv.project.image.building.from_index", lambda: False)
    monkeypatch.setattr("openenv.project.image.building.own_wheel", made)
    engine.said["build"] = FINE
    built = build(project, BuildRequest())
    assert built.wheel is None
    assert "does not use the folder wheels/" in built.warnings[0]
    with (project.folder / "server" / "Dockerfile").open("a") as file:
        file.write("COPY wheels* /wheels/\n")
    built = build(project, BuildRequest())
    assert (built.wheel, built.warnings) == ("openenv-9-py3-none-any.whl", ())
    assert sent(engine)["wheels/openenv-9-py3-none-any.whl"] == "wheel"
    (project.folder / "wheels").mkdir()
    (project.folder / "wheels" / "openenv-8-py3-none-any.whl").write_bytes(b"theirs")
    assert build(project, BuildRequest()).wheel is None  # the project has chosen another
    assert "wheels/openenv-9-py3-none-any.whl" not in sent(engine)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (BuildRequest(tags=("A b",)), "is not a valid image name"),
        (BuildRequest(dockerfile=Path("none")), "--dockerfile"),
        (BuildRequest(context=Path("/nowhere")), "there is no folder|there is no"),
        (BuildRequest(base_image="a", arguments={"BASE_IMAGE": "b"}), "given twice"),
    ],
)
def test_odd_requests_are_refused(engine: Engine, project: Project, request_: BuildRequest, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(project, request_)
    assert "POST /build" not in engine.asked


def test_a_project_without_a_dockerfile_says_where_one_is_to_be_had(engine: Engine, project: Project) -> None:
    (project.folder / "server" / "Dockerfile").unlink()
    with pytest.raises(UsageError, match="openenv init"):
        build(project, BuildRequest())


def test_without_an_engine_it_is_said_how_to_get_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{project.folder}/none")
    with pytest.raises(ProviderFailed, match="no Docker engine answers at unix:///.*/none: start it.*DOCKER_HOST"):
        build(project, BuildRequest())


def test_a_store_of_credentials_that_is_not_there_is_said(
    engine: Engine, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"credsStore": "none-such"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(LaunchFailed, match="docker-credential-none-such not installed.*`credsStore`"):
        build(project, BuildRequest())
