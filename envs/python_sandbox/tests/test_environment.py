"""Tests of this environment. Run them with `pytest` in the folder of openenv.yaml."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from openenv import SyncEnvClient
from openenv.errors import InvalidAction, InvalidArgument, OpenEnvError, ResetRequired
from openenv.testing import EnvironmentConformance
from openenv.types import StepResult
from python_sandbox import PythonSandboxAction, PythonSandboxEnv, PythonSandboxObservation, PythonSandboxState
from python_sandbox.server import seccomp, tasks
from python_sandbox.server.grader import grade, is_same
from python_sandbox.server.python_sandbox_environment import MOST_STEPS, PythonSandboxEnvironment
from python_sandbox.server.sandbox import Sandbox

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

Env = SyncEnvClient[PythonSandboxAction, PythonSandboxObservation, PythonSandboxState]

RIGHT = """
def sum_of_multiples(values):
    return sum(value for value in values if value % BY == 0)
"""


@needs_bubblewrap
class TestConformance(EnvironmentConformance):
    """The checks for all environments: seeds, isolated sessions, invalid actions, and more."""

    # Fewer than usual: each episode starts processes.
    sessions = 4
    episodes = 10

    def app(self) -> Any:
        return PythonSandboxEnvironment

    def actions(self) -> list[dict[str, Any]]:
        return [
            {"code": "6 * 7"},
            {"kind": "write", "path": "a", "content": "x"},
            {"kind": "submit", "code": "def f(): pass"},
        ]


@pytest.fixture(scope="module")
def client() -> Iterator[Env]:
    """A client of an environment whose sessions run in processes, as on a server."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    with PythonSandboxEnv(env=PythonSandboxEnvironment).sync() as client:
        yield client


@pytest.fixture
def env(client: Env) -> Env:
    client.reset(split="train", index=0)
    return client


def act(env: Env, **fields: Any) -> StepResult[PythonSandboxObservation]:
    return env.step(PythonSandboxAction(**fields))


def solution(index: int = 0) -> str:
    """A right solution, with the number in the task."""
    prompt = tasks.task("train", index).prompt
    return RIGHT.replace("BY", prompt.split("multiples of ")[1].split(".")[0])


def test_variables_stay_and_the_last_value_is_shown(env: Env) -> None:
    assert act(env, code="x = 20\nprint('hello')").observation.output == "hello\n"
    seen = act(env, code="import math\nx + math.floor(2.5)").observation
    assert (seen.status, seen.value, seen.restarted) == ("ok", "22", False)


def test_what_code_raises_is_shown_with_its_line(env: Env) -> None:
    seen = act(env, code="a = 1\nprint(a / 0)").observation
    assert (seen.status, seen.reason) == ("error", "ZeroDivisionError: division by zero")
    assert "line 2" in seen.output
    assert "print(a / 0)" in seen.output
    assert act(env, code="a").observation.value == "1"
    assert act(env, code="(").observation.reason.startswith("SyntaxError")


def test_files_are_written_read_and_listed(env: Env) -> None:
    act(env, kind="write", path="sub/name.py", content="answer = 42\n")
    assert act(env, kind="read", path="sub/name.py").observation.output == "answer = 42\n"
    assert act(env, code="from sub.name import answer\nanswer").observation.value == "42"
    assert act(env, kind="list").observation.files == ["sub/name.py"]
    assert act(env, kind="read", path="none").observation.reason.startswith("FileNotFoundError")


def test_code_that_hangs_is_stopped_and_the_episode_goes_on(env: Env) -> None:
    env.reset(split="train", index=0, step_s=3)
    act(env, kind="write", path="kept", content="x")
    seen = act(env, code="print('before')\nwhile True: pass").observation
    assert (seen.status, seen.output, seen.restarted, seen.files_lost) == ("timeout", "before\n", True, False)
    assert act(env, kind="list").observation.files == ["kept"]


def test_an_interpreter_that_ends_is_followed_by_another(env: Env) -> None:
    seen = act(env, code="import os\nx = 1\nos._exit(3)").observation
    assert (seen.status, seen.exit_code, seen.restarted) == ("crashed", 3, True)
    assert act(env, code="x").observation.reason.startswith("NameError")


def test_output_is_cut(env: Env) -> None:
    seen = act(env, code="print('x' * 100_000)").observation
    assert (len(seen.output), seen.output_cut, seen.status) == (16 * 1024, True, "ok")


def test_a_right_solution_is_worth_one_and_ends_the_episode(env: Env) -> None:
    result = act(env, kind="submit", code=solution())
    assert (result.reward, result.observation.passed, result.terminated, result.truncated) == (1.0, 1.0, True, False)
    with pytest.raises(ResetRequired):
        act(env, code="1")


def test_a_solution_that_is_right_at_times_is_worth_a_part(env: Env) -> None:
    half = (
        solution()
        + "\nright = sum_of_multiples\nsum_of_multiples = lambda values: right(values) if values[2:] else 7"
    )
    result = act(env, kind="submit", code=half)
    assert result.reward is not None
    assert 0.0 < result.reward < 1.0
    assert result.observation.status == "ok"


@pytest.mark.parametrize("code", ["x = 1", "1 / 0", "def sum_of_multiples(): pass", "import os; os._exit(0)", "("])
def test_a_solution_that_is_none_is_worth_nothing(env: Env, code: str) -> None:
    result = act(env, kind="submit", code=code)
    assert (result.reward, result.terminated, result.observation.output) == (0.0, True, "")


def test_an_episode_is_cut_short_when_no_action_remains(env: Env) -> None:
    results = [act(env, code="1") for _ in range(MOST_STEPS)]
    assert [result.truncated for result in results] == [False] * (MOST_STEPS - 1) + [True]
    assert not results[-1].terminated


def test_nothing_of_an_episode_is_there_in_the_next(env: Env) -> None:
    act(env, code="x = 1\nopen('a', 'w').close()")
    env.reset(split="train", index=0)
    assert act(env, kind="list").observation.files == []
    assert act(env, code="x").observation.status == "error"


def test_random_numbers_and_hashes_are_those_of_the_task(env: Env) -> None:
    code = "import random\n[random.random(), hash('a'), list({'a', 'b', 'c', 'd'})]"
    values = []
    for index in (3, 3, 4):
        env.reset(split="test", index=index)
        values.append(act(env, code=code).observation.value)
    assert values[0] == values[1] != values[2]


def test_a_seed_chooses_the_task(env: Env) -> None:
    drawn = [env.reset(seed=seed).observation.task for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert env.state().split == "train"


@pytest.mark.parametrize(
    "arguments",
    [
        *({"split": "none"}, {"split": ["train"]}, {"split": ""}),
        *({"split": "train", "index": 200}, {"index": -1}, {"index": "x"}, {"index": True}, {"index": 1.0}),
    ],
)
def test_a_task_that_is_not_there_is_refused(env: Env, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"no split|no task"):
        env.reset(**arguments)


@pytest.mark.parametrize("step_s", ["x", 0, -1, float("nan"), True])
def test_a_time_that_is_none_is_refused(env: Env, step_s: Any) -> None:
    with pytest.raises(InvalidArgument, match="a time limit is a number of seconds"):
        env.reset(split="train", index=0, step_s=step_s)


@pytest.mark.parametrize(
    "fields", [{"kind": "read"}, {"kind": "run"}, {"kind": "submit"}, {"kind": "fly", "code": "1"}]
)
def test_an_action_that_lacks_something_is_refused(env: Env, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidAction):
        env.step(PythonSandboxAction.model_construct(**fields))
    assert act(env, code="1").observation.value == "1"


def test_it_says_that_it_cannot_be_forked() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    with pytest.raises(OpenEnvError, match="cannot be forked"):
        PythonSandboxEnvironment().save_state()


def test_every_task_has_hidden_tests_that_are_no_examples() -> None:
    for split, size in tasks.SIZES.items():
        for index in range(size):
            task = tasks.task(split, index)
            assert len(task.inputs) == len(task.expected) == 20
            assert not any(f"{task.family}({repr(given)[1:-1]})" in task.prompt for given in task.inputs)
    prompts = {
        split: {tasks.task(split, index).prompt for index in range(tasks.SIZES[split])} for split in tasks.SIZES
    }
    assert not prompts["train"] & prompts["test"]
    assert len(prompts["train"]) == tasks.SIZES["train"]


def test_the_task_api_tells_prompts_and_no_answers() -> None:
    told = PythonSandboxEnvironment.get_task_range("test", 2, 5)
    assert [each["index"] for each in told] == [2, 3, 4]
    assert PythonSandboxEnvironment.num_tasks("test") == len(PythonSandboxEnvironment.list_tasks("test")) == 100
    assert set(told[0]) == {"split", "index", "family", "prompt"}


@needs_bubblewrap
def test_a_solution_that_answers_with_another_type_is_worth_nothing() -> None:
    code = solution() + "\nright = sum_of_multiples\nsum_of_multiples = lambda values: float(right(values))"
    assert grade(tasks.task("train", 0), code)[0] == 0.0


@needs_bubblewrap
def test_a_solution_that_hangs_keeps_what_it_had() -> None:
    task = tasks.task("train", 0)
    code = solution() + "\nright = sum_of_multiples\ncalls = []\n"
    code += (
        "def sum_of_multiples(values):\n    calls.append(1)\n    while len(calls) > 5: pass\n    return right(values)"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("python_sandbox.server.grader.GRADE_S", 3)
        share, reply = grade(task, code)
    assert (share, reply.status) == (5 / 20, "timeout")


def test_answers_are_compared_with_their_types() -> None:
    assert is_same([1, ["a", True]], [1, ["a", True]])
    assert not is_same(1.0, 1)
    assert not is_same(True, 1)
    assert not is_same([1], [1, 2])
    assert not is_same(None, 0)


@needs_bubblewrap
def test_a_sandbox_that_was_killed_is_replaced(env: Env) -> None:
    with Sandbox() as sandbox:
        sandbox._process.kill()
        sandbox._process.wait()
        reply = sandbox.ask({"kind": "run", "code": "1"})
    assert (reply.status, reply.gone) == ("crashed", True)


def test_the_filter_is_made_for_both_kinds_of_machines() -> None:
    for machine in ("x86_64", "aarch64"):
        program = seccomp.compiled(machine)
        assert len(program) % 8 == 0
        assert len(program) // 8 < 4096
    assert not seccomp.is_known("riscv64")
