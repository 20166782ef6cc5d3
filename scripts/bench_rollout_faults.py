"""What lost sessions and stragglers cost a learner that trains on rollouts.

    python scripts/bench_rollout_faults.py losses [--seeds 0 1 2] [--steps 30] [--share 0.1]
    python scripts/bench_rollout_faults.py stragglers [--steps 30] [--share 0.05] [--times 20]

`losses`: a softmax policy learns `word_game`, once undisturbed and once while SIGKILL ends sessions and worker
processes of the server, so that a share of the rollouts lose their session. Each return is compared with that of a
game with the same seed and guesses in this process. Prints what was wasted, what would have been wasted if each group
with a lost session were dropped, and the returns at the end of the training.

`stragglers`: a share of the rollouts has many times as many turns as the others. Prints how long a batch takes,
beside a run without stragglers, and how long if it waited for its stragglers. The learner takes as long for a batch
as a rollout of the usual length; the run has sessions for two batches.

The environments are in a server with worker processes. The models are in this process, and answer after a latency.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from openenv import Chat, Environment, GenericEnvClient, RegexAnswer
from openenv.bench.served import ServedProcess
from openenv.rollouts import Completion, ModelRequest, Rollout, RolloutBudget, RolloutGroup, RolloutTask, rollouts
from openenv.types import Action, Observation, State

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "envs"))

GROUP = 8
WORKERS = 4
GAME = {"length": 3, "lexicon": 12, "max_guesses": 5}
GUESS = Chat(system="Guess", observation="{board}", answer=RegexAnswer(pattern=r"(?P<guess>\w+)"))
# Part of the lost sessions that are lost with their worker.
OF_WORKERS = 0.1
# Seconds between two looks at a run: its rollouts then know which sessions are lost.
LOOK_S = 0.25


def served(target: str, *options: str) -> ServedProcess:
    """A server with worker processes."""
    command = [sys.executable, "-m", "openenv", "serve", target, "--port", "0", "--workers", str(WORKERS), *options]
    return ServedProcess(command, workers=WORKERS, cwd=ROOT / "scripts")


class WordPolicy:
    """A model that learns by policy gradient: a softmax over all words for each turn of a game.

    Args:
        seed: Seed of its samples.
        latency_s: Seconds until it answers.
        learning_rate: Of Adam.

    Attributes:
        answers: Number of answers that it gave.
    """

    name = "softmax"
    takes_ids = False

    def __init__(self, seed: int, latency_s: float, learning_rate: float):
        from word_game.server.lexicon import words

        self.answers = 0
        self._words = list(words(GAME["length"]))
        self._random = np.random.default_rng(seed)
        self._latency_s = latency_s
        self._learning_rate = learning_rate
        self._updates = 0
        self._logits, self._mean, self._square = np.zeros((3, GAME["max_guesses"], len(self._words)))
        self._chances = self._softmax()

    async def complete(self, request: ModelRequest) -> Completion:
        turn = sum(message["role"] == "assistant" for message in request.messages)
        word = self._words[self._random.choice(len(self._words), p=self._chances[turn])]
        self.answers += 1
        await asyncio.sleep(self._latency_s)
        return Completion(message={"role": "assistant", "content": word}, finish_reason="stop", model=self.name)

    async def aclose(self) -> None:
        """Does nothing: there are no connections."""

    def learn(self, groups: Sequence[RolloutGroup]) -> None:
        """Updates the policy. The advantage of a guess is the return from it on, minus the mean of its group."""
        gradient, count = np.zeros_like(self._logits), 0
        for group in groups:
            games = [guesses_of(rollout) for rollout in group.rollouts]
            for turn in range(GAME["max_guesses"]):
                there = [(game[turn][0], sum(reward for _, reward in game[turn:])) for game in games if game[turn:]]
                for word, ahead in there:
                    advantage = ahead - sum(each for _, each in there) / len(there)
                    gradient[turn] -= advantage * self._chances[turn]
                    gradient[turn, self._words.index(word)] += advantage
                    count += 1
        gradient /= max(1, count)
        self._updates += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient**2
        mean, square = self._mean / (1 - 0.9**self._updates), self._square / (1 - 0.99**self._updates)
        self._logits = self._logits + self._learning_rate * mean / (np.sqrt(square) + 1e-8)
        self._chances = self._softmax()

    def _softmax(self) -> Any:
        chances = np.exp(self._logits - self._logits.max(axis=1, keepdims=True))
        return chances / chances.sum(axis=1, keepdims=True)


def guesses_of(rollout: Rollout) -> list[tuple[str, float]]:
    """The guesses of a game with their rewards."""
    return [(step.action["guess"], step.reward or 0.0) for turn in rollout.turns for step in turn.steps]


class Losses:
    """Ends sessions and workers of a server by SIGKILL, until a share of the rollouts of a run has lost its session.

    Args:
        server: The server. Each session has a process, whose parent is the fork server of a worker.
        share: The share.

    Attributes:
        sessions, workers: Number of ended processes.
    """

    def __init__(self, server: ServedProcess, share: float):
        self.sessions = self.workers = 0
        self._server = server
        self._share = share
        self._random = np.random.default_rng(0)
        self._lost_with_workers = 0

    async def follow(self, run: Any) -> None:
        """Ends processes while a run goes on."""
        while True:
            await asyncio.sleep(LOOK_S)
            workers = {worker: self._sessions_of(worker) for worker in children(self._server.pids()[0])}
            due = self._share * (run.progress.outcomes.total() + sum(map(len, workers.values())))
            if self._lost_with_workers < OF_WORKERS * due:
                worker = int(self._random.choice(list(workers)))
                self._lost_with_workers += len(workers[worker])
                self.workers += 1
                kill(worker)
                continue
            sessions = list(itertools.chain(*workers.values()))
            count = min(len(sessions), int(due) - run.progress.retries)
            for session in self._random.choice(sessions, max(0, count), replace=False) if sessions else ():
                self.sessions += 1
                kill(int(session))

    def _sessions_of(self, worker: int) -> list[int]:
        return [session for forker in children(worker) for session in children(forker)]


def children(pid: int) -> list[int]:
    """The children of a process; none if it has ended."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def train(server: ServedProcess, seed: int, share: float, options: argparse.Namespace) -> dict[str, Any]:
    """Trains a policy, and counts what became of its rollouts."""
    model = WordPolicy(seed, options.latency_s, options.learning_rate)
    losses, curve, groups, began = Losses(server, share), [], [], time.monotonic()
    first = 1_000_000 * seed
    tasks = (RolloutTask(seed=first + number, arguments=GAME) for number in range(options.steps * options.batch))
    run = rollouts(
        server.url,
        model,
        tasks,
        group_size=GROUP,
        sessions=options.batch * GROUP // 2,
        retries=5,
        chat=GUESS,
        connections=2 * WORKERS,
    )
    async with run:
        killing = asyncio.create_task(losses.follow(run)) if share else None
        while batch := await run.batch(options.batch):
            model.learn(batch)
            curve.append(statistics.fmean(rollout.reward or 0.0 for group in batch for rollout in group.rollouts))
            groups += batch
        if killing is not None:
            killing.cancel()
    played = [rollout for group in groups for rollout in group.rollouts]
    failed = [rollout for group in groups for rollout in group.failed]
    hit = [rollout for rollout in played + failed if rollout.attempts > 1 or rollout in failed]
    kept = sum(len(rollout.turns) for rollout in played)
    touched = sum(any(rollout.group == group.group for rollout in hit) for group in groups)
    asked = options.steps * options.batch * GROUP
    return {
        "seed": seed,
        "killed_sessions": losses.sessions,
        "killed_workers": losses.workers,
        "rollouts": asked,
        "lost_their_session": len(hit) / asked,
        "attempts_wasted": 1 - len(played) / sum(rollout.attempts for rollout in played + failed),
        "rollouts_without_return": 1 - len(played) / asked,
        "turns_wasted": 1 - kept / model.answers,
        "wasted_by_dropping_groups": touched / len(groups),
        "returns_that_differ": await count_differences(played),
        "failed_with_return": sum(rollout.reward is not None for rollout in failed),
        "last_return": statistics.fmean(curve[-5:]),
        "curve": [round(each, 3) for each in curve],
        "seconds": time.monotonic() - began,
    }


async def count_differences(played: list[Rollout]) -> int:
    """Number of rollouts whose return is not that of a game with the same seed and guesses in this process."""
    from word_game.server.word_game_environment import WordGameEnvironment

    different = 0
    async with GenericEnvClient(env=WordGameEnvironment) as game:
        for rollout in played:
            await game.reset(**rollout.task.reset_arguments)
            rewards = [(await game.step({"guess": guess})).reward or 0.0 for guess, _ in guesses_of(rollout)]
            different += abs(math.fsum(rewards) - (rollout.reward or 0.0)) > 1e-9
    return different


def measure_losses(options: argparse.Namespace) -> dict[str, Any]:
    """Trains each seed with and without losses, and compares."""
    rows: dict[str, list[dict[str, Any]]] = {"undisturbed": [], "disturbed": []}
    with served(str(ROOT / "envs" / "word_game"), "--isolation", "process", "--process-pool", "0") as server:
        for seed, kind in itertools.product(options.seeds, rows):
            row = uvloop.run(train(server, seed, options.share if kind == "disturbed" else 0.0, options))
            rows[kind].append(row)
            print(
                f"{kind:>11}, seed {seed}: {row['killed_sessions']} sessions and {row['killed_workers']} workers "
                f"killed; {row['lost_their_session']:.1%} of {row['rollouts']} rollouts lost their session; wasted: "
                f"{row['attempts_wasted']:.1%} of attempts, {row['turns_wasted']:.1%} of sampled turns, "
                f"{row['rollouts_without_return']:.1%} of rollouts have no return; dropping groups would waste "
                f"{row['wasted_by_dropping_groups']:.0%}; {row['returns_that_differ']} wrong returns; return of the "
                f"last 5 steps {row['last_return']:.3f}; {row['seconds']:.0f} s",
                flush=True,
            )
    ends = {kind: [row["last_return"] for row in found] for kind, found in rows.items()}
    noise = max(statistics.stdev(each) for each in ends.values()) if len(options.seeds) > 1 else 0.0
    difference = statistics.fmean(ends["disturbed"]) - statistics.fmean(ends["undisturbed"])
    print(f"the disturbed returns differ by {difference:+.3f}; those of one kind have a deviation of {noise:.3f}")
    return {"difference": difference, "deviation": noise, **rows}


class Part(Action):
    """A part of an episode.

    Attributes:
        last: Whether it is the last one.
    """

    last: bool


class Parts(Environment[Part, Observation, State]):
    """Episodes that are as long as the agent wants. The reward of the last part is 1."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    def step(self, action: Part, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(reward=float(action.last), done=action.last)

    @property
    def state(self) -> State:
        return State()


class StragglingModel:
    """A model whose rollouts have a number of turns; a share of them has many times as many."""

    name = "straggling"
    takes_ids = False

    def __init__(self, share: float, options: argparse.Namespace):
        self._share = share
        self._options = options

    async def complete(self, request: ModelRequest) -> Completion:
        turn = sum(message["role"] == "assistant" for message in request.messages) + 1
        rollout = request.session.rpartition("/")[2].encode()
        straggles = int.from_bytes(hashlib.blake2b(rollout, digest_size=4).digest()) / 2**32 < self._share
        last = turn == self._options.turns * (self._options.times if straggles else 1)
        await asyncio.sleep(self._options.latency_s)
        (tool,) = request.tools
        call = {"name": tool["function"]["name"], "arguments": json.dumps({"last": last})}
        message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": call}],
        }
        return Completion(message=message, finish_reason="tool_calls", model=self.name)

    async def aclose(self) -> None:
        """Does nothing: there are no connections."""


async def take_batches(server: ServedProcess, share: float, options: argparse.Namespace) -> dict[str, Any]:
    """Takes batches at the pace of a learner, and measures them once stragglers of `times` batches are there."""
    warm = options.times + 5
    usual_s = options.turns * options.latency_s
    times, groups = [], []
    run = rollouts(
        server.url,
        StragglingModel(share, options),
        range(10**9),
        group_size=GROUP,
        sessions=2 * options.batch * GROUP,
        requests=2 * options.batch * GROUP,
        budget=RolloutBudget(turns=None),
        ahead=options.batch,
    )
    async with run:
        for _ in range(warm + options.steps):
            began = time.monotonic()
            groups += await run.batch(options.batch)
            await asyncio.sleep(usual_s)
            times.append(time.monotonic() - began)
    groups.sort(key=lambda group: group.group)
    played = [rollout for group in groups for rollout in group.rollouts]
    longest = [max(rollout.seconds for rollout in group.rollouts) for group in groups]
    batches = [longest[at : at + options.batch] for at in range(0, len(longest), options.batch)]
    return {
        "batch_s": statistics.fmean(times[warm:]),
        "batch_that_waits_s": statistics.fmean(map(max, batches)) + usual_s,
        "stragglers": statistics.fmean(len(rollout.turns) > options.turns for rollout in played),
        "lost": sum(len(group.failed) for group in groups),
    }


def measure_stragglers(options: argparse.Namespace) -> dict[str, Any]:
    """Takes batches without and with stragglers."""
    found = {}
    with served("bench_rollout_faults:Parts") as server:
        for name, share in (("without", 0.0), ("with", options.share)):
            row = found[name] = uvloop.run(take_batches(server, share, options))
            print(
                f"{name:>7} stragglers: a batch of {options.batch} groups takes {row['batch_s']:.3f} s, and "
                f"{row['batch_that_waits_s']:.3f} s if it waits for all; {row['stragglers']:.1%} straggled; "
                f"{row['lost']} lost",
                flush=True,
            )
    ratio = found["with"]["batch_s"] / found["without"]["batch_s"]
    print(f"with stragglers, a batch takes {ratio:.2f} times as long")
    return {"ratio": ratio, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    losses, stragglers = parts.add_parser("losses"), parts.add_parser("stragglers")
    losses.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    losses.add_argument("--learning-rate", type=float, default=0.3)
    stragglers.add_argument("--turns", type=int, default=4, help="turns of a rollout of the usual length")
    stragglers.add_argument("--times", type=int, default=20, help="how many times as many a straggler has")
    for each, batch, steps, share, latency_s in ((losses, 16, 30, 0.1, 0.05), (stragglers, 4, 30, 0.05, 0.15)):
        each.add_argument("--batch", type=int, default=batch, help=f"groups of a batch (default {batch})")
        each.add_argument("--steps", type=int, default=steps, help=f"batches (default {steps})")
        each.add_argument("--share", type=float, default=share, help=f"share of the rollouts (default {share})")
        each.add_argument("--latency-s", type=float, default=latency_s, help=f"of the model (default {latency_s})")
    options = parser.parse_args()
    print(json.dumps({"losses": measure_losses, "stragglers": measure_stragglers}[options.part](options)))


if __name__ == "__main__":
    main()
