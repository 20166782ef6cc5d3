"""`openenv push --registry`, on a stand-in for an engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.cli import main

from ..providers.engine import Engine, Events, standing_in

DIGEST = "sha256:" + "0" * 64
BUILT = Events([{"stream": "Step 1/1 : FROM a\n"}, {"aux": {"ID": "sha256:1"}}])
PUSHED = Events([{"status": "Pushed", "id": "a", "progressDetail": {}}, {"aux": {"Tag": "1", "Digest": DIGEST}}])
REGISTRY = ("--registry", "h.example/team")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    pytest.importorskip("docker")
    engine = Engine(0)
    engine.said |= {"build": BUILT, "push": PUSHED}
    with standing_in(engine) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        yield engine


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    (tmp_path / "openenv.yaml").write_text("name: small\nversion: 1\n")
    (tmp_path / "Dockerfile").write_text("FROM a\n")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["openenv", "push", str(tmp_path), *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return run


def test_what_was_built_is_pushed_without_the_web_ui(run: Any, engine: Engine) -> None:
    code, out, err = run(*REGISTRY, "--build-arg", "X=1")
    assert code == 0, err
    assert engine.made["build"]["t"] == "h.example/team/small:1"
    assert json.loads(engine.made["build"]["buildargs"]) == {"X": "1"}
    assert b"ENV ENABLE_WEB_INTERFACE=false\n" in engine.contexts[0]
    assert out.splitlines() == [
        "pushed h.example/team/small:1: 1 layers, 0 of them existed already",
        f"  digest:  {DIGEST}",
        "  run it:  docker run --rm -p 8000:8000 h.example/team/small:1",
        f'  or:      LaunchSpec(image="h.example/team/small@{DIGEST}")',
    ]


def test_an_image_that_there_is_is_pushed_as_it_is(run: Any, engine: Engine) -> None:
    code, out, _ = run(*REGISTRY, "--image", "img:1", "-t", "x", "--json")
    assert code == 0
    assert "POST /build" not in engine.asked
    document = json.loads(out)
    assert document["image"] == "h.example/team/small:x"
    assert document["reference"] == f"h.example/team/small@{DIGEST}"


def test_a_dry_run_asks_no_engine(run: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    code, out, _ = run(*REGISTRY, "--dry-run")
    assert (code, out) == (0, f"would build {tmp_path}, and push it as h.example/team/small:1\n")
    code, out, _ = run(*REGISTRY, "--image", "img:1", "--dry-run", "--json")
    assert json.loads(out) == {"image": "h.example/team/small:1", "pushed": False}


def test_a_push_that_is_refused_names_the_next_command(run: Any, engine: Engine) -> None:
    engine.said["push"] = Events([{"error": "denied: requested access to the resource is denied"}])
    code, out, err = run(*REGISTRY, "--image", "img:1")
    assert (code, out) == (1, "")
    assert "`docker login h.example`" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ([*REGISTRY, "--private"], "--private is of Spaces"),
        ([*REGISTRY, "--create-pr"], "--create-pr is of Spaces"),
        ([*REGISTRY, "-r", "a/b"], "--repo-id is of Spaces"),
        ([*REGISTRY, "-H", "cpu-basic"], "--hardware is of Spaces"),
        ([*REGISTRY, "-n", "1"], "--count is of Spaces"),
        ([*REGISTRY, "--delete", "*"], "--delete is of Spaces"),
        ([*REGISTRY, "-e", "A=1"], "--env-var is of Spaces"),
        ([*REGISTRY, "--secret", "A=hush-hush"], "--secret is of Spaces"),
        ([*REGISTRY, "--image", "a", "-b", "c"], "--image is built already: leave out it or --base-image"),
        (["--tag", "x"], "--tag needs --registry"),
        (["--image", "x"], "--image needs --registry"),
        (["--create-pr", "-n", "2"], "--create-pr is of one Space"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(run: Any, arguments: list[str], option: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert option in err
    assert "hush-hush" not in err


@pytest.mark.parametrize("more", [["--registry", "https://h.example/x"], [*REGISTRY, "-t", "a b"]])
def test_names_that_cannot_be_are_refused_before_anything_is_done(run: Any, engine: Engine, more: list[str]) -> None:
    code, _, err = run(*more)
    assert code == 1
    assert err.count("\n") == 1
    assert engine.asked == []
