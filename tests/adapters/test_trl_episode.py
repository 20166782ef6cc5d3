"""Episodes as a trainer plays them, and what becomes of failures."""

from __future__ import annotations

import asyncio
import gc
import inspect
import multiprocessing
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from openenv.adapters.trl import TrlEpisode, environment_factory
from openenv.client import EnvClient, GenericEnvClient
from openenv.environment import Environment
from openenv.errors import (
    ConnectionFailed,
    InvalidAction,
    OpenEnvError,
    ResetRequired,
    ServerFull,
    SessionLost,
    StepFailed,
    UsageError,
)
from openenv.server import create_app
from openenv.types import Action, ConcurrencyConfig, Observation, State, StepResult
from tests.server.wires import served

pytestmark = pytest.mark.real

PATIENCE_S = 20.0


class Say(Action):
    """Says a word."""

    kind: Literal["say"] = "say"
    word: str = Field(description="The word", max_length=9)


class Wait(Action):
    """Waits."""

    kind: Literal["wait"] = "wait"


class Heard(Observation):
    text: str


class Chat(Environment[Any, Heard, State]):
    """Pays 1 for each word; `stop` ends the episode, `fail` fails it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"
    resets = 0
    closed = 0

    def __init__(self) -> None:
        super().__init__()
        self.said = 0

    def reset(self, seed: int | None = None, topic: str = "", fail: bool = False, **rest: Any) -> Heard:
        type(self).resets += 1
        if fail:
            raise ValueError("no such topic")
        return Heard(text=f"Talk about {topic}, {'prompt' in rest}.")

    def step(self, action: Say | Wait, **kwargs: Any) -> Heard:
        if isinstance(action, Wait):
            return Heard(text="")
        if action.word == "fail":
            raise ValueError("lost for words")
        return Heard(text=action.word.upper(), reward=1, done=action.word == "stop")

    @property
    def state(self) -> State:
        return State()

    def close(self) -> None:
        type(self).closed += 1


Talk = Annotated[Say | Wait, Field(discriminator="kind")]


class ChatEnv(EnvClient[Talk, Heard, State]):
    pass


def chat_app(most: int = 16) -> Any:
    return create_app(Chat, Talk, Heard, max_concurrent_envs=most)


@pytest.fixture
def address() -> Iterator[str]:
    with served(chat_app()) as at:
        yield at


def public(cls: type[Any]) -> set[str]:
    """What TRL takes for a tool or its own."""
    return {name for name, _ in inspect.getmembers(cls, predicate=inspect.isfunction) if not name.startswith("_")}


def test_the_class_shows_its_tools_and_nothing_else(address: str) -> None:
    assert public(environment_factory(ChatEnv, base_url=address)) == {"reset", "get_reward", "say", "wait"}
    assert public(environment_factory(ChatEnv, [Say], reward=None, base_url=address)) == {"reset", "say"}
    assert public(environment_factory(ChatEnv, {"speak": Say}, base_url=address)) == {"reset", "get_reward", "speak"}


def test_an_episode_is_a_reset_some_tools_and_a_reward(address: str) -> None:
    factory = environment_factory(ChatEnv, base_url=address)
    assert factory.__name__ == "ChatEnvironment"
    episode: Any = factory()

    assert episode.reset(prompt=[{"role": "user", "content": "Hi"}], topic="cats") == "Talk about cats, True."
    assert episode.get_reward() == 0
    assert episode.say(word="meow") == "MEOW"
    assert episode.wait() == ""
    assert episode.say("stop") == "STOP"
    assert episode.get_reward() == 2
    assert [result.reward for result in episode.results] == [1, None, 1]
    with pytest.raises(ResetRequired, match="the episode is over"):
        episode.say("more")
    assert episode.get_reward() == 2
    assert episode.failure is None

    assert episode.reset(topic="dogs") == "Talk about dogs, False."
    assert episode.get_reward() == 0


def test_a_tool_before_any_reset_is_refused(address: str) -> None:
    episode: Any = environment_factory(ChatEnv, base_url=address)()
    with pytest.raises(ResetRequired):
        episode.say("hello")


def test_what_a_model_gets_wrong_does_not_end_the_episode(address: str) -> None:
    episode: Any = environment_factory(ChatEnv, base_url=address)()
    episode.reset()

    with pytest.raises(InvalidAction, match="say: word: String should have at most 9 characters"):
        episode.say("much too long")
    with pytest.raises(TypeError, match="say: got an unexpected keyword argument 'loud'"):
        episode.say("a", loud=True)
    assert episode.say("a") == "A"
    assert episode.get_reward() == 1


def test_an_environment_that_fails_in_a_step_leaves_the_episode_unscored(address: str) -> None:
    episode: Any = environment_factory(ChatEnv, base_url=address)()
    episode.reset()
    episode.say("a")

    with pytest.raises(StepFailed, match="lost for words"):
        episode.say("fail")
    with pytest.raises(StepFailed, match="lost for words"):
        episode.say("a")
    assert episode.get_reward() is None
    assert isinstance(episode.failure, StepFailed)

    episode.reset()
    episode.say("a")
    assert episode.get_reward() == 1


def test_resets_that_fail_leave_episodes_unscored_and_the_third_in_a_row_raises(address: str) -> None:
    episode: Any = environment_factory(ChatEnv, base_url=address)()
    for _ in range(2):
        assert episode.reset(fail=True) is None
        assert episode.get_reward() is None
        with pytest.raises(StepFailed, match="no such topic"):
            episode.say("a")
    assert episode.reset() == "Talk about , False."
    for _ in range(2):
        assert episode.reset(fail=True) is None
    with pytest.raises(StepFailed, match="no such topic"):
        episode.reset(fail=True)


def test_a_server_that_is_not_there_ends_the_training_when_patience_is_over() -> None:
    episode: Any = environment_factory(ChatEnv, base_url="127.0.0.1:1", patience_s=0)()
    with pytest.raises(ConnectionFailed):
        episode.reset()
    assert episode.get_reward() is None


def test_a_full_server_is_asked_again_until_it_has_room() -> None:
    with served(chat_app(most=1)) as address:
        first: Any = environment_factory(ChatEnv, base_url=address)()
        first.reset()
        with pytest.raises(ServerFull):
            environment_factory(ChatEnv, base_url=address, patience_s=0)().reset()

        second = environment_factory(ChatEnv, base_url=address, patience_s=PATIENCE_S)()
        with ThreadPoolExecutor(1) as pool:
            begun = pool.submit(second.reset, topic="cats")
            del first
            gc.collect()
            assert begun.result(PATIENCE_S) == "Talk about cats, False."


@pytest.mark.slow
def test_a_lost_session_leaves_the_episode_unscored_and_the_next_one_has_a_new_one() -> None:
    listening = served(chat_app())
    address = listening.__enter__()
    episode: Any = environment_factory(ChatEnv, base_url=address, message_timeout_s=3, patience_s=0)()
    episode.reset()
    episode.say("a")
    listening.__exit__(None, None, None)

    with pytest.raises(OpenEnvError):
        episode.say("b")
    assert episode.get_reward() is None
    with pytest.raises(ConnectionFailed):
        episode.reset()


def closed(before: int) -> bool:
    """Whether a session has been closed since, which may take a moment."""
    waiting, limit = threading.Event(), time.monotonic() + PATIENCE_S
    while Chat.closed <= before and time.monotonic() < limit:
        waiting.wait(0.01)
    return Chat.closed > before


def test_collecting_an_instance_closes_its_session_without_a_wait(address: str) -> None:
    before = Chat.closed
    episode: Any = environment_factory(ChatEnv, base_url=address)()
    episode.reset()
    gone = weakref.ref(episode)
    del episode
    gc.collect()

    assert gone() is None
    assert closed(before)


def test_the_end_of_the_process_closes_what_is_left(address: str) -> None:
    before = Chat.closed
    program = (
        "from tests.adapters.test_trl_episode import ChatEnv, environment_factory\n"
        f"episode = environment_factory(ChatEnv, base_url={address!r})()\n"
        "print(episode.reset())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "Talk about , False.\n"
    assert closed(before)


def test_a_session_that_the_server_gave_up_while_it_was_idle_is_replaced() -> None:
    app = create_app(
        Chat, Talk, Heard, concurrency_config=ConcurrencyConfig(max_concurrent_envs=1, session_timeout=0.2)
    )
    with served(app) as address:
        episode: Any = environment_factory(ChatEnv, base_url=address, patience_s=PATIENCE_S)()
        before = Chat.closed
        episode.reset()
        assert closed(before)
        with pytest.raises(SessionLost):
            episode.say("a")
        assert episode.get_reward() is None

        before = Chat.closed
        episode.reset()
        assert closed(before)
        assert episode.reset(topic="cats") == "Talk about cats, False."


def test_making_an_instance_connects_to_nothing() -> None:
    environment_factory(ChatEnv, base_url="127.0.0.1:1")()


async def test_instances_are_made_in_a_running_loop_and_called_from_threads(address: str) -> None:
    factory = environment_factory(ChatEnv, base_url=address)
    episodes: list[Any] = [factory() for _ in range(8)]
    loop = asyncio.get_running_loop()

    def play(episode: Any) -> float:
        episode.reset(topic="threads")
        return sum(len(episode.say(str(number))) for number in range(20)) + episode.get_reward()

    with ThreadPoolExecutor(8) as pool:
        totals = await asyncio.gather(*(loop.run_in_executor(pool, play, episode) for episode in episodes))
    assert totals == [50] * 8


def test_an_instance_can_be_called_on_the_thread_of_a_running_loop(address: str) -> None:
    async def play() -> str:
        episode: Any = environment_factory(ChatEnv, base_url=address)()
        episode.reset()
        return str(episode.say("hello"))  # as the trainer does in a notebook

    assert asyncio.run(play()) == "HELLO"


def twice(results: list[StepResult[Any]]) -> float:
    return 2.0 * len(results)


def loud(observation: Heard) -> str:
    return observation.text + "!"


def play_in_child(factory: type[TrlEpisode], results: Any) -> None:
    episode: Any = factory()
    results.put((episode.reset(), episode.speak("a"), episode.get_reward(), factory.__name__))


def speak(word: str) -> Say:
    """Speaks.

    Args:
        word: The word.
    """
    return Say(word=word)


def test_the_class_survives_pickling_into_a_spawned_process(address: str) -> None:
    factory = environment_factory(
        ChatEnv, {"speak": speak}, twice, render=loud, columns=["topic"], name="Chatter", base_url=address
    )
    copy = pickle.loads(pickle.dumps(factory))
    assert public(copy) == public(factory)
    assert inspect.signature(copy.speak) == inspect.signature(factory.speak)

    spawning = multiprocessing.get_context("spawn")
    results = spawning.Queue()
    child = spawning.Process(target=play_in_child, args=(factory, results))
    child.start()
    assert results.get(timeout=20) == ("Talk about , False.!", "A!", 2.0, "Chatter")
    child.join(20)
    assert child.exitcode == 0


def test_columns_choose_what_the_environment_gets(address: str) -> None:
    episode: Any = environment_factory(ChatEnv, columns=["topic", "seed"], base_url=address)()
    assert episode.reset(prompt="Hi", topic="cats", image=object()) == "Talk about cats, False."


def test_a_column_that_cannot_be_sent_says_what_helps(address: str) -> None:
    episode: Any = environment_factory(ChatEnv, base_url=address)()
    with pytest.raises(UsageError, match="columns="):
        episode.reset(image=object())


@pytest.mark.parametrize(
    ("client", "tools", "message"),
    [
        (GenericEnvClient, None, "GenericEnvClient does not declare its action classes"),
        (ChatEnv, [], "has no tools that a model can call"),
        (ChatEnv, "say", "tools='say'"),
        (ChatEnv, 3, "tools=3"),
        (ChatEnv, {"say": 3}, "is neither an action class nor a function"),
        (ChatEnv, [Say, Say], "two tools have the same name"),
        (ChatEnv, {"reset": Say}, "trainers call a method of this name themselves"),
        (Chat, None, "a subclass of EnvClient"),
    ],
)
def test_tools_that_cannot_be_had_are_refused(client: Any, tools: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        environment_factory(client, tools, base_url="127.0.0.1:1")


def test_names_of_columns_are_a_list() -> None:
    with pytest.raises(UsageError, match="columns='topic': give a list"):
        environment_factory(ChatEnv, columns="topic", base_url="127.0.0.1:1")
