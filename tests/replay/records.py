"""Records of real episodes, in the form that a recorder writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from openenv.client import GenericEnvClient
from openenv.errors import OpenEnvError
from openenv.server import create_app

from .environments import Dice, Roll, Rolled

__all__ = ["changed", "dice_app", "recorded"]

Change = Callable[[list[dict[str, Any]]], None]


def dice_app(environment: type[Dice] = Dice) -> Any:
    """An app that serves dice."""
    return create_app(environment, Roll, Rolled, env_name="dice")


async def recorded(
    file: Path,
    seeds: Sequence[int | None] = (1,),
    actions: Sequence[dict[str, Any]] = ({},) * 3,
    session: str = "s",
    app: Any = None,
) -> Path:
    """Plays episodes, of dice or of another app, one session each, and writes them as a recorder does."""
    app = app or dice_app()
    lines = []
    for number, seed in enumerate(seeds):
        name = f"{session}{number}"
        async with GenericEnvClient(app=app) as client:
            for step in range(len(actions) + 1):
                own: dict[str, Any] = {"action": actions[step - 1]} if step else {"seed": seed, "arguments": {}}
                lines.append({**_names(name, step), **own, **await _seen(client, step, own), **_about(app)})
    return _written(file, lines)


async def _seen(client: GenericEnvClient, step: int, own: dict[str, Any]) -> dict[str, Any]:
    try:
        result = await (client.step(own["action"]) if step else client.reset(seed=own["seed"]))
    except OpenEnvError as error:
        nothing = dict.fromkeys(("observation", "reward", "terminated", "truncated"))
        return {**nothing, "done": False, "error": f"{type(error).__name__}: {error.message}"}
    return {
        "observation": result.observation,
        "reward": result.reward,
        "terminated": result.terminated,
        "truncated": result.truncated,
        "done": result.done,
        "error": None,
    }


def _names(session: str, step: int) -> dict[str, Any]:
    return {
        "episode_id": f"{session}-1",
        "session_id": session,
        "step": step,
        "time": 1000.0 + step,
        "duration_s": 0.1,
    }


def _about(app: Any) -> dict[str, Any]:
    versions = {"openenv": "1.0.0", "environment": "0.1"}
    return {
        "environment": app.state.openenv.env_name,
        "versions": versions,
        "schema": app.state.openenv.contract.hash,
    }


def changed(file: Path, change: Change) -> Path:
    """The file after a change of its lines."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    change(lines)
    return _written(file, lines)


def _written(file: Path, lines: list[dict[str, Any]]) -> Path:
    file.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    return file
