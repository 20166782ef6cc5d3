"""Tasks of Inspect as environments of ours: each call of the model and each score as in `inspect eval`."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from openenv import GenericEnvClient
from openenv.errors import EnvironmentFailed, InvalidArgument, ResetRequired, UsageError
from openenv.project.importing import adapted_source, import_project
from openenv.project.target import load

from ..modules import forget

# Inspect's own use of other libraries.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]

TASKS = '''
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, choice, match, mean, scorer
from inspect_ai.solver import generate, multiple_choice, self_critique, system_message, use_tools
from inspect_ai.tool import ToolError, tool

@tool
def add():
    async def execute(left: int, right: int) -> str:
        """Adds two numbers.

        Args:
            left: The first.
            right: The second.
        """
        if left == 13:
            raise ToolError("unlucky")
        return str(left + right)
    return execute

def numbers(count):
    return MemoryDataset([Sample(input=f"What is {n} + 40?", target=str(n + 40)) for n in range(count)])

@task
def sums(count: int = 3) -> Task:
    solver = [system_message("Be brief."), use_tools(add()), generate()]
    return Task(dataset=numbers(count), solver=solver, scorer=match(numeric=True), message_limit=8)

@task
def capitals() -> Task:
    sample = Sample(input="The capital of France?", choices=["Rome", "Paris", "Bonn"], target="B")
    return Task(dataset=MemoryDataset([sample]), solver=multiple_choice(), scorer=choice())

@scorer(metrics={"short": [mean()], "polite": [mean()]})
def manners():
    async def score(state, target):
        return Score(value={"short": len(state.output.completion) < 5, "polite": "please" in state.output.completion})
    return score

@scorer(metrics=[mean()])
def broken():
    async def score(state, target):
        raise RuntimeError("the judge is out")
    return score

@task
def politeness() -> Task:
    return Task(dataset=numbers(1), scorer=[match(), manners()])

@task
def unscored() -> Task:
    return Task(dataset=numbers(1))

@task
def unjudged() -> Task:
    return Task(dataset=numbers(1), scorer=broken())

@task
def boxed() -> Task:
    return Task(dataset=numbers(1), scorer=match(), sandbox="local")
'''


@pytest.fixture(scope="module", autouse=True)
def inspect() -> None:
    """The first test imports it: that takes seconds, which processes that only collect the tests need not spend."""
    pytest.importorskip("inspect_ai")


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_tasks.py").write_text(TASKS)
    yield tmp_path
    forget(tmp_path)
    gc.collect()


def evaluated(task: str, answers: Sequence[Any], folder: Path) -> tuple[list[list[str]], Any]:
    """What the model reads in `inspect eval` before each answer, and the scores."""
    import inspect_ai
    from inspect_ai import model as models

    outputs = []
    for answer in answers:
        if isinstance(answer, dict):
            output = models.ModelOutput.for_tool_call("m", "add", answer)
        else:
            output = models.ModelOutput.from_content("m", answer)
        output.usage = models.ModelUsage()  # it would fetch a tokenizer, to count
        outputs.append(output)
    model = models.get_model("mockllm/model", custom_outputs=outputs, memoize=False)
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(folder), display="none", limit=1)
    assert log.status == "success", log.error
    (sample,) = log.samples
    read = []
    for event in sample.events:
        if event.event == "model":
            said = [message.text if message.role != "tool" or not message.error else f"Error: {message.error.message}"
                    for message in event.input]  # fmt: skip
            read.append([sample.attachments.get(text.removeprefix("attachment://"), text) for text in said])
    return read, {name: score.value for name, score in sample.scores.items()}


async def played(task: str, answers: Sequence[Any]) -> tuple[list[str], Any]:
    """What a client reads before each answer, and the last result."""
    async with GenericEnvClient(app=load(f"inspect:{task}")) as env:
        result = await env.reset(index=0)
        read = []
        for answer in answers:
            assert not result.done
            seen = result.observation
            read.append(seen["text"] if "text" in seen else seen["result"]["content"][0]["text"])
            action = {"type": "reply", "text": answer}
            if isinstance(answer, dict):
                action = {"type": "call_tool", "tool_name": "add", "arguments": answer}
            result = await env.step(action)
    return read, result


@pytest.mark.parametrize(
    ("task", "answers"),
    [
        ("sums", ["40"]),
        ("sums", [{"left": 0, "right": 40}, "It is 40"]),
        ("sums", [{"left": 13, "right": 1}, {"left": 1, "right": 40}, "41"]),
        ("sums", [{"left": 1, "right": 1}] * 3),
        ("capitals", ["ANSWER: B"]),
        ("capitals", ["ANSWER: A"]),
    ],
)
async def test_it_is_equal_to_the_original_step_by_step(task: str, answers: list[Any], tmp_path: Path) -> None:
    name = f"their_tasks.py@{task}"
    read, result = await played(name, answers)
    original, scores = await asyncio.to_thread(evaluated, name, answers, tmp_path / "logs")
    assert len(original) == len(answers)
    known: list[str] = []
    for seen, messages in zip(read, original, strict=True):
        assert messages[: len(known)] == known
        new = messages[len(known) + bool(known) :]
        assert seen == "\n\n".join(new)
        known = messages
    assert result.done
    (score,) = scores.values()
    assert result.reward == {"C": 1.0, "I": 0.0}[score]


async def test_the_score_of_several_values_is_chosen_by_its_name() -> None:
    _, result = await played("their_tasks.py@politeness?reward=manners/polite", ["please, 40 it is"])
    assert result.reward == 1.0
    assert result.metadata["rubric"] == {"match": 0.0, "manners/short": 0.0, "manners/polite": 1.0}
    with pytest.raises(EnvironmentFailed, match="choose one with .reward=NAME"):
        await played("their_tasks.py@politeness", ["40"])


async def test_a_scorer_that_fails_is_a_failure_without_a_reward() -> None:
    with pytest.raises(EnvironmentFailed, match="the judge is out"):
        await played("their_tasks.py@unjudged", ["40"])


async def test_samples_are_the_tasks_of_one_split() -> None:
    app = load("inspect:their_tasks.py@sums?count=7&limit=5")
    cls = app.state.openenv.env_factory
    assert cls.list_splits() == [{"name": "test", "type": "test"}]
    assert cls.num_tasks("test") == 5
    with pytest.raises(InvalidArgument, match="there is test"):
        cls.num_tasks("train")
    async with GenericEnvClient(app=app) as env:
        assert "What is 4 + 40?" in (await env.reset(index=4)).observation["text"]
        first, again = await env.reset(seed=5), await env.reset(seed=5)
        assert first.observation == again.observation
        await env.step({"type": "reply", "text": "1"})
        with pytest.raises(ResetRequired):
            await env.step({"type": "reply", "text": "1"})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("their_tasks.py@nothing", "nothing"),
        ("their_tasks.py", "sums, capitals"),
        ("there_is_none.py@sums", "there is no file there_is_none.py"),
        ("no_package/at_all", "finds the tasks none"),
        ("their_tasks.py@sums?tempo=3", "tempo"),
        ("their_tasks.py@boxed", "needs a sandbox"),
        ("their_tasks.py@unscored", "has no scorer"),
        ("broken_tasks.py@sums", "boom"),
    ],
)
def test_what_cannot_be_served_is_one_clear_error(tasks: Path, name: str, reason: str) -> None:
    (tasks / "broken_tasks.py").write_text(
        "from inspect_ai import task\n@task\ndef sums(): ...\nraise ValueError('boom')\n"
    )
    with pytest.raises(UsageError, match=reason):
        load(f"inspect:{name}")


async def test_the_imported_project_is_the_same_environment(tasks: Path) -> None:
    folder, files = import_project(adapted_source("inspect:their_tasks.py@sums?count=2"), "adding", tasks)
    assert "vendor/their_tasks.py" in files
    (tasks / "their_tasks.py").unlink()
    async with GenericEnvClient(app=load(str(folder))) as env:
        await env.reset(index=1)
        assert (await env.step({"type": "reply", "text": "41"})).reward == 1.0
