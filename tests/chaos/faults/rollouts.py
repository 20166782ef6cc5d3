"""Rollouts whose endpoint, environment server, network, engine or disk fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openenv.rollouts import Rollout, read_rollouts

from ...model_server import model_process
from ..served import HERE, MARK, Served, holds, own_environ
from ..trial import Trial, fault

ROLLOUTS = 500
TURNS = 5
# The reward of a step is its number.
RETURN = float(sum(range(1, TURNS + 1)))
PEER = "its collect plays one episode at a time, and has no journal"
LIMIT_S = 100.0
MODEL = {"timeout_s": 30.0, "retries": 8, "retry_share": 2.0}


class Run:
    """A run in a process of its own, which may be begun again.

    Args:
        trial: The trial.
        env, model: URLs of the environment server and of the endpoint.
        plan: Further fields of the plan; see `trainer`.
    """

    def __init__(self, trial: Trial, env: str, model: str, **plan: Any):
        self.folder = trial.folder / "run"
        self._log = trial.folder / "trainer.log"
        self._environ = {**own_environ("ours"), MARK: f"{os.getpid()}-{trial.folder.name}"}
        self._plan = {
            "env": env,
            "model": model,
            "model_options": MODEL,
            "folder": str(self.folder),
            "count": ROLLOUTS,
            "turns": TURNS,
            "sessions": 100,
            "options": {},
            "most_bytes": None,
            **plan,
        }

    @contextmanager
    def begun(self, **changes: Any) -> Iterator[subprocess.Popen[str]]:
        """The process, which ends with the block."""
        command = [sys.executable, "-m", "tests.chaos.trainer", json.dumps({**self._plan, **changes})]
        with (
            self._log.open("a") as log,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=HERE.parents[1], env=self._environ
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def play(self, **changes: Any) -> str | None:
        """Plays to the end. Returns the class of the error that ended the run."""
        with self.begun(**changes) as process:
            said, _ = process.communicate(timeout=LIMIT_S)
        if not said:
            raise AssertionError(f"the run has ended without a word: {self._log.read_text()[-1500:]}")
        error: str | None = json.loads(said)["error"]
        return error

    @property
    def finished(self) -> list[Rollout]:
        """The rollouts in its folder."""
        return list(read_rollouts(self.folder))

    def has(self, count: int) -> bool:
        """Whether that many rollouts have finished."""
        return len(self.finished) >= count


def steps_of_last_episodes(server: Served) -> Counter[int]:
    """By seed: steps that the environments executed since the last reset with it."""
    steps: Counter[int] = Counter()
    for line in server.ledger_path.read_text().splitlines():
        deed, episode, *_ = line.split()
        if deed == "reset":
            steps[int(episode)] = 0
        elif deed == "step":
            steps[int(episode)] += 1
    return steps


def check(trial: Trial, run: Run, server: Served, *outcomes: str, least: float = 1.0) -> None:
    """Whether every rollout has finished once, and the environments' counts are its own.

    Args:
        trial, run, server: What is looked at.
        outcomes: Outcomes that a failed one may have.
        least: Least share of rollouts that have a return.
    """
    found = run.finished
    names = Counter(rollout.rollout_id for rollout in found)
    once = names == dict.fromkeys((f"{number:06d}-0" for number in range(ROLLOUTS)), 1)
    trial.check(once, f"{len(names)} rollouts, each once", f"{len(names)} rollouts in {names.total()} records")
    good = [rollout for rollout in found if rollout.outcome.has_return]
    failed = [rollout for rollout in found if not rollout.outcome.has_return]
    wrong = Counter((rollout.outcome.value, rollout.reward) for rollout in good if rollout.reward != RETURN)
    trial.check(not wrong, f"{len(good)} with their return", f"wrong returns: {wrong}")
    kinds = Counter(rollout.outcome.value for rollout in failed)
    trial.check(set(kinds) <= set(outcomes), f"failed: {dict(kinds)}", f"failed as {dict(kinds)}, not as {outcomes}")
    invented = [rollout for rollout in failed if rollout.reward is not None or rollout.failure is None]
    trial.check(not invented, "no reward for a failed one", f"{len(invented)} failed ones with a reward or no reason")
    trial.check(len(good) >= least * ROLLOUTS, f"at least {least:.0%} have a return")
    steps = steps_of_last_episodes(server)
    different = [
        rollout.rollout_id
        for rollout in good
        if steps[rollout.task.seed or 0] != sum(len(turn.steps) for turn in rollout.turns)
    ]
    trial.check(not different, "counts equal", f"counts differ in {len(different)} rollouts, as {different[:3]}")


@contextmanager
def endpoint(trial: Trial, *arguments: str) -> Iterator[tuple[str, Path]]:
    """An endpoint that answers at once, and its log of samples."""
    log = trial.folder / "samples"
    with model_process("--log", str(log), *arguments) as url:
        yield url, log


def sampled_again(log: Path) -> int:
    """Answers that were sampled under a key that had one."""
    keys = Counter(json.loads(line)["key"] for line in log.read_text().splitlines())
    return keys.total() - len(keys)


# Share of requests, settings of the model, and the least share of rollouts with a return.
ENDPOINT_FAULTS: dict[str, tuple[float, dict[str, Any], float]] = {
    "429": (0.2, {}, 1.0),
    "500": (0.2, {}, 0.95),
    "garbage": (0.2, {}, 0.95),
    "half": (0.2, {"stall_s": 5.0}, 0.95),
    "never": (0.02, {"timeout_s": 20.0, "stall_s": 1.0}, 0.95),
}


def _endpoint_fault(kind: str) -> None:
    share, settings, least = ENDPOINT_FAULTS[kind]
    names = {"half": "half a stream", "never": "nothing"}

    @fault(
        f"rollouts: the endpoint answers {share:.0%} with {names.get(kind, kind)}",
        "every rollout finishes once, or fails with its kind; counts equal; no reward for a failed one",
        peer=PEER,
        sessions=100,
    )
    def faulty(trial: Trial) -> None:
        server = trial.serve("inline")
        with endpoint(trial, "--fault", f"{kind}:{share}") as (url, _):
            run = Run(trial, server.url, url, model_options={**MODEL, **settings})
            error = run.play()
        trial.check(error is None, "the run ended by itself", f"the run ended with {error}")
        check(trial, run, server, "model_failed", least=least)


for _kind in ENDPOINT_FAULTS:
    _endpoint_fault(_kind)


@fault(
    "rollouts: the environment server is killed (SIGKILL) and started again, twice",
    "every rollout finishes once, with the same seed; counts equal; no reward of a lost episode",
    peer=PEER,
    sessions=100,
)
def server_killed(trial: Trial) -> None:
    server = trial.serve("inline", settings={"OPENENV_RESUME_WINDOW_S": 1})
    with endpoint(trial, "--latency-s", "0.1") as (url, _):
        run = Run(trial, server.url, url, options={"retries": 5})
        with run.begun() as process:
            for count in (100, 250):
                trial.check(holds(lambda count=count: run.has(count), 30.0) is not None, f"{count} finished")
                os.kill(server.pid, signal.SIGKILL)
                server.close()
                server.__enter__()
            said, _errors = process.communicate(timeout=LIMIT_S)
    trial.check(json.loads(said)["error"] is None, "the run ended by itself", f"the run ended with {said}")
    check(trial, run, server, "infrastructure", least=0.99)
    again = sum(rollout.attempts > 1 for rollout in run.finished)
    trial.check(again > 0, f"{again} played again", "no rollout was interrupted: nothing was shown")


@fault(
    "rollouts: every connection cut at a random byte, 10 times",
    "every rollout finishes once; each step is executed once",
    peer=PEER,
    sessions=100,
)
def connections_cut(trial: Trial) -> None:
    server = trial.serve("inline")
    proxy = trial.proxy(server)
    with endpoint(trial, "--latency-s", "0.1") as (url, _):
        run = Run(trial, proxy.url, url)
        with run.begun() as process:
            cut = 0
            for number in range(10):
                if holds(lambda number=number: run.has(30 * number + 10) or process.poll() is not None, 30.0) is None:
                    break
                cut += proxy.cut_all()
            said, _errors = process.communicate(timeout=LIMIT_S)
    trial.check(cut >= 10, f"{cut} connections cut")
    trial.check(json.loads(said)["error"] is None, "the run ended by itself", f"the run ended with {said}")
    check(trial, run, server, "infrastructure", least=1.0)
    trial.check(all(rollout.attempts == 1 for rollout in run.finished), "no rollout was played again")


@fault(
    "rollouts: the engine is killed (SIGKILL) and the run begun again, 3 times",
    "every rollout finishes once; no recorded answer is sampled again; counts equal",
    peer=PEER,
    sessions=100,
)
def engine_killed(trial: Trial) -> None:
    server = trial.serve("inline", settings={"OPENENV_RESUME_WINDOW_S": 1})
    with endpoint(trial, "--latency-s", "0.05") as (url, log):
        run = Run(trial, server.url, url)
        for count in (50, 200, 350):
            with run.begun() as process:
                trial.check(holds(lambda count=count: run.has(count), 30.0) is not None, f"{count} finished")
                process.kill()
        error = run.play()
        again = sampled_again(log)
    trial.check(error is None, "the run ended by itself", f"the run ended with {error}")
    check(trial, run, server)
    # One on its way for each session, each time.
    trial.check(again <= 3 * 100, f"{again} answers were lost on their way", f"{again} answers were sampled again")


@fault(
    "rollouts: the disk is full",
    "the run ends with one error, and goes on when there is room; every rollout finishes once",
    peer=PEER,
    sessions=100,
)
def disk_full(trial: Trial) -> None:
    server = trial.serve("inline")
    with endpoint(trial) as (url, _):
        run = Run(trial, server.url, url)
        began = time.monotonic()
        error = run.play(most_bytes=1_000_000)
        trial.check(error == "JournalFailed", f"{error} after {time.monotonic() - began:.1f} s", f"it was {error}")
        trial.check(0 < len(run.finished) < ROLLOUTS, f"{len(run.finished)} were finished then")
        error = run.play()
    trial.check(error is None, "the run ended by itself", f"the run ended with {error}")
    check(trial, run, server)
