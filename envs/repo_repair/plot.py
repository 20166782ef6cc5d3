"""Draws reward_curve.png: a bandit learns from rewards which edit repairs which function.

In the folder above this one: `python -m repo_repair.plot` (it takes a minute, and needs matplotlib).
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

from .client import RepoRepairEnv
from .models import RepoRepairAction
from .server.app import app
from .server.tasks import Edit, task

__all__ = ["learn", "main"]

TASKS, EPISODES, EVERY, SEEDS = 12, 600, 20, 3


def learn(seed: int) -> list[float]:
    """The rewards of episodes with the first tasks, in which a bandit chooses one of the edits that repair them."""
    random = Random(seed)  # noqa: S311 - a game
    edits = [task("train", index).repair for index in range(TASKS)]
    means: dict[tuple[str, Edit], float] = {}
    rewards = []
    with RepoRepairEnv(app=app).sync() as env:
        for number in range(EPISODES):
            report = env.reset(split="train", index=random.randrange(TASKS)).observation.task
            function = re.findall(r"reports that (\w+)", report)[0]
            best = max(edits, key=lambda edit: (means.get((function, edit), 0.5), random.random()))
            edit = random.choice(edits) if random.random() < 0.2 * (1 - number / EPISODES) else best
            env.step(RepoRepairAction(kind="replace", path=edit.path, old=edit.old, new=edit.new))
            rewards.append(env.step(RepoRepairAction(kind="submit")).reward or 0.0)
            before = means.get((function, edit), 0.5)
            means[function, edit] = before + 0.5 * (rewards[-1] - before)
    return rewards


def main() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.6), dpi=80, layout="constrained")
    axes = figure.subplots()
    starts = range(0, EPISODES, EVERY)
    for seed in range(SEEDS):
        rewards = learn(seed)
        curve = [sum(rewards[start : start + EVERY]) / EVERY for start in starts]
        axes.plot([start + EVERY / 2 for start in starts], curve, label=f"seed {seed}")
        print(f"seed {seed}: {curve[0]:.2f} -> {curve[-1]:.2f}")  # noqa: T201
    axes.set(xlabel="episodes", ylabel=f"reward, mean of {EVERY}", title="repo_repair: learning which edit repairs")
    axes.set_ylim(0, 1.05)
    axes.grid(color="#e4e4e4")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(Path(__file__).with_name("reward_curve.png"), facecolor="white")


if __name__ == "__main__":
    main()
