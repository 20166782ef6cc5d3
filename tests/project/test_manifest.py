from __future__ import annotations

from pathlib import Path

import pytest

from openenv.errors import UsageError
from openenv.project import Manifest
from openenv.project.manifest import remarks


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
        ("name: [\n", "is not valid YAML"),
        ("spec_version: 2\n", "`spec_version`"),
        ("name: ''\n", "`name`"),
        ("name: [maze]\n", "`name`"),
        ("port: many\n", "`port`"),
        ("port: 70000\n", "`port`"),
        ("app: server.app\n", "`app` must be module:attribute"),
        ("app: 3\n", "`app` must be module:attribute"),
        ("client: 'import os; x'\n", "`client` must be module:attribute"),
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


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("name: maze\nport: [\n", 3, 1, "flow"),
        ("name: maze\nport: 1: 2\n", 2, 8, "mapping values are not allowed"),
        ("name: maze\n\tport: 3\n", 2, 1, "indent with spaces"),
        ("name: 'maze\nport: 3\n", 3, 1, "quoted scalar"),
        ("name: maze\n---\nname: other\n", 2, 1, "single document"),
        ("name: maze\nother: *nothing\n", 2, 8, "undefined alias"),
        ("name: maze\nother: !!python/object:os.system x\n", 2, 8, "constructor"),
        ("name: maze\n{a: b}: c\n", 2, 1, "unhashable"),
        ("name: maze\nother: a\x07b\n", 2, 9, "'\\x07'"),
    ],
)
def test_what_is_no_yaml_is_told_with_line_and_column(
    tmp_path: Path, text: str, line: int, column: int, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert f"line {line}, column {column}: " in caught.value.message
    assert words in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "key", "place"),
    [
        ("name: maze\nport: many\n", "port", "line 2, column 7"),
        (
            "name: maze\nlimits:\n  max_sessions: 3\n  max_executing: many\n",
            "limits.max_executing",
            "line 4, column 18",
        ),
        ("{name: maze, app: x}\n", "app", "line 1, column 19"),
        ("name: maze\nport: 1\nport: many\n", "port", "line 3, column 7"),
        ("base: &base {port: many}\n<<: *base\nname: maze\n", "port", "line 1, column 1"),
        ("name: maze\nclient: [a]\n", "client", "line 2, column 9"),
    ],
)
def test_a_value_that_is_not_valid_is_told_with_line_and_column(
    tmp_path: Path, text: str, key: str, place: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert f"{tmp_path / 'openenv.yaml'}: {place}: `{key}" in caught.value.message


def test_a_version_is_the_text_that_is_written(tmp_path: Path) -> None:
    assert read(tmp_path, "version: 1.10\n").version == "1.10"
    assert read(tmp_path, "version: 2024-01-05\n").version == "2024-01-05"
    assert read(tmp_path, "version: 3\n").version == "3"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "name: " + "[" * 20_000,
        "version: 2024-02-31\n",
        "a0: &a0 [x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
        + "port: *a11\n",
        "name: &a [*a]\n",
    ],
    ids=["deep", "no date", "a bomb", "a loop"],
)
def test_a_manifest_made_to_do_harm_is_one_short_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert "openenv.yaml" in caught.value.message
    assert len(caught.value.message) < 1000
    assert "\n" not in caught.value.message


def remarked(folder: Path, text: str) -> list[tuple[str, str, str]]:
    (folder / "openenv.yaml").write_text(text)
    return [(str(place), saw, mend) for place, saw, mend in remarks(folder)]


def test_a_good_manifest_gives_rise_to_no_remark(tmp_path: Path) -> None:
    assert remarked(tmp_path, WHOLE) == []
    assert remarked(tmp_path, "name: maze-env\ntags: [a]\ndefault_image: maze:1\n") == []


@pytest.mark.parametrize(
    ("key", "meant"),
    [("prot", "port"), ("Name", "name"), ("spec-version", "spec_version"), ("enviroment", "environment"),
     ("exection", "execution"), ("variable", "variables"), ("observations", "observation"), ("limit", "limits")],
)  # fmt: skip
def test_a_key_that_looks_misspelt_is_remarked(tmp_path: Path, key: str, meant: str) -> None:
    ((place, saw, mend),) = remarked(tmp_path, f"app: server.app:app\n{key}: x\n")
    assert (place, mend) == ("line 2, column 1", f"write `{meant}`")
    assert f"`{key}`" in saw


def test_a_key_that_is_given_twice_is_remarked(tmp_path: Path) -> None:
    ((place, saw, _),) = remarked(tmp_path, "port: 1\nname: maze\nport: 2\n")
    assert place == "line 3, column 1"
    assert "line 1" in saw


@pytest.mark.parametrize(
    ("name", "other"),
    [("my maze!", "my_maze"), ("2048", "env_2048"), ("a/b", "a_b"), ("übung", "bung"), ("迷路", "env")],
)
def test_a_name_that_cannot_be_part_of_an_address_is_remarked(tmp_path: Path, name: str, other: str) -> None:
    ((place, _, mend),) = remarked(tmp_path, f"name: '{name}'\n")
    assert (place, mend) == ("line 1, column 7", f"rename it to {other}")


def test_a_limit_that_is_no_setting_is_remarked(tmp_path: Path) -> None:
    found = remarked(tmp_path, "limits:\n  max_session: 3\n  speed: 9\n  max_executing: 2\n")
    assert [(place, mend) for place, _, mend in found] == [
        ("line 2, column 3", "write `max_sessions`"),
        ("line 3, column 3", "remove it, or see docs/settings.md"),
    ]


def test_remarks_of_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 1, column"):
        remarked(tmp_path, "a: b: c\n")
    assert remarked(tmp_path, "- a\n") == []
