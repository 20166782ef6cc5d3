from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from openenv.cli.reload import change, watched
from openenv.client import GenericEnvClient
from openenv.errors import UsageError

from .process import Serving, serving
from .projects import write_module, write_project


def test_of_a_project_its_own_folder_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path / "guess_env", package=True)
    monkeypatch.chdir(tmp_path)
    assert watched("guess_env") == [tmp_path / "guess_env"]
    monkeypatch.chdir(tmp_path / "guess_env")
    assert watched(".") == [tmp_path / "guess_env"]


def test_of_a_module_the_folder_of_its_package_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write_module(tmp_path / "alone_here.py", "app = None")
    (tmp_path / "packed_here").mkdir()
    (tmp_path / "packed_here" / "__init__.py").touch()
    assert watched("packed_here.server.app:app") == [tmp_path / "packed_here"]
    assert watched("alone_here:app") == [tmp_path]


def test_a_bundled_environment_can_be_watched() -> None:
    assert [folder.name for folder in watched("echo")] == ["echo"]


@pytest.mark.parametrize("target", ["gymnasium:CartPole-v1", "nothing", "no_such_module_anywhere:app", ":app"])
def test_what_has_no_files_cannot_be_watched(target: str) -> None:
    with pytest.raises(UsageError, match="--reload"):
        watched(target)


def test_what_an_editor_makes_and_removes_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("a = 1\n")
    seen = change([tmp_path], {})
    assert seen is not None
    assert list(seen) == [tmp_path / "models.py"]
    assert change([tmp_path], seen) is None

    beside = tmp_path / "models_tmp.py"
    beside.touch()
    assert change([tmp_path], seen, lambda: beside.unlink(missing_ok=True)) is None

    # Saved by another name, which then is the file's own: one change, of the file.
    beside.write_text("a = 22\n")
    saves = iter([lambda: beside.replace(tmp_path / "models.py")])
    now = change([tmp_path], seen, lambda: next(saves, lambda: None)())
    assert now is not None
    assert list(now) == [tmp_path / "models.py"]
    assert now != seen


def save(path: Path, text: str) -> None:
    """Writes at once: a pause between emptying and filling a file makes two changes of one."""
    beside = path.parents[1] / "not-watched"
    beside.write_text(text)
    beside.replace(path)


def hint_of(url: str) -> str:
    with GenericEnvClient(url) as env:
        env.reset()
        return str(env.step({"number": 1}).observation["hint"])


@pytest.mark.slow
@pytest.mark.real
def test_it_survives_what_cannot_be_imported_and_keeps_the_port(tmp_path: Path) -> None:
    folder = write_project(tmp_path / "guess_env", package=True, hint="first")
    environment = folder / "server" / "guess_environment.py"
    good = environment.read_text()
    (tmp_path / "elsewhere.py").write_text("a = 1\n")
    with serving("--reload", cwd=folder) as server:
        assert "reloading" in server.announcement
        assert hint_of(server.url) == "first"

        (tmp_path / "elsewhere.py").write_text("a = 2\n")
        save(environment, "def broken(:\n")
        assert "guess_environment.py changed" in server.line()
        assert any("SyntaxError" in line for line in lines_until(server, "error:"))
        assert "waiting for a change" in server.line()

        save(environment, good.replace('"first"', '"second"'))
        assert "changed" in server.line()
        assert "serving again" in server.line()
        assert hint_of(server.url) == "second"

        (process,) = (pid for pid in server.group() if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(process, signal.SIGKILL)
        assert "no server (exit code -9): waiting for a change" in server.line()

        save(folder / "openenv.yaml", "app: server.app:app\nname: guess_env\n")
        assert "openenv.yaml changed" in server.line()
        assert "serving again" in server.line()
        code, complaints = server.end(signal.SIGINT, group=True)
        assert (code, complaints.strip()) == (130, "")
        assert server.group() == []


@pytest.mark.slow
@pytest.mark.real
def test_a_project_that_is_broken_at_the_start_is_waited_for(tmp_path: Path) -> None:
    folder = write_project(tmp_path / "guess_env", package=True)
    models = folder / "models.py"
    good = models.read_text()
    models.write_text(good + "\nimport unheard_of\n")
    command = [sys.executable, "-m", "openenv", "serve", str(folder), "--reload", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        try:
            assert process.stderr is not None
            said = iter(process.stderr.readline, "")
            assert "unheard_of" in next(line for line in said if line.startswith("error:"))
            assert f"waiting for a change in {folder}" in next(said)
            save(models, good)
            assert "models.py changed" in next(said)
            found = re.search(r"http://[^ ]+", next(said))
            assert found is not None
            assert hint_of(found[0]) == "no"
            process.terminate()
            assert "Traceback" not in process.stderr.read()
            assert process.wait() == 0
        finally:
            process.kill()


def lines_until(server: Serving, start: str) -> list[str]:
    lines: list[str] = []
    while not (lines and lines[-1].startswith(start)):
        line = server.line()
        assert line, lines
        lines.append(line)
    return lines
