from __future__ import annotations

from pathlib import Path

import pytest

from openenv.errors import UsageError
from openenv.project import Manifest


def read(folder: Path, text: str) -> Manifest:
    (folder / "openenv.yaml").write_text(text)
    return Manifest.read(folder)


WHOLE = """
spec_version: 1
name: maze_env
version: 1.2
description: A maze.
type: space
runtime: fastapi
app: server.app:app
port: 8001
client: client:MazeEnv
action: MazeAction
observation: maze_env.models.MazeObservation
environment: server.maze:Maze
execution: thread
limits: {max_sessions: 8, queue_timeout_s: 2.5}
variables: [{name: SIZE, value: 3}]
"""


def test_every_key_is_read(tmp_path: Path) -> None:
    manifest = read(tmp_path, WHOLE)
    assert manifest.path == tmp_path / "openenv.yaml"
    assert (manifest.spec_version, manifest.name, manifest.version) == (1, "maze_env", "1.2")
    assert (manifest.type, manifest.runtime, manifest.app, manifest.port) == (
        "space", "fastapi", "server.app:app", 8001,
    )  # fmt: skip
    assert (manifest.description, manifest.client, manifest.action) == ("A maze.", "client:MazeEnv", "MazeAction")
    assert (manifest.observation, manifest.environment) == ("maze_env.models.MazeObservation", "server.maze:Maze")
    assert (manifest.execution, manifest.limits) == ("thread", {"max_sessions": 8, "queue_timeout_s": 2.5})
    assert manifest.variables == [{"name": "SIZE", "value": 3}]


def test_what_is_absent_has_the_usual_value(tmp_path: Path) -> None:
    folder = tmp_path / "maze_env"
    folder.mkdir()
    manifest = read(folder, "app: server.app:app\nversion:\n")
    assert (manifest.spec_version, manifest.name, manifest.type, manifest.port) == (1, "maze_env", "space", 8000)
    assert (manifest.version, manifest.client, manifest.action, manifest.limits) == (None, None, None, {})


def test_a_file_may_be_named_itself(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("name: maze\n")
    assert Manifest.read(tmp_path / "other.yaml").name == "maze"


def test_keys_that_nobody_knows_are_left_alone(tmp_path: Path) -> None:
    assert read(tmp_path, "name: maze\ndefault_image: maze:1\ntags: [a]\n").name == "maze"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("- name\n", "is a list"),
        ("maze\n", "is a str"),
        ("name: [\n", "is no YAML"),
        ("spec_version: 2\n", "`spec_version`"),
        ("name: ''\n", "`name`"),
        ("name: [maze]\n", "`name`"),
        ("port: many\n", "`port`"),
        ("port: 70000\n", "`port`"),
        ("app: server.app\n", "`app` must say module:attribute"),
        ("app: 3\n", "`app` must say module:attribute"),
        ("client: 'import os; x'\n", "`client` write module:attribute"),
        ("action: 7\n", "`action`"),
        ("action: {module: a}\n", "`action`"),
        ("execution: gpu\n", "`execution`"),
        ("limits: 3\n", "`limits`"),
        ("limits: {max_sessions: many}\n", "`limits.max_sessions"),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "openenv.yaml") in caught.value.message
    assert words in caught.value.message


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"`app` .*; .*`port`"):
        read(tmp_path, "app: a\nport: b\n")


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no .*openenv\.yaml"):
        Manifest.read(tmp_path)


def test_a_manifest_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "openenv.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        Manifest.read(tmp_path)
