"""What an engine is sent to build."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from pathlib import Path

import pytest

from openenv.errors import UsageError
from openenv.project.image import Context

pytest.importorskip("docker")


def tree(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def sent(context: Context) -> dict[str, tarfile.TarInfo]:
    file = io.BytesIO()
    context.write(file)
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        return {entry.name: entry for entry in archive}


def files(context: Context) -> set[str]:
    return {name for name, entry in sent(context).items() if entry.isfile()}


def test_what_dockerignore_names_is_not_sent(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "b.log", "c/d.py", "c/e.log", "keep/f.log", ".venv/x")
    (tmp_path / ".dockerignore").write_text("# comment\n\n**/*.log\n!keep/f.log\n.venv/\n")
    assert files(Context.of(tmp_path, {})) == {".dockerignore", "a.py", "c/d.py", "keep/f.log"}


def test_without_one_what_no_image_needs_stays_here(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", ".env", ".git/x", ".venv/x", "b/__pycache__/x.pyc", ".mypy_cache/y", "c/d.py")
    assert files(Context.of(tmp_path, {})) == {"a.py", "c/d.py"}


def test_what_is_added_takes_the_place_of_a_file(tmp_path: Path) -> None:
    context = Context.of(tree(tmp_path, "a", "b"), {"a": b"other", "wheels/x.whl": b"wheel"})
    found = sent(context)
    assert found["a"].size == 5
    assert found["wheels/x.whl"].size == 5
    assert context.sizes().total() == 5 + 5 + 1


def test_the_same_files_give_the_same_context_whoever_has_them(tmp_path: Path) -> None:
    tree(tmp_path, "a", "b/c")
    (tmp_path / "a").chmod(0o600)
    (tmp_path / "b/c").chmod(0o775)
    found = sent(Context.of(tmp_path, {}))
    assert {(entry.uid, entry.gid, entry.uname) for entry in found.values()} == {(0, 0, "")}
    assert (found["a"].mode, found["b/c"].mode, found["b"].mode) == (0o644, 0o755, 0o755)


def test_links_stay_links_and_sockets_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "a")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "broken").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("s")
        found = sent(Context.of(tmp_path, {}))
    assert found["link"].issym()
    assert found["broken"].linkname == "nowhere"
    assert set(found) == {"a", "link", "broken"}


def test_wheels_of_the_project_are_known(tmp_path: Path) -> None:
    context = Context.of(tree(tmp_path, "wheels/openenv-1-py3-none-any.whl", "wheels/README", "a.whl"), {})
    assert context.wheels == ["wheels/openenv-1-py3-none-any.whl"]


def test_a_folder_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--context"):
        Context.of(tmp_path / "none", {})


def test_a_file_that_goes_away_meanwhile_is_named(tmp_path: Path) -> None:
    context = Context.of(tree(tmp_path, "a", "b"), {})
    (tmp_path / "b").unlink()
    with pytest.raises(UsageError, match="b cannot be read: No such file.*dockerignore"):
        sent(context)
