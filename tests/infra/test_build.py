"""`openenv build`, on a Docker engine of the tests' own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import ProviderBusy, UsageError
from openenv.project import Project
from openenv.project.hub import SpaceRequest, Stage
from openenv.project.image import BuildProgress, BuildRequest, Built, build
from openenv.project.scaffold import Scaffold, Template
from tests.infra.parts.dockerd import Dockerd, dockerd
from tests.infra.parts.image import CHECKOUT, QUICK, base_of, own_wheel, quick, wheels, wheels_beside

pytestmark = pytest.mark.real

LIMIT_S = 60.0
OFFLINE = {"PIP_NO_INDEX": "1"}
YAML = "name: small\nversion: 1.0\n"
# A step of each project of envs/, and what has to be in its answer.
STEPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gridworld": ({"move": "right"}, {"steps_left": 127}),
    "python_sandbox": ({"kind": "run", "code": "6 * 7"}, {"status": "ok", "value": "42"}),
    "reasoning": ({"answer": "292"}, {"correct": False, "terminated": True}),
    "tool_shop": ({"type": "call_tool", "tool_name": "finish", "arguments": {}}, {"terminated": True}),
    "word_game": ({"guess": "crane"}, {"guesses_left": 5}),
}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Dockerd]:
    pytest.importorskip("docker")
    with dockerd() as daemon, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon.host)
        yield daemon


@pytest.fixture(scope="module")
def engine(daemon: Dockerd) -> Iterator[Any]:
    engine = daemon.client()
    quick(engine)
    base_of(engine, "echo")
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def nothing_left(engine: Any) -> Iterator[None]:
    """No build leaves a container."""
    yield
    limit = time.monotonic() + LIMIT_S
    while left := engine.containers.list(all=True, ignore_removed=True):  # one may go between two questions
        assert time.monotonic() < limit, left


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels that images of templates need, with one of this checkout."""
    folder = tmp_path_factory.mktemp("packages")
    own_wheel(folder)
    for wheel in wheels("gymnasium", "mcp").iterdir():
        (folder / wheel.name).hardlink_to(wheel)
    return folder


def made(template: Template, folder: Path, packages: Path) -> Project:
    """A new project that needs no index."""
    Scaffold.of("my_env", template, folder).make()
    shutil.copytree(packages, folder / "my_env" / "wheels", copy_function=os.link)
    return Project.find(folder / "my_env")


def small(folder: Path, dockerfile: str) -> Project:
    """A project with next to nothing in it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "openenv.yaml").write_text(YAML)
    (folder / "Dockerfile").write_text(dockerfile)
    return Project.find(folder)


@contextlib.contextmanager
def running(engine: Any, image: str, **options: Any) -> Iterator[tuple[Any, str]]:
    """A container, and where its server is reached."""
    container = engine.containers.run(
        image,
        detach=True,
        ports={"8000/tcp": ("127.0.0.1", None)},
        environment={"OPENENV_API_KEYS": "none"},
        **options,
    )
    try:
        container.reload()
        yield container, f"http://127.0.0.1:{container.ports['8000/tcp'][0]['HostPort']}"
    finally:
        container.remove(force=True)


def await_health(container: Any) -> None:
    limit = time.monotonic() + LIMIT_S
    while container.attrs["State"].get("Health", {}).get("Status") != "healthy":
        assert time.monotonic() < limit, container.logs().decode()
        assert container.attrs["State"]["Running"], container.logs().decode()
        container.reload()


@pytest.mark.parametrize("template", Template)
def test_the_image_of_every_template_is_built_and_runs(
    engine: Any, tmp_path: Path, packages: Path, template: Template
) -> None:
    project = made(template, tmp_path, packages)
    built = build(project, BuildRequest(tags=(f"{template}:1",), arguments=OFFLINE))
    assert built.names == (f"{template}:1",)
    assert not built.warnings
    with running(engine, built.id) as (container, url):
        await_health(container)
        assert container.exec_run("id -u").output.decode().strip() == "1000"
        with GenericEnvClient(url) as env:
            env.reset()
            container.kill("TERM")
            env.reset()  # a session that is open goes on
        assert container.wait(timeout=LIMIT_S)["StatusCode"] == 0, container.logs().decode()


@pytest.mark.parametrize("name", STEPS)
def test_the_image_of_every_project_of_envs_is_built_and_plays(
    engine: Any, tmp_path: Path, packages: Path, name: str
) -> None:
    folder = tmp_path / name
    shutil.copytree(CHECKOUT / "envs" / name, folder)
    shutil.copytree(packages, folder / "wheels", copy_function=os.link)
    shutil.copytree(wheels_beside(folder), folder / "wheels", dirs_exist_ok=True)
    built = build(Project.find(folder), BuildRequest(tags=(f"{name}:1",), arguments=OFFLINE))
    assert not built.warnings
    # As its README says that it is run.
    allowed = re.findall(r"--security-opt (\S+)", (folder / "README.md").read_text())
    action, answer = STEPS[name]
    with running(engine, built.id, security_opt=allowed) as (container, url):
        await_health(container)
        with GenericEnvClient(url) as env:
            env.reset(seed=1)
            assert answer.items() <= env.step(action).observation.items()


def test_what_is_pushed_to_a_space_is_built_and_is_open_to_all(engine: Any, tmp_path: Path, packages: Path) -> None:
    """As the Hub does it: with no variable of ours, as user 1000."""
    project = made(Template.BASIC, tmp_path / "mine", packages)
    (project.folder / ".gitignore").unlink()  # its wheels are all that there is here
    space = tmp_path / "space"
    for name, source in Stage.of(project, SpaceRequest()).files.items():
        (space / name).parent.mkdir(parents=True, exist_ok=True)
        (space / name).write_bytes(source if isinstance(source, bytes) else source.read_bytes())
    built = build(Project.find(space), BuildRequest(tags=("space:1",), arguments=OFFLINE))
    container = engine.containers.run(built.id, detach=True, user=1000, ports={"8000/tcp": ("127.0.0.1", None)})
    try:
        container.reload()
        await_health(container)
        url = f"http://127.0.0.1:{container.ports['8000/tcp'][0]['HostPort']}"
        with GenericEnvClient(url) as env:
            assert env.reset(seed=1).observation
        with urllib.request.urlopen(f"{url}/web/metadata", timeout=LIMIT_S) as answer:
            assert json.load(answer)["name"]
    finally:
        container.remove(force=True)


def test_a_change_of_all_but_the_dependencies_takes_them_from_the_cache(
    engine: Any, tmp_path: Path, packages: Path
) -> None:
    project = made(Template.BASIC, tmp_path, packages)
    request = BuildRequest(tags=("a:1", "b:2"), arguments=OFFLINE)
    first = build(project, request)
    with (project.folder / "models.py").open("a") as file:
        file.write("\n# changed\n")
    facts = project.folder / "pyproject.toml"
    facts.write_text(re.sub(r"(?m)^description = .*$", 'description = "Another."', facts.read_text()))
    second = build(project, request)
    assert installing(second).cached
    assert second.id != first.id
    assert engine.images.get("a:1").id == engine.images.get("b:2").id == second.id
    assert build(project, request).executed == 0


def installing(built: Built) -> Any:
    """The step that installs what the project depends on."""
    (found,) = [step for step in built.steps if "pip install" in step.text]
    return found


def test_the_image_has_the_openenv_that_runs_here(engine: Any, tmp_path: Path, packages: Path) -> None:
    project = made(Template.BASIC, tmp_path, packages)
    for wheel in (project.folder / "wheels").glob("openenv-*.whl"):
        wheel.unlink()
    shown: list[BuildProgress | str] = []
    built = build(project, BuildRequest(arguments=OFFLINE), shown.append)
    assert built.wheel is not None
    assert built.wheel.startswith("openenv-1.")
    assert any("did not come from a package index" in line for line in shown if isinstance(line, str))
    with running(engine, built.id) as (container, _):
        await_health(container)
        said = container.exec_run("openenv --version").output.decode()
    assert said.split()[1] == built.wheel.split("-")[1]


def test_another_base_is_taken(engine: Any, tmp_path: Path) -> None:
    engine.images.get("python:3.12-slim").tag("other", "2")
    project = small(tmp_path, "FROM 127.0.0.1:1/nothing AS one\nFROM one\nRUN true\n")
    assert build(project, BuildRequest(base_image="other:2")).steps[0].text == "FROM other:2 AS one"
    with pytest.raises(
        UsageError, match="Dockerfile, line 1: step 1 of 3 .*127.0.0.1:1.*set another base image with --base-image"
    ):
        build(project, BuildRequest())


def test_an_older_tree_is_built(engine: Any, tmp_path: Path) -> None:
    project = small(tmp_path / "envs" / "old_env", "FROM nothing\n")
    (project.folder / "Dockerfile").unlink()
    (project.folder / "server").mkdir()
    (project.folder / "server" / "Dockerfile").write_text(
        "# syntax=docker/dockerfile:1\nARG BASE_IMAGE=python:3.12-slim\nFROM ${BASE_IMAGE} AS builder\nWORKDIR /app\n"
        "COPY src/core/ /app/core/\nCOPY envs/old_env/ /app/env\n"
        "RUN --mount=type=cache,target=/cache/uv \\\n    test -f /app/env/openenv.yaml && test -f /app/core/x\n"
        "FROM ${BASE_IMAGE}\nCOPY --from=builder --link /app /app\nENV PATH=/app/.venv/bin:$PATH\n"
        'CMD ["sh", "-c", "cd /app/env && cat openenv.yaml"]\n'
    )
    (tmp_path / "src" / "core").mkdir(parents=True)
    (tmp_path / "src" / "core" / "x").write_text("")
    built = build(project, BuildRequest())
    assert built.names == ("openenv-small:latest",)
    assert engine.containers.run(built.id, remove=True).decode() == YAML


def test_a_dockerfile_that_fails_says_where_and_its_last_lines(tmp_path: Path, engine: Any) -> None:
    text = "FROM python:3.12-slim\n\nRUN true\n# two lines\nRUN for i in 1 2 3; do echo line $i; done; \\\n  exit 7\n"
    project = small(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        build(project, BuildRequest())
    first, *rest = caught.value.message.splitlines()
    assert first.startswith("Dockerfile, line 5: step 3 of 3 (`RUN for i in 1 2 3;")
    assert "failed: the command ended with exit code 7" in first
    assert rest == ["  line 1", "  line 2", "  line 3"]


@pytest.mark.parametrize(
    ("dockerfile", "words"),
    [
        ("FROM python:3.12-slim\nINSTALL x\n", "Dockerfile, line 2: .*unknown instruction: INSTALL"),
        ("FROM python:3.12-slim\nCOPY nothing /x\n", "line 2: step 2 of 2 .*set another folder with --context"),
        ("FROM python:3.12-slim\nRUN echo x > /dev/full\n", "line 2: step 2 of 2 .*exit code"),
        ("FROM python:3.12-slim AS a\nCOPY --from=b x /x\n", "line 2: step 2 of 2"),
        ("RUN x\nFROM a\n", "no build stage in current context|FROM"),
    ],
)
def test_other_faults_of_dockerfiles(tmp_path: Path, engine: Any, dockerfile: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        build(small(tmp_path, dockerfile), BuildRequest())
    assert "\n" not in caught.value.message.partition("; the end of its output:")[0]


def test_an_engine_that_dies_during_a_build(tmp_path: Path) -> None:
    with dockerd() as own, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", own.host)
        with contextlib.closing(own.client()) as client:
            quick(client)
        project = small(tmp_path, f"FROM {QUICK.image}\nCOPY . /one\nCOPY . /two\nCOPY . /three\n")

        def kill(shown: BuildProgress | str) -> None:
            if isinstance(shown, BuildProgress) and shown.step.number == 2:
                own.kill()

        with pytest.raises(ProviderBusy):
            build(project, BuildRequest(), kill)


# The command.


def command(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-W", "error", "-m", "openenv", "build", *map(str, arguments)]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_the_command_says_what_it_built(tmp_path: Path, engine: Any) -> None:
    small(tmp_path, "FROM python:3.12-slim\nARG X\nRUN test $X = 5\n")
    outcome = command("-t", "c:1", "--build-arg", "X=5", "--json", cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    assert document["tags"] == ["c:1"]
    assert document["id"] == engine.images.get("c:1").id
    assert [step["instruction"] for step in document["steps"]][-1] == "RUN test $X = 5"
    assert "step 3/3 RUN test $X = 5  [" in outcome.stderr
    outcome = command("-t", "c:1", "--build-arg", "X=5", cwd=tmp_path)
    assert "c:1" in outcome.stdout
    assert "0 of 3 steps executed" in outcome.stdout
    assert "docker run --rm -p 8000:8000 c:1" in outcome.stdout
    assert "step 3/3 RUN test $X = 5  [cached]" in outcome.stderr


def test_a_failure_is_one_error_and_exit_code_1(tmp_path: Path, engine: Any) -> None:
    small(tmp_path, "FROM python:3.12-slim\nRUN echo what is wrong; exit 7\n")
    outcome = command(cwd=tmp_path)
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    assert outcome.stderr.count("error:") == 1
    assert outcome.stderr.endswith("; the end of its output:\n  what is wrong\n")


def test_an_interruption_ends_the_build_and_leaves_nothing(tmp_path: Path, engine: Any) -> None:
    small(tmp_path, "FROM python:3.12-slim\nRUN echo it runs; exec sleep 600\n")
    words = [sys.executable, "-W", "error", "-m", "openenv", "build", "-v"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("it runs" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert said.strip() == ""
