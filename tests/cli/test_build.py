"""`openenv build`, on a stand-in for an engine."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.cli import main
from openenv.cli.terminal import ProgressBar

from ..providers.engine import Engine, Events, standing_in

FINE = Events(
    [
        {"stream": "Step 1/2 : FROM a\n"},
        {"stream": "Step 2/2 : RUN x\n"},
        {"stream": " ---> Running in 1\n"},
        {"stream": "what it writes\n"},
        {"aux": {"ID": "sha256:1"}},
    ]
)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    pytest.importorskip("docker")
    engine = Engine(0)
    engine.said["build"] = FINE
    with standing_in(engine) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        yield engine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, which is the current folder."""
    (tmp_path / "openenv.yaml").write_text("name: small\n")
    (tmp_path / "Dockerfile").write_text("FROM a\nRUN x\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["openenv", "build", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return run


def test_the_image_of_the_current_folder_is_built(run: Any, engine: Engine, folder: Path) -> None:
    code, out, err = run()
    assert code == 0
    assert out.splitlines() == [
        out.splitlines()[0],
        "  run it:  docker run --rm -p 8000:8000 openenv-small:latest",
    ]
    assert out.startswith("built openenv-small:latest: ")
    assert "1 of 2 steps executed" in out
    assert "step 2/2: RUN x\n" in err
    assert "step 2/2 RUN x  [0.0 s]\n" in err
    assert "what it writes" not in err


def test_with_verbose_all_is_shown(run: Any, engine: Engine, folder: Path) -> None:
    assert "\n  what it writes\n" in run("-v")[2]


def test_json_is_one_document_and_nothing_else(run: Any, engine: Engine, folder: Path) -> None:
    code, out, _ = run("--json", "-t", "a:1", "-t", "b")
    document = json.loads(out)
    assert code == 0
    assert document["tags"] == ["a:1", "b:latest"]
    assert document["base_image"] == "a"
    assert [step["instruction"] for step in document["steps"]] == ["FROM a", "RUN x"]


def test_options_reach_the_engine(run: Any, engine: Engine, folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("FROM_HERE", "here")
    code, _, err = run(
        ".",
        "--no-cache",
        "--build-arg",
        "A=1=2",
        "--build-arg",
        "FROM_HERE",
        "--platform",
        "linux/arm64",
        "-b",
        "x:1",
    )
    assert code == 0, err
    asked = engine.made["build"]
    assert json.loads(asked["buildargs"]) == {"A": "1=2", "FROM_HERE": "here"}
    assert (asked["nocache"], asked["platform"]) == ("True", "linux/arm64")
    assert b"FROM x:1\n" in engine.contexts[0]


def test_a_bundled_environment_is_built_by_its_name(run: Any, engine: Engine, folder: Path) -> None:
    (folder / "echo").write_text("")  # a file of that name is what is meant, where there is one
    assert run("echo")[0] == 1
    (folder / "echo").unlink()
    code, out, err = run("echo")
    assert code == 0, err
    assert "openenv-echo:latest" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--build-arg", "NOT_SET_HERE"], 1, "--build-arg NOT_SET_HERE: the variable is not set in this shell"),
        (["--build-arg", "=x"], 1, "--build-arg : "),
        (["-t", "Odd:1"], 1, "write odd:1"),
        (["nowhere"], 1, "there is no folder nowhere"),
        (["-f", "nowhere"], 1, "there is no .*nowhere.*--dockerfile"),
        (["-c", "nowhere"], 1, "there is no folder .*nowhere.*--context"),
        (["--odd"], 2, "No such option"),
    ],
)
def test_bad_input_is_one_line(
    run: Any, engine: Engine, folder: Path, arguments: list[str], code: int, words: str
) -> None:
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert re.search(words, err)
    assert err.lower().count("error:") == 1
    assert "POST /build" not in engine.asked


def test_a_folder_that_is_no_project(run: Any, tmp_path: Path) -> None:
    code, _, err = run(tmp_path)
    assert code == 1
    assert "openenv init NAME" in err


def test_without_an_engine_it_is_one_line_that_says_how_to_get_one(run: Any, folder: Path, monkeypatch: Any) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/none")
    code, out, err = run()
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "DOCKER_HOST" in err


def test_an_interruption_is_exit_code_130(run: Any, engine: Engine, folder: Path, monkeypatch: Any) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ProgressBar, "say", interrupted)
    assert run()[0] == 130
