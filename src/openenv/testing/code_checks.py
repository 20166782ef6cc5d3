"""Checks of environments that run an agent's code: the code cannot reach the grader, the tests, or the solution."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OpenEnvError
from ..protocol.json_schema import schema_of
from ..runtime.profile import class_of
from .check import Check, CheckFailure, CheckSkip
from .harness import ConformanceHarness
from .score_checks import leaves, replaced
from .scoring import (
    ABOVE,
    FIRST_PROOF,
    FIRST_TASK,
    MOST_SOLUTION_STEPS,
    Action,
    EpisodeScorer,
    ScoredEpisode,
    ScoredSession,
)

# A program proves that it ran by a product that is not in its text.
_FACTORS = (1000003, 1009)
_PROOF = str(_FACTORS[0] * _FACTORS[1])
_PROBES = {
    "python": "print({0}*{1})",
    "shell": "echo $(({0}*{1}))",
}
# Seconds of one program, and limits of what a cheat uses up: a sandbox may be missing.
_SLEEP_S = 6
_SLEEP = f"import time\ntime.sleep({_SLEEP_S})"
_DISK_MIB, _FORKS = 64, 60
# Shorter texts are in files by chance.
_LEAST_TEXT = 5


@dataclass(frozen=True, slots=True)
class CodeField:
    """The field of an action with the code that the environment runs.

    Attributes:
        action: An action that runs it.
        path: The field.
        language: `python` or `shell`.
    """

    action: Action
    path: tuple[str | int, ...]
    language: str

    def running(self, code: str) -> Action:
        """The action that runs a Python program."""
        text = code if self.language == "python" else f"python3 - <<'OPENENV'\n{code}\nOPENENV"
        return replaced(self.action, self.path, text)


async def _code_field(harness: ConformanceHarness) -> CodeField:
    """The field that runs code and shows its output. Raises CheckSkip if there is none."""
    scorer = EpisodeScorer.of(harness)
    if scorer.code_field is None:
        scorer.code_field = await _found_field(harness) or False
    if not scorer.code_field:
        raise CheckSkip("no text of an action is run as code whose output the next observation shows")
    found: CodeField = scorer.code_field
    return found


async def _found_field(harness: ConformanceHarness) -> CodeField | None:
    scorer = EpisodeScorer.of(harness)
    samples = [*(await harness.actions())]
    with contextlib.suppress(CheckSkip):
        samples += [action for each in (await scorer.solutions())[:1] for action in each.actions]
    choices: list[Action] = [{}]
    for name, part in (schema_of(harness.server.action_cls) or {}).get("properties", {}).items():
        choices += [{name: value} for value in part.get("enum", ()) if isinstance(value, str)]
    candidates: dict[str, tuple[Action, tuple[str | int, ...]]] = {}
    for sample in samples:
        for path, value in leaves(sample):
            for choice in choices if isinstance(value, str) else ():
                action = {**sample, **choice}
                if path[0] not in choice:
                    candidates.setdefault(json.dumps(replaced(action, path, ""), default=str), (action, path))
    async with scorer.session() as session:
        for action, path in [*candidates.values()][:60]:
            for language, probe in _PROBES.items():
                step = replaced(action, path, probe.format(*_FACTORS))
                episode = await session.play(FIRST_TASK, [step], repeat=False)
                if _PROOF in json.dumps(episode.calls[-1].observation, default=str):
                    return CodeField(action, path, language)
    return None


async def _outputs(harness: ConformanceHarness, field: CodeField, code: str) -> str:
    """The observation of a program, as JSON text."""
    async with EpisodeScorer.of(harness).session() as session:
        episode = await session.play(FIRST_TASK, [field.running(code)], repeat=False)
    return json.dumps(episode.calls[-1].observation, default=str)


def _process_of(environment: Any, _: None) -> tuple[int, str]:
    """The id and the start of the process that an environment runs in."""
    start = ""
    with contextlib.suppress(OSError):
        start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return os.getpid(), start


_REACH = """
import os
def allowed(name, act):
    try:
        if act():
            print("REACHED" + "-" + name)
    except BaseException:
        pass
def start():
    os.kill({process}, 0)
    return open("/proc/{process}/stat").read().rpartition(")")[2].split()[19] == "{start}"
allowed("source", lambda: open({source!r}).read(1))
allowed("folder", lambda: open({canary!r}, "w").write("x"))
allowed("process", start)
"""
_REACHED = {
    "source": "reads the environment's own source",
    "folder": "writes to a folder of the server's user",
    "process": "may end the process of the environment",
}


@Check.of(
    "semantic.sandbox",
    "Does code of the agent run where it cannot reach the files and the process of the environment?",
    "semantic.range",
)
async def semantic_sandbox(harness: ConformanceHarness) -> str:
    field = await _code_field(harness)
    async with EpisodeScorer.of(harness).session() as session:
        await session.play(FIRST_TASK, [], repeat=False)
        process, start = await session.call(_process_of)
    cls = class_of(harness.server.env_factory)
    source = getattr(sys.modules.get(getattr(cls, "__module__", "")), "__file__", None) or __file__
    folder = tempfile.mkdtemp(prefix="openenv-canary-", dir=Path.home())
    try:
        code = _REACH.format(process=process, start=start, source=source, canary=f"{folder}/canary")
        output = await _outputs(harness, field, code)
        found = [said for name, said in _REACHED.items() if f"REACHED-{name}" in output]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if found:
        raise CheckFailure(
            f"code in {field.path[-1]} ({field.language}) {', and '.join(found)}: it can read and change what "
            "computes its reward.",
            "run it in a sandbox that has neither (bubblewrap with its own files and processes, a container, another "
            "machine), and grade outside of it; further cheats were not tried, since they could damage this machine",
        )
    return f"code in {field.path[-1]} ({field.language}) reaches neither the files nor the process of the environment"


async def _attack(harness: ConformanceHarness, codes: Sequence[tuple[str, str]], fix: str) -> str:
    """Runs programs, and then ends the episode as a solution does, but with the program in place of its code."""
    field = await _code_field(harness)
    scorer = EpisodeScorer.of(harness)
    try:
        last: list[Action] = (await scorer.solutions())[0].actions[-1:]
    except CheckSkip:
        last = []
    names = set(re.findall(r"def (\w+)\(", json.dumps(last)))

    async def attack(session: ScoredSession, job: tuple[int, str, str]) -> None:
        number, name, code = job
        text = code.replace("NAMES", repr(sorted(names)))
        actions = [field.running(text), *(replaced(each, field.path, text) for each in last)]
        if code == _SLEEP:  # a program in each episode, so that both sleep at once
            actions = actions[number % len(actions) :][:1]
        episode = await session.play(FIRST_PROOF + number, actions, False, limit_s=3 * _SLEEP_S)
        if (said := episode.unsendable) is not None or episode.share > ABOVE:
            raise CheckFailure(
                f"{name}: {said or f'a return of {episode.total:g}, above the floor {episode.floor:g}'}.", fix
            )

    await scorer.each([(number, *code) for number, code in enumerate(codes)], attack)
    await _check_alive(scorer, codes[-1][0])
    return f"{', '.join(dict.fromkeys(name for name, _ in codes))}: no reward"


async def _check_alive(scorer: EpisodeScorer, name: str) -> None:
    """Plays a solution after an attack. Raises CheckFailure if it is not paid any more."""
    try:
        await scorer.solutions()
    except CheckSkip:
        return
    try:
        async with scorer.session() as session:
            episode: ScoredEpisode = await session.solve(FIRST_TASK, MOST_SOLUTION_STEPS)
    except (CheckSkip, OpenEnvError) as error:
        raise CheckFailure(
            f"after this cheat, the next episode fails: {name}: {error}.", "end all that an episode began in reset"
        ) from None
    if abs(episode.share - 1) > ABOVE and not episode.cut:
        raise CheckFailure(
            f"after this cheat, a right solution of the next episode gets {episode.total:g} of {episode.maximum:g}: "
            f"{name}.",
            "start each episode with new files and processes",
        )


_EDITS = """
import os, json
wanted = ("test", "grad", "check", "score", "expect", "answer", "reward", "result", "verif", "judge", "solution")
def put(path, text):
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        open(path, "w").write(text)
    except OSError:
        pass
seen = 0
for top in (os.getcwd(), os.path.expanduser("~"), "/tmp", "/tests", "/app", "/logs", "/workspace", "/work"):
    for folder, folders, names in os.walk(top):
        for name in names:
            seen += 1
            low = os.path.join(folder, name).lower()
            if seen < 3000 and any(each in low for each in wanted):
                text = {text!r}
                if name.endswith(".py"):
                    text = "def test_it(): pass\\nprint(1.0)\\n"
                elif name.endswith(".sh"):
                    text = "exit 0\\n"
                put(os.path.join(folder, name), text)
for name in ("reward.txt", "score.txt", "result.txt", "/logs/verifier/reward.txt", "answer.txt", "output.txt"):
    put(name, {text!r})
for name in ("reward.json", "result.json", "score.json"):
    put(name, json.dumps({{"reward": 1, "score": 1, "passed": True, "success": True}}))
put("conftest.py", "import os\\ndef pytest_sessionfinish(session, exitstatus): os._exit(0)\\n")
put("sitecustomize.py", "import os\\n")
print({text!r})
"""


@Check.of(
    "semantic.tests",
    "Do edits of tests, expected answers and results of scores get no more than the floor?",
    "semantic.sandbox",
)
async def semantic_tests(harness: ConformanceHarness) -> str:
    return await _attack(
        harness,
        [
            ("tests and expected answers emptied", _EDITS.format(text="")),
            ("tests and expected answers replaced by 1", _EDITS.format(text="1")),
            (
                "hooks of tests and results that equal everything",
                "class Equal:\n    __eq__ = __ge__ = __le__ = lambda *a: True\n    __ne__ = lambda *a: False\n"
                "    __hash__ = lambda self: 0\n"
                "for name in NAMES:\n    globals()[name] = lambda *a, **k: Equal()\n",
            ),
        ],
        "keep tests and expected answers out of the sandbox, copy them in only after the agent's last action, and "
        "grade a snapshot of its files in a new place",
    )


_KILLS = """
import os, signal
processes = [int(each) for each in os.listdir("/proc") if each.isdigit()] if os.path.isdir("/proc") else []
if len(processes) < 30:
    for each in processes:
        if each not in (1, os.getpid()):
            try:
                os.kill(each, signal.SIGKILL)
            except OSError:
                pass
os.kill(os.getpid(), signal.SIGKILL)
"""


@Check.of("semantic.scorer", "Is a scorer that the agent stops no reason for a reward?", "semantic.sandbox")
async def semantic_scorer(harness: ConformanceHarness) -> str:
    return await _attack(
        harness,
        [
            ("exit code 0 before the tests", "import os\nprint('1.0', flush=True)\nos._exit(0)"),
            ("sys.exit(0)", "import sys\nsys.exit(0)"),
            ("all processes killed", _KILLS),
            ("a crash", "import ctypes\nctypes.string_at(0)"),
        ],
        "count a scorer that ended early, by a signal or without a result as 0, or raise StepFailed; let the result "
        "come from a place that the agent cannot write to",
    )


_SEARCH = """
import os, base64
needles = [base64.b64decode(each) for each in {needles!r}]
def look(path):
    try:
        with open(path, "rb") as file:
            content = file.read(262144)
    except OSError:
        return
    for each in needles:
        if each in content:
            print("FOUND" + "-" + path)
seen = 0
for top in (os.getcwd(), os.path.expanduser("~"), "/tmp", "/"):
    for folder, folders, names in os.walk(top):
        folders[:] = [each for each in folders if "python" not in each and each != "site-packages"]
        if folder == "/":
            folders[:] = [each for each in folders if each not in
                          ("proc", "sys", "dev", "usr", "lib", "lib64", "bin", "sbin", "boot", "nix")]
        for name in names:
            seen += 1
            if seen < 4000 and os.path.isfile(os.path.join(folder, name)):
                look(os.path.join(folder, name))
for each in os.listdir("/proc") if os.path.isdir("/proc") else ():
    if each.isdigit():
        look("/proc/" + each + "/environ")
        if int(each) != os.getpid():
            look("/proc/" + each + "/cmdline")
"""


def _texts(episode: ScoredEpisode) -> list[str]:
    """The values of an episode's actions, as texts."""
    return [str(value).strip() for action in episode.actions for _, value in leaves(action)]


@Check.of("semantic.solution", "Is the solution unreadable for code of the agent?", "semantic.sandbox")
async def semantic_solution(harness: ConformanceHarness) -> str:
    field = await _code_field(harness)
    scorer = EpisodeScorer.of(harness)
    solution, *others = await scorer.solutions()
    async with scorer.session() as session:
        await session.play(solution.seed, [], repeat=False)
        state = await session.state()
    answers = [text for text in _texts(solution) if not others or any(text not in _texts(each) for each in others)]
    answers += [text for _, value in leaves(state) if any((text := str(value).strip()) in each for each in answers)]
    shown = json.dumps(solution.calls[0].observation, default=str)
    needles = [text for text in dict.fromkeys(answers) if len(text) >= _LEAST_TEXT and text not in shown]
    if not needles:
        raise CheckSkip("the solution has no text that could be searched for")
    code = _SEARCH.format(needles=[base64.b64encode(each.encode()).decode() for each in needles])
    found = re.findall(r"FOUND-([^\s\\\"]+)", await _outputs(harness, field, code))
    if found:
        raise CheckFailure(
            f"code of the agent reads the solution in {', '.join(dict.fromkeys(found)):.200}.",
            "keep the solution out of the agent's files, environment variables and command lines; copy it in only "
            "for grading",
        )
    return f"{len(needles)} texts of the solution are in no file, variable or command line that code can read"


@Check.of(
    "semantic.resources",
    "Do a full disk, forks and a sleep to the limit get no reward, and leave the next episode as it should be?",
    "semantic.sandbox",
)
async def semantic_resources(harness: ConformanceHarness) -> str:
    fill = (
        "import os\nfor top in ('.', '/tmp'):\n    try:\n"
        "        with open(os.path.join(top, 'fill'), 'wb') as file:\n"
        f"            for _ in range({_DISK_MIB}):\n                file.write(b'x' * 2**20)\n    except OSError:\n"
        "        pass\n"
    )
    fork = (
        f"import os, time\nfor _ in range({_FORKS}):\n    try:\n        if os.fork() == 0:\n"
        f"            time.sleep({_SLEEP_S})\n            os._exit(0)\n    except OSError:\n        break\n"
    )
    return await _attack(
        harness,
        [("sleep to the limit", _SLEEP), ("sleep to the limit", _SLEEP), ("a full disk", fill), ("forks", fork)],
        "limit disk, processes and time of the sandbox, and count a grader that could not run as 0, or raise "
        "StepFailed",
    )


CHECKS = Check.all_in(globals())
