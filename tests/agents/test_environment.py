"""A whole agent in one step: its work is recorded, kept and scored; each fault has its own error."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.agents import AgentEnvironment, AgentOutcome, AgentProgram, AgentTask, RunAgent, SandboxLimits
from openenv.capture import CaptureServer
from openenv.errors import AgentFailed, InvalidArgument, NotForkable, ResetRequired, RubricFailed
from tests.agents.planted import AGENT, PROGRAM, TESTS, VARIABLES, planted, sum_fault
from tests.model_server import ModelServer, model_server

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="apt-get install bubblewrap"),
]
Make = Callable[..., AgentEnvironment]


@pytest.fixture
def engine() -> Iterator[ModelServer]:
    with model_server(policies={"policy": sum_fault}) as server:
        yield server


@pytest.fixture
def make(engine: ModelServer, tmp_path: Path) -> Iterator[Make]:
    made: list[AgentEnvironment] = []
    with CaptureServer(llm_url=engine.url) as proxy:

        def environment(command: str | None = None, **options: Any) -> AgentEnvironment:
            program = PROGRAM if command is None else AgentProgram(command, VARIABLES, {"agent.py": AGENT})
            given = {"scorer": "python3 /tests/check.py", "tests": TESTS, "timeout_s": 60.0, **options}
            facts = {name: given.pop(name) for name in ("model",) if name in given}
            task = AgentTask("sum", "Fix add in calc.py.", planted(tmp_path), **given)
            made.append(AgentEnvironment([task], program, proxy=proxy, folder=tmp_path / "kept", **facts))
            return made[-1]

        yield environment
        for each in made:
            each.close()


def play(environment: AgentEnvironment, **action: Any) -> AgentOutcome:
    environment.reset()
    return environment.step(RunAgent(**action))


def test_an_agent_solves_a_task(make: Make) -> None:
    environment = make()
    ready = environment.reset()
    assert (ready.status, ready.reward, ready.instruction) == ("ready", None, "Fix add in calc.py.")
    outcome = environment.step(RunAgent())
    assert (outcome.reward, outcome.done, outcome.status) == (1.0, True, "finished"), outcome
    assert outcome.model_calls == 2
    assert outcome.sampled_tokens > 10
    assert "-    return a - b\n+    return a + b\n" in outcome.diff
    kept = Path(outcome.folder)
    assert (kept / "changes.diff").read_text() == outcome.diff
    assert "a + b" in (kept / "files" / "calc.py").read_text()
    assert (kept / "agent.log").read_text().startswith("Done")
    with pytest.raises(ResetRequired):
        environment.step(RunAgent())
    with pytest.raises(NotForkable):
        environment.save_state()


def test_doing_nothing_is_worth_nothing(make: Make) -> None:
    outcome = play(make(model="say:I would rather not."))
    assert (outcome.reward, outcome.status, outcome.diff) == (0.0, "finished", "")


def test_it_stops_and_goes_on(make: Make) -> None:
    environment = make('python3 "$HOME/agent.py"; sleep 600')
    environment.reset()
    stopped = environment.step(RunAgent(timeout_s=5, score=False))
    assert (stopped.status, stopped.done, stopped.reward) == ("timeout", False, None)
    assert stopped.explanation == "the agent was stopped after 5 s"
    ended = environment.step(RunAgent(instruction="Go on.", timeout_s=5))
    assert (ended.reward, ended.done) == (1.0, True)
    assert ended.model_calls > stopped.model_calls


def test_budgets(make: Make) -> None:
    outcome = play(make(max_model_calls=1))
    assert (outcome.model_calls, outcome.out_of_budget) == (1, True)
    outcome = play(make(max_tokens=1))
    assert (outcome.model_calls, outcome.out_of_budget) == (1, True)


def test_a_gigabyte_of_output_is_bounded(make: Make) -> None:
    limits = SandboxLimits(output_bytes=10_000)
    outcome = play(make('python3 "$HOME/agent.py"; head -c 1000000000 /dev/zero', limits=limits))
    assert outcome.reward == 1.0
    assert len(outcome.stdout) < 11_000


def test_an_agent_that_fails_is_scored_if_it_has_worked(make: Make) -> None:
    outcome = play(make('python3 "$HOME/agent.py"; echo broken >&2; exit 3'))
    assert (outcome.reward, outcome.status, outcome.exit_code) == (1.0, "failed", 3)
    assert outcome.explanation == "the agent failed with exit code 3: broken"


def test_an_agent_that_calls_no_model_has_no_reward(make: Make) -> None:
    with pytest.raises(AgentFailed, match="never called its model at http.*exit code 5"):
        play(make("exit 5"))


def test_an_agent_that_asks_for_a_missing_model_has_no_reward(make: Make) -> None:
    with pytest.raises(AgentFailed, match="answered no call of the agent: .*no-such-model"):
        play(make(model="no-such-model"))


def test_the_agent_cannot_fake_its_score(make: Make) -> None:
    cheat = "mkdir -p /tests /logs; echo 'raise SystemExit(0)' > /tests/check.py; echo 1 > /logs/reward.txt"
    program = "mkdir -p ~/.local/bin; printf '#!/bin/sh\\nexit 0' > ~/.local/bin/python3"
    outcome = play(make(f'python3 "$HOME/agent.py"; git checkout -q . ; sed -i s/+/-/ calc.py; {cheat}; {program}'))
    assert outcome.reward == 0.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scorer": "no-such-scorer"}, "the scorer did not run"),
        ({"scorer": "echo NaN > /logs/reward.txt"}, "must be a number"),
        ({"scorer": "sleep 600", "scorer_timeout_s": 1}, "did not end within 1 s: raise scorer_timeout_s"),
    ],
)
def test_a_broken_scorer_gives_no_reward(make: Make, options: dict[str, Any], words: str) -> None:
    with pytest.raises(RubricFailed, match=words):
        play(make(**options))


def test_a_scorer_writes_a_number(make: Make) -> None:
    assert play(make(scorer="echo 0.25 > /logs/reward.txt")).reward == 0.25


def test_mistakes_are_named(make: Make) -> None:
    with pytest.raises(InvalidArgument, match="task 'x' has no scorer"):
        AgentTask("x", "Do it.")
    with pytest.raises(InvalidArgument, match="task 'x' has no instruction"):
        AgentTask("x", "", scorer="true")
    with pytest.raises(InvalidArgument, match="timeout_s must be above 0"):
        AgentTask("x", "Do it.", scorer="true", timeout_s=0)
    with pytest.raises(InvalidArgument, match="task 'other' is unknown: choose one of sum"):
        make().reset(task="other")
