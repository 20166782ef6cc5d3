"""Agents whose capture proxy, engine or connections end while they sample."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ...model_server.tokens import END, PairTokenizer
from ...ports import held_port
from ..proxy import Proxy
from ..served import HERE, MARK, PEER_PYTHON, holds, own_environ
from ..trial import Trial, fault

AGENTS = 200
TIMES = 10
# A call takes 8 ms of the SDK alone.
AGENT_PROCESSES = 2
ADMIN = "the-admin-key"


class Program:
    """A program that is killed and started again, on the same port.

    Args:
        trial: The trial that it ends with.
        command: Its arguments after the name of Python; `{port}` is its port.
        python: Its Python.
    """

    def __init__(self, trial: Trial, *command: str, python: str | Path = sys.executable):
        self.port = trial.enter(held_port())
        self._command = [str(python), *(part.replace("{port}", str(self.port)) for part in command)]
        self._environ = {
            **own_environ(trial.system),
            MARK: f"{os.getpid()}-{trial.folder.name}",
            "OPENENV_CAPTURE_ADMIN_KEY": ADMIN,
        }
        self._log = trial.folder / "programs.log"
        self._process: subprocess.Popen[bytes] | None = None
        trial.enter(ExitStack()).callback(self.kill)
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                cwd=HERE.parents[1],
                env=self._environ,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kills it, and the processes that it has started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def asked(url: str, body: Any = None) -> Any:
    """The answer of a route of the proxy that needs the admin key."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {ADMIN}", "content-type": "application/json"}
    with urlopen(Request(url, data, headers), timeout=10.0) as answer:
        return json.load(answer)


def is_up(url: str) -> bool:
    """Whether the proxy answers."""
    try:
        return bool(asked(f"{url}/health"))
    except OSError:
        return False


class Scene:
    """Agents, the proxy that captures what they sample, and the engine; their connections can be cut.

    Args:
        trial: The trial.
    """

    def __init__(self, trial: Trial):
        self._trial = trial
        # The engine knows idempotency keys. Not every one does: others sample a call again whose answer was lost.
        self.log = trial.folder / "samples"
        self.engine = Program(
            trial,
            "-m",
            "tests.model_server",
            "--port",
            "{port}",
            "--log",
            str(self.log),
            "--latency-s",
            "0.02",
            *(("--remember",) if trial.ours else ()),  # the released proxy sends no keys
        )
        self.cuts = [trial.enter(Proxy(self.engine.port, trial.seed))]
        engine = f"{self.cuts[0].url}/v1"
        if trial.ours:
            command = ("openenv", "capture", "serve", engine, "--folder", str(trial.folder / "captured"))
        else:
            command = ("openenv.core.harness.capture.server", "--llm-url", engine, "--capture-level", "tokens")
        python = sys.executable if trial.ours else PEER_PYTHON
        self.proxy = Program(trial, "-m", *command, "--port", "{port}", python=python)
        self.cuts.append(trial.enter(Proxy(self.proxy.port, trial.seed + 1)))
        trial.check(holds(lambda: is_up(self.proxy.url), 30.0) is not None, "the proxy is up")
        for number in range(AGENTS):
            asked(f"{self.proxy.url}/sessions", {"session_id": f"agent-{number}"})

    @property
    def samples(self) -> list[dict[str, Any]]:
        """What the engine has sampled, by its own log; the last line may be cut off."""
        lines = self.log.read_bytes().splitlines(keepends=True) if self.log.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def play(self, break_it: Callable[[], None], env: str = "") -> dict[str, Any]:
        """Lets the agents do their turns. Breaks something ten times, whenever a share of the calls was sampled.

        Args:
            break_it: Breaks it.
            env: URL of an environment that each agent steps between its turns.
        """
        environ = {**own_environ("ours"), MARK: f"{os.getpid()}-{self._trial.folder.name}"}
        command, pipe = [sys.executable, "-m", "tests.chaos.agents"], subprocess.PIPE
        with ExitStack() as stack:
            programs = []
            for first in range(AGENT_PROCESSES):
                sessions = [f"agent-{number}" for number in range(first, AGENTS, AGENT_PROCESSES)]
                program = stack.enter_context(
                    subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=HERE.parents[1], env=environ)
                )
                stack.callback(program.kill)
                assert program.stdin is not None
                plan = {"url": self.cuts[1].url, "turns": self._trial.turns, "sessions": sessions, "env": env}
                program.stdin.write(json.dumps(plan))
                program.stdin.close()
                program.stdin = None
                programs.append(program)
            for number in range(TIMES):
                due = (number + 1) * AGENTS * self._trial.turns // (TIMES + 2)
                holds(lambda due=due: self._count() >= due or all(each.poll() is not None for each in programs), 30.0)
                break_it()
            found: dict[str, Any] = {}
            for program in programs:
                found |= json.loads(program.communicate()[0])
        return found

    def _check_peer(self, told: dict[str, Any]) -> None:
        """The same of the released proxy, whose turns name no call and no parent."""
        trial, samples = self._trial, self.samples
        holds(lambda: is_up(self.proxy.url), 30.0)
        complete = sum(facts["error"] is None for facts in told.values())
        errors = sorted({facts["error"] for facts in told.values() if facts["error"] is not None})
        trial.check(complete >= 0.95 * AGENTS, f"{complete} of {AGENTS} agents complete, others: {errors}")
        again = len(samples) - len({sample["content"] for sample in samples})
        trial.check(not again, "no call was sampled twice", f"{again} calls were sampled again")
        gone, gaps = 0, 0
        for session, facts in told.items():
            try:
                turns = asked(f"{self.proxy.url}/sessions/{session}/rollout?include_messages=1")["turns"]
            except HTTPError:
                gone += 1
                continue
            gaps += [turn["response_message"]["content"] for turn in turns] != facts["answers"]
        trial.check(not gone, "each session has its record", f"{gone} sessions have no record")
        trial.check(not gaps, "each trace is one chain", f"{gaps} traces have gaps, or turns twice")

    def _count(self) -> int:
        return self.log.read_bytes().count(b"\n") if self.log.exists() else 0

    def check(self, told: dict[str, Any]) -> None:
        """Whether each agent is complete or failed with a class, and its record is what the engine has sampled.

        Args:
            told: What the agents have.
        """
        trial, samples = self._trial, self.samples
        if not trial.ours:
            self._check_peer(told)
            return
        keys: dict[str, set[str]] = defaultdict(set)
        for sample in samples:
            keys[sample["content"]].add(sample["key"])
        complete = [session for session, facts in told.items() if facts["error"] is None]
        errors = sorted({facts["error"] for facts in told.values() if facts["error"] is not None})
        trial.check(len(told) == AGENTS, f"{len(complete)} of {AGENTS} agents complete, others: {errors}")
        trial.check(len(complete) >= 0.95 * AGENTS, "at least 95 % of the agents are complete")
        repeats = len(samples) - sum(map(len, keys.values()))
        trial.check(not repeats, "no key was sampled twice", f"{repeats} samples of a key that had one")
        gaps, foreign, different, failed = [], [], [], 0
        for session, facts in told.items():
            document = asked(f"{self.proxy.url}/sessions/{session}/rollout?include_messages=1")
            entries = asked(f"{self.proxy.url}/sessions/{session}/trace_entries")["entries"]
            failed += document["upstream_errors"]
            turns = [turn for turn in document["turns"] if not turn["discarded"]]
            said = [turn["response_message"]["content"] for turn in turns]
            parents = [turn["parent_id"] for turn in turns]
            chain = [None, *(turn["node_id"] for turn in turns)][: len(turns)]
            if said[: len(facts["answers"])] != facts["answers"] or parents != chain or len(set(said)) != len(said):
                gaps.append(session)
            if any(turn["call"] not in keys[turn["response_message"]["content"]] for turn in document["turns"]):
                foreign.append(session)
            ids = [[*PairTokenizer.encode_plain(content), END] for content in said]
            if [entry["completion_token_ids"] for entry in entries] != ids:
                different.append(session)
        again = sum(len(each) - 1 for each in keys.values())
        # An agent that was told of an engine's failure asks for another call.
        what = f"{again} calls sampled under a second key, {failed} failures of the engine"
        trial.check(again <= failed, what)
        trial.check(not gaps, "each trace is one chain", f"{len(gaps)} traces are not, as {gaps[:3]}")
        trial.check(not foreign, "each recorded call is in the engine's log", f"{len(foreign)} not, as {foreign[:3]}")
        trial.check(not different, "recorded ids are the sampled ones", f"{len(different)} not, as {different[:3]}")


@fault(
    f"capture: every connection of {AGENTS} agents and of the engine cut at a random byte, {TIMES} times",
    "every agent is complete; no call is sampled twice; recorded ids are those that were sampled",
)
def connections_cut(trial: Trial) -> None:
    scene = Scene(trial)

    def cut() -> None:
        for each in scene.cuts:
            each.cut_all()

    scene.check(scene.play(cut))


def _restarted(program: Program) -> Callable[[], None]:
    def restart() -> None:
        program.kill()
        program.start()

    return restart


@fault(
    f"capture: the proxy of {AGENTS} agents is killed (SIGKILL) and started again, {TIMES} times",
    "every agent is complete; no call is sampled twice; recorded ids are those that were sampled",
)
def proxy_killed(trial: Trial) -> None:
    scene = Scene(trial)
    scene.check(scene.play(_restarted(scene.proxy)))


@fault(
    f"capture: the engine of {AGENTS} agents is killed (SIGKILL) and started again, {TIMES} times",
    "every agent is complete; no call is sampled twice; recorded ids are those that were sampled",
)
def engine_killed(trial: Trial) -> None:
    scene = Scene(trial)
    scene.check(scene.play(_restarted(scene.engine)))


@fault(
    f"capture: a worker process of the environment of {AGENTS} agents is killed (SIGKILL), {TIMES} times",
    "a lost episode is SessionLost, and another one begins; every agent is complete; recorded ids are those sampled",
    peer="see kill -9 of one worker of four",
)
def environment_killed(trial: Trial) -> None:
    scene, server = Scene(trial), trial.serve("async", workers=4, sessions=4 * AGENTS)

    def kill() -> None:
        deeds = Counter(int(line.split()[-1]) for line in server.ledger_path.read_text().splitlines())
        server.tell(signal.SIGKILL, max(server.worker_pids(), key=lambda pid: deeds[pid]))

    told = scene.play(kill, server.url)
    scene.check(told)
    lost = Counter(error for facts in told.values() for error in facts["lost"])
    trial.check(lost.total() > 0, f"{lost.total()} episodes lost")
    trial.check(set(lost) <= {"SessionLost"}, "each with SessionLost", f"with {dict(lost)}")
