"""Environments of the Open Reward Standard, against the server and the environment classes of its Python SDK."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openreward", reason="its versions of other packages exclude those of requirements-dev.txt")

from openenv import GenericEnvClient
from openenv.errors import EnvironmentFailed, InvalidAction, InvalidArgument, ResetRequired, UsageError
from openenv.project.importing import adapted_source, import_project
from openenv.project.target import load

from ..modules import forget

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # the SDK's own warnings

GAMES = '''
from openreward.environments import Environment, Split, TextBlock, ImageBlock, ToolOutput, terminal, tool
from pydantic import BaseModel

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="

class Guess(BaseModel):
    number: int

class Higher(Environment):
    """Guess a number in three tries."""

    def setup(self):
        self.tries = 0

    @classmethod
    def list_splits(cls):
        return ["train", Split(name="hard", type="test")]

    @classmethod
    def list_tasks(cls, split):
        return [{"secret": number} for number in (range(5) if split == "train" else (70, 80))]

    def get_prompt(self):
        return [TextBlock(text="Guess my number."), ImageBlock(data=PIXEL, mimeType="image/png")]

    @tool
    def guess(self, params: Guess) -> ToolOutput:
        """Guesses the number."""
        self.tries += 1
        if params.number == 13:
            raise RuntimeError("unlucky")
        right = params.number == self.task_spec["secret"]
        word = "right" if right else "higher" if params.number < self.task_spec["secret"] else "lower"
        return ToolOutput(
            blocks=[TextBlock(text=word * (3000 if params.number == 99 else 1))],
            reward=1.0 / self.tries if right else 0.0,
            finished=right or self.tries == 3,
            metadata={"tries": self.tries},
        )

class Answer(BaseModel):
    answer: str

class Riddle(Higher):
    @terminal
    @tool
    def submit(self, params: Answer) -> ToolOutput:
        """Takes the answer."""
        right = params.answer == str(self.task_spec["secret"])
        return ToolOutput(blocks=[TextBlock(text="checked")], reward=float(right), finished=True)
'''


SERVER = """
import os, socket, uvicorn, their_guesses
from openreward.environments import Server
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the SDK prints each request, and the test reads one line
app = Server([their_guesses.Higher, their_guesses.Riddle]).app
uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listener])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("games")
    (made / "their_guesses.py").write_text(GAMES)
    yield made
    forget(made)


@pytest.fixture
def games(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, from which the module of the games can be imported."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-W", "ignore", "-c", SERVER]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}", process
        process.kill()


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """The SDK's server, with the environments Higher and Riddle."""
    with serving(folder) as (address, _):
        yield address


def guess(number: int) -> dict[str, Any]:
    return {"type": "call_tool", "tool_name": "guess", "arguments": {"number": number}}


async def original(secret: int, numbers: list[int]) -> list[tuple[Any, ...]]:
    """The episode of the class itself, without a server."""
    from their_guesses import Guess, Higher

    env = Higher({"secret": secret})
    env.setup()
    outputs = [env.guess(Guess(number=number)) for number in numbers]
    return [(each.blocks[0].text, each.reward, each.finished, each.metadata) for each in outputs]


@pytest.mark.parametrize("source", ["ors:URL", "ors:their_guesses:Higher"])
async def test_it_is_equal_to_the_original_step_by_step(games: Path, url: str, source: str) -> None:
    async with GenericEnvClient(app=load(source.replace("URL", url))) as env:
        for split, index, secret in (("train", 3, 3), ("hard", 1, 80)):
            for numbers in ([1, 99, 5], [2, secret], [secret]):
                begun = await env.reset(split=split, index=index)
                assert begun.observation["text"] == "Guess my number."
                assert begun.observation["images"][0].startswith("data:image/png;base64,iVBOR")
                seen = []
                for number in numbers:
                    result = await env.step(guess(number))
                    text = result.observation["result"]["content"][0]["text"]
                    seen.append((text, result.reward, result.done, result.metadata))
                assert seen == await original(secret, numbers)
        with pytest.raises(ResetRequired):
            await env.step(guess(1))


async def test_a_text_is_for_the_terminal_tool_which_the_model_does_not_see(url: str) -> None:
    async with GenericEnvClient(app=load(f"ors:{url}?env=riddle")) as env:
        await env.reset(index=2)
        listed = await env.step({"type": "list_tools"})
        assert [tool["name"] for tool in listed.observation["tools"]] == ["guess"]
        result = await env.step({"type": "reply", "text": "2"})
        assert (result.observation["text"], result.reward, result.done) == ("checked", 1.0, True)
    async with GenericEnvClient(app=load(f"ors:{url}")) as env:
        await env.reset(index=2)
        with pytest.raises(InvalidAction, match="call a tool: guess"):
            await env.step({"type": "reply", "text": "2"})


async def test_the_outcome_of_a_failed_call_is_no_reward_and_no_end(url: str) -> None:
    async with GenericEnvClient(app=load(f"ors:{url}")) as env:
        await env.reset(index=2)
        for action, kind in (
            (guess(13), "execution_error"),
            ({**guess(1), "tool_name": "shout"}, "tool_not_found"),
            ({**guess(1), "arguments": {"number": "x"}}, "invalid_args"),
        ):
            result = await env.step(action)
            assert result.observation["error"]["error_type"] == kind
            assert (result.reward, result.done) == (None, False)
        assert (await env.step(guess(2))).reward == 0.5


async def test_tasks_are_those_of_the_server(url: str) -> None:
    cls = load(f"ors:{url}").state.openenv.env_factory
    assert cls.list_splits() == [{"name": "train", "type": "train"}, {"name": "hard", "type": "test"}]
    assert (cls.num_tasks("train"), cls.num_tasks("hard")) == (5, 2)
    with pytest.raises(InvalidArgument, match="train, hard"):
        cls.num_tasks("none")
    async with GenericEnvClient(app=load(f"ors:{url}")) as env:
        with pytest.raises(InvalidArgument, match="there are 5 tasks in train"):
            await env.reset(index=5)


async def test_sessions_are_independent_and_end_with_ours(games: Path, url: str) -> None:
    app = load(f"ors:{url}")
    async with GenericEnvClient(app=app) as first, GenericEnvClient(app=app) as second:
        await asyncio.gather(first.reset(index=1), second.reset(index=4))
        wrong, right = await asyncio.gather(first.step(guess(4)), second.step(guess(4)))
        assert (wrong.reward, right.reward) == (0.0, 1.0)
        assert len(app.state.openenv.env_factory.server.sessions) == 2
    assert app.state.openenv.env_factory.server.sessions == set()


async def test_a_server_that_is_lost_fails_the_episode(games: Path, folder: Path) -> None:
    with serving(folder) as (address, process):
        async with GenericEnvClient(app=load(f"ors:{address}")) as env:
            await env.reset(index=1)
            process.kill()
            process.wait()
            with pytest.raises(EnvironmentFailed, match="ORS: no answer from"):
                await env.step(guess(1))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("ors:http://127.0.0.1:9", "start the server"),
        ("ors:URL?env=chess", "it has higher, riddle"),
        ("ors:nothing", "give the address"),
        ("ors:no_such_module_here:Higher", "no_such_module_here"),
        ("ors:their_guesses:Guess", "does not derive from Environment"),
        ("ors:their_guesses:Nobody", "Nobody"),
    ],
)
def test_what_cannot_be_served_is_one_clear_error(games: Path, url: str, source: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        load(source.replace("URL", url))


async def test_the_imported_project_is_the_same_environment(games: Path, url: str) -> None:
    folder, _ = import_project(adapted_source(f"ors:{url}?env=riddle"), output_dir=games)
    assert folder.name == "riddle"
    assert f"ors_app(\"{url}\", env='riddle')" in (folder / "server/app.py").read_text()
    copied, files = import_project(adapted_source("ors:their_guesses:Higher"), "guesses", games)
    assert "vendor/their_guesses.py" in files
    async with GenericEnvClient(app=load(str(copied))) as env:
        await env.reset(index=1)
        assert (await env.step(guess(1))).reward == 1.0
