"""`openenv import`: projects of other libraries' environments."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import pytest
import yaml

from openenv import GenericEnvClient
from openenv.cli import main
from openenv.project.target import load

from ..modules import forget

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def import_(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """Runs `openenv import ...` in an empty folder; returns its exit code, output and complaints."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["openenv", "import", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    yield run
    forget(tmp_path)


def validated(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openenv", "validate", str(folder), "--level", "runtime"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


async def test_an_environment_of_gymnasium_is_equal_step_by_step(import_: Run, tmp_path: Path) -> None:
    code, out, err = import_("gymnasium:FrozenLake-v1?map_name=8x8", "--name", "lake", "-o", "envs")

    assert code == 0, err
    assert "cd envs/lake" in out
    original = gymnasium.make("FrozenLake-v1", map_name="8x8")
    async with GenericEnvClient(app=load("envs/lake")) as env:
        result, (seen, _) = await env.reset(seed=3), original.reset(seed=3)
        for action in (1, 2, 1, 2, 2, 1, 1, 0) * 20:
            assert result.observation["observation"] == seen
            if result.done:
                result, (seen, _) = await env.reset(), original.reset()
                continue
            result = await env.step({"action": action})
            seen, reward, terminated, truncated, _ = original.step(action)
            assert (result.reward, result.done) == (reward, terminated or truncated)


@pytest.mark.slow
def test_the_project_passes_validate(import_: Run, tmp_path: Path) -> None:
    assert import_("gymnasium:MountainCar-v0")[0] == 0
    ended = validated(tmp_path / "mountaincar_v0")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_project_pins_what_it_was_made_of(import_: Run, tmp_path: Path) -> None:
    assert import_("gymnasium:CartPole-v1")[0] == 0
    project = tomllib.loads((tmp_path / "cartpole_v1/pyproject.toml").read_text())["project"]
    assert f"gymnasium=={gymnasium.__version__}" in project["dependencies"]
    manifest = yaml.safe_load((tmp_path / "cartpole_v1/openenv.yaml").read_text())
    assert manifest["description"] == project["description"] == "CartPole-v1, an environment of Gymnasium."
    texts = [path.read_text() for path in (tmp_path / "cartpole_v1").rglob("*") if path.is_file()]
    assert not [text for text in texts if "my_" in text]


def test_a_module_that_no_distribution_has_is_copied_without_its_keys(import_: Run, tmp_path: Path) -> None:
    games = tmp_path / "their_games"
    games.mkdir()
    (games / "__init__.py").write_text(
        "import gymnasium\ngymnasium.register('Theirs-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    (games / ".env").write_text("KEY=secret")
    (games / "weights.bin").write_bytes(b"\0\1")

    code, _, err = import_("gymnasium:their_games:Theirs-v0")

    assert code == 0, err
    project = tmp_path / "theirs_v0"
    assert {path.name for path in (project / "vendor/their_games").iterdir()} == {"__init__.py"}
    assert "weights.bin: a binary file" in err
    assert ".env" in err
    games.rename(tmp_path / "elsewhere")
    assert validated(project).returncode == 0


@pytest.mark.parametrize(
    ("source", "exit_code", "message"),
    [
        ("gymnasium:Nope-v9", 1, "Nope"),
        ("gymnasium:no_such_module_here:Nope-v9", 1, "no_such_module_here"),
        ("gymnasium:", 1, "names no environment"),
        ("nothing", 2, "gymnasium:ENV_ID"),
        ("chess:Kings", 2, "gymnasium:ENV_ID"),
    ],
)
def test_what_cannot_be_imported_is_one_error_and_leaves_nothing(
    import_: Run, tmp_path: Path, source: str, exit_code: int, message: str
) -> None:
    code, _, err = import_(source, "--name", "mine")
    assert code == exit_code
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_stays_as_it_is(import_: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kept").touch()
    code, _, err = import_("gymnasium:CartPole-v1", "-n", "mine")
    assert code == 1
    assert "exists already" in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["kept"]
