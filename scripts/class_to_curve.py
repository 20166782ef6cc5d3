"""Go from a class to a rising reward curve and its page, and print the time of each part.

    .venv-trainers/bin/python scripts/class_to_curve.py [FOLDER]

1. `openenv init` writes a project, and one class replaces the class in it.
2. `openenv validate` checks it, and `openenv rollout` plays episodes by random calls.
3. GRPO (TRL) trains a small language model from random weights by rollouts of that class. Its return rises.
4. `openenv episodes view` serves the page with all rollouts.

The whole path may take five minutes. FOLDER keeps the project, the rollouts and curve.svg. `make test-trainers` makes
.venv-trainers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from scripts.tour import part, run, serving  # noqa: E402

LIMIT_S = 300.0
PAGE_S = 60.0
STEPS, ROLLOUTS = 25, 64
CLASS = '''
from openenv import Chat

TENS = range(10, 101, 10)


class MyEnvironment(Environment[MyAction, MyObservation, MyState]):
    """Find the secret, a multiple of ten up to 100, by three guesses."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    chat = Chat(system="Guess", observation="{hint}")

    def __init__(self) -> None:
        super().__init__()
        self._state = MyState()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> MyObservation:
        self._state = MyState(episode_id=episode_id, secret=self.rng.choice(TENS))
        return MyObservation(hint="start", guesses_left=3)

    def step(self, action: MyAction, timeout_s: float | None = None, **kwargs: Any) -> MyObservation:
        state = self._state
        if not state.secret or state.step_count == 3:
            raise ResetRequired("no game is running: call reset() to begin one")
        state.step_count += 1
        found, last = action.guess == state.secret, state.step_count == 3
        if found:
            state.step_count = 3
        return MyObservation(
            hint="found" if found else "higher" if action.guess < state.secret else "lower",
            guesses_left=3 - state.step_count,
            reward=1.0 if found else 0.1 if action.guess in TENS else 0.0,
            done=found or last,
            terminated=found,
            truncated=last and not found,
        )

    @property
    def state(self) -> MyState:
        return self._state
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = parser.parse_args().folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        with part("init, and one class"):
            run(sys.executable, "-m", "openenv", "init", "my_env", cwd=folder, quiet=True)
            module = folder / "my_env" / "server" / "my_env_environment.py"
            before, _, _ = module.read_text(encoding="utf-8").partition("class MyEnvironment")
            module.write_text(before + CLASS, encoding="utf-8")
        with part("validate"):
            run(sys.executable, "-m", "openenv", "validate", "my_env", cwd=folder)
        with part("rollout"):
            command = ["rollout", "my_env", "--model", "random", "--episodes", "20", "-o", "runs/random"]
            run(sys.executable, "-m", "openenv", *command, cwd=folder)
        with part("the curve"):
            curve = train(folder)
        with part("the page"):
            check_page(folder / "runs", 20 + STEPS * ROLLOUTS)
    first, last = sum(curve[:5]) / 5, sum(curve[-5:]) / 5
    took = time.monotonic() - began
    print(json.dumps({"first_return": round(first, 3), "last_return": round(last, 3), "seconds": round(took)}))
    if last < first + 0.1:
        raise SystemExit("the return does not rise")
    print(f"{took:.0f} s in total; it may take {LIMIT_S:.0f} s where nothing else runs")


def train(folder: Path) -> list[float]:
    """Trains a model by rollouts of the class, and draws its curve. Returns the mean return of each step."""
    import grpo_rollouts

    from openenv.rollouts import ChatView, RolloutTask

    sys.path.insert(0, str(folder))
    environment = importlib.import_module("my_env.server.my_env_environment").MyEnvironment
    action = importlib.import_module("my_env").MyAction
    (tool,) = ChatView.of(environment.chat, action.model_json_schema()).tools
    calls = [{"name": tool["function"]["name"], "arguments": {"guess": number}} for number in range(1, 101)]
    course = grpo_rollouts.Course(
        env=environment,
        tasks=[RolloutTask(seed=seed) for seed in range(1024)],
        answers=[f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls],
        reads=["start", "higher", "lower"],
        turns=3,
    )
    options = argparse.Namespace(
        environment="my_env",
        steps=STEPS,
        rollouts=ROLLOUTS,
        learning_rate=5e-3,
        seeds=[0],
        output=folder / "runs" / "grpo",
        plot=folder / "curve.svg",
    )
    options.output.mkdir()
    curve = grpo_rollouts.train(course, options, seed=0)
    grpo_rollouts.plot([curve], options)
    return curve


def check_page(folder: Path, rollouts: int) -> None:
    """Starts the page, and checks that it has all rollouts."""
    with serving(sys.executable, "episodes", "view", folder, "--port", "0") as url:
        page = requested(f"{url}/web")
        deadline = time.monotonic() + PAGE_S
        while (found := json.loads(requested(f"{url}/rollouts/runs")))["reading"] and time.monotonic() < deadline:
            pass
    if "<html" not in page or sum(each["rollouts"] for each in found["runs"]) != rollouts:
        raise SystemExit(f"the page does not have the {rollouts} rollouts: {found}")


def requested(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PAGE_S) as answer:  # noqa: S310 - our own server
        return str(answer.read().decode())


if __name__ == "__main__":
    main()
