"""Environment projects on disk, as users write them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

__all__ = ["write_module", "write_project"]

MODELS = """
from openenv import Action, Observation


class GuessAction(Action):
    number: int


class GuessObservation(Observation):
    hint: str
"""

ENVIRONMENT = """
from openenv import Environment, State
{imports}


class Guess(Environment[GuessAction, GuessObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        return GuessObservation(hint="guess")

    def step(self, action, timeout_s=None, **kwargs):
        return GuessObservation(hint="{hint}", reward=float(action.number))

    @property
    def state(self):
        return State()
"""

APP = """
from openenv.server import create_app
{imports}

app = create_app(Guess, GuessAction, GuessObservation, env_name="guess"{limit})
"""


def write_project(
    folder: Path,
    *,
    package: bool,
    manifest: str = "app: server.app:app\n",
    hint: str = "no",
    limit: int | None = None,
) -> Path:
    """Writes a project; as a package, its modules import each other relatively."""
    (folder / "server").mkdir(parents=True)
    (folder / "openenv.yaml").write_text(manifest)
    (folder / "models.py").write_text(MODELS)
    (folder / "server" / "__init__.py").touch()
    if package:
        (folder / "__init__.py").touch()
    models = "..models" if package else "models"
    environment = ".guess_environment" if package else "server.guess_environment"
    names = f"from {models} import GuessAction, GuessObservation"
    (folder / "server" / "guess_environment.py").write_text(ENVIRONMENT.format(imports=names, hint=hint))
    (folder / "server" / "app.py").write_text(
        APP.format(
            imports=f"{names}\nfrom {environment} import Guess",
            limit="" if limit is None else f", max_concurrent_envs={limit}",
        )
    )
    return folder


def write_module(path: Path, text: str) -> Path:
    """Writes one module."""
    path.write_text(dedent(text))
    return path
