"""The base class `Environment`, transforms of its observations, and the protocols that it may implement."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol

from typing_extensions import TypedDict  # pydantic does not take typing's own before Python 3.12

from . import _scoring
from ._copies import become_copy_of, deep_copy_of
from ._introspection import accepted_arguments
from .chat import Chat
from .types import ActT, EnvironmentMetadata, ObsT, StateT

__all__ = [
    "CompositeTransform",
    "Environment",
    "Message",
    "ModelTokenizer",
    "NullTransform",
    "SessionRandom",
    "TaskProvider",
    "Transform",
    "chat_of",
    "metadata_of",
    "reseed",
]


class Transform(ABC, Generic[ObsT]):
    """Changes an observation before it leaves the environment: adds a reward, hides a field."""

    @abstractmethod
    def __call__(self, observation: ObsT) -> ObsT:
        """Returns the observation to send in place of the given one."""


class SessionRandom(Random):
    """The random numbers of one session (`Environment.rng`)."""


class Environment(ABC, Generic[ActT, ObsT, StateT]):
    """One instance is one session. It is used by one call at a time.

    Override `reset` and `step` for ordinary code: constructor, `reset`, `step` and `close` of a session then
    run on one thread of its own. Override `reset_async` and `step_async` for asynchronous code: they run
    on the server's event loop.

    Calling `super().__init__()` is optional.

    Attributes:
        SUPPORTS_CONCURRENT_SESSIONS: Instances share nothing, so many may live in one process.
        REQUIRES_SINGLE_THREAD_EXECUTOR: Kept for existing code; each session has one thread in any case.
        REPORT_RUBRIC: `_apply_rubric` writes the score of each rubric part to `observation.metadata["rubric"]`.
        SHOW_STATE: The page at `/web` shows `state`. False if it gives the answer away; clients still read it.
        execution: `"inline"` runs synchronous code on the event loop itself: for steps of microseconds,
            where a thread would cost more than the step. `None` chooses a thread for synchronous and the
            loop for asynchronous code.
        chat: How it speaks with a language model: system prompt, observations as text, actions in answers. Clients
            read it from the server (`openenv.rollouts.chat_view`). None makes function tools of its actions.
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = False
    REQUIRES_SINGLE_THREAD_EXECUTOR: ClassVar[bool] = False
    REPORT_RUBRIC: ClassVar[bool] = False
    SHOW_STATE: ClassVar[bool] = True
    execution: ClassVar[str | None] = None
    chat: ClassVar[Chat | None] = None

    # Class attributes, so that a subclass without `super().__init__()` has them too.
    transform: Transform[ObsT] | None = None
    rubric: Callable[[Any, Any], Any] | None = None

    def __init__(
        self, transform: Transform[ObsT] | None = None, rubric: Callable[[Any, Any], Any] | None = None
    ) -> None:
        self.transform = transform
        self.rubric = rubric

    # Not a property: environments that set an `rng` of their own keep it.
    @cached_property
    def rng(self) -> Random:
        """Random numbers of this session alone. A reset with a seed reseeds them before the call.

        For numpy: `numpy.random.default_rng(self.rng.getrandbits(64))` in `reset`.
        """
        return SessionRandom()

    if TYPE_CHECKING:
        # A subclass declares the arguments that it takes. Type checkers accept any of these in an override of
        # `*args: Any, **kwargs: Any` (typing specification, "Assignability rules for callables").
        @abstractmethod
        def reset(self, *args: Any, **kwargs: Any) -> ObsT: ...
        @abstractmethod
        def step(self, action: ActT, *args: Any, **kwargs: Any) -> ObsT: ...

    else:

        @abstractmethod
        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> ObsT:
            """Starts an episode and returns its first observation.

            Args:
                seed: Makes the episode repeatable; `self.rng` starts from it. A `reset` without this argument says
                    that the environment cannot be seeded: a client that gives a seed is warned (`SeedIgnored`).
                episode_id: Name for the episode; the environment chooses one if it is None.
                kwargs: Further arguments of its reset. Arguments of clients that it does not take are dropped
                    before the call.
            """

        @abstractmethod
        def step(self, action: ActT, timeout_s: float | None = None, **kwargs: Any) -> ObsT:
            """Takes one step and returns its observation."""

    @property
    @abstractmethod
    def state(self) -> StateT:
        """The episode's state; cheap, and without side effects."""

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> ObsT:
        """Asynchronous `reset`; override it to run on the event loop."""
        return self.reset(**accepted_arguments(self.reset).of({"seed": seed, "episode_id": episode_id, **kwargs}))

    async def step_async(self, action: ActT, timeout_s: float | None = None, **kwargs: Any) -> ObsT:
        """Asynchronous `step`; override it to run on the event loop."""
        return self.step(action, **accepted_arguments(self.step, positional=1).of({"timeout_s": timeout_s, **kwargs}))

    def close(self) -> None:
        """Releases the environment's resources. Called once, after the last call."""

    def save_state(self) -> Any:
        """The state from which `load_state` of another instance continues the episode. Optional.

        Unless both are overridden, the whole environment is copied (`copy.deepcopy`). Override both where that is
        unsuitable: for a connection, a lock, a thread, a file, or a large part that never changes. A class that
        cannot save its state overrides this to raise `NotForkable`. These may be `async` if `reset` and `step` are.

        `self.rng` and `self.rubric` are saved and loaded too, and need not be part of it.

        Returns:
            Anything that `copy.deepcopy` copies (and pickle, for processes). It is copied at once, so
            later changes of this environment do not affect it.

        Raises:
            NotForkable: It cannot be copied; the message names the obstacle.
        """
        return deep_copy_of(self)

    def load_state(self, state: Any) -> None:
        """Continues from the `save_state` of an instance of the same class. Optional, as that is.

        It is called on a new instance, or on one in the middle of an episode.

        Args:
            state: The result of `save_state`. Only this instance has it.

        Raises:
            NotForkable: It is the state of another class.
        """
        become_copy_of(self, state)

    def oracle(self) -> Any:
        """The next action of a solution of the running episode. Optional, for `openenv validate --level semantic`.

        It is called before each step, and reads what the agent cannot see. Clients cannot call it.

        Returns:
            An action, or its fields as a dict. None if there is no solution, or none from here on.
        """
        return None

    def return_range(self) -> tuple[float, float] | None:
        """The range of returns (sums of rewards) of the running episode. Optional, as `oracle` is.

        Returns:
            The floor: the mean return that a player gets who ignores the observations, such as a guesser. And the
            maximum, which a solution reaches. None declares no range.
        """
        return None

    def get_metadata(self) -> EnvironmentMetadata:
        """Answer of `GET /metadata`."""
        return metadata_of(type(self))

    def render_web(self, observation: Any) -> str | None:
        """HTML that shows an observation in the web UI, or None for the default view.

        Called after each reset and step of the web UI, on the thread or event loop of the other methods; it may be
        `async` if they are. The page shows it in its own frame, where no script runs. An exception, a call
        of over 3 s or HTML of over 4 MiB is noted on the page and fails nothing.

        Args:
            observation: Its fields as clients get them, with `reward` and `done`: `observation["board"]`, or
                `observation.board`.
        """
        return None

    def web_actions(self, observation: Any) -> Sequence[tuple[str, dict[str, Any]]]:
        """Labelled actions that the web UI offers as buttons: `[("Left", {"direction": "left"}), ...]`.

        Called like `render_web`. An invalid action is shown as such.
        """
        return ()

    def _apply_transform(self, observation: ObsT) -> ObsT:
        return observation if self.transform is None else self.transform(observation)

    def _apply_rubric(self, action: Any, observation: Any) -> float:
        """The rubric's score, 0.0 without one; the caller sets the reward. An asynchronous rubric is waited for.

        Raises:
            RubricFailed: The score is not finite.
        """
        return 0.0 if self.rubric is None else _scoring.score(self.rubric, action, observation, self.REPORT_RUBRIC)

    async def _apply_rubric_async(self, action: Any, observation: Any) -> float:
        """The same in asynchronous code, where waiting for a rubric holds up no other session."""
        if self.rubric is None:
            return 0.0
        return await _scoring.score_async(self.rubric, action, observation, self.REPORT_RUBRIC)

    def _reset_rubric(self) -> None:
        """Makes the rubric forget the last episode; call it in `reset`."""
        _scoring.resolve_awaitable(_scoring.reset_rubric(self.rubric))

    async def _reset_rubric_async(self) -> None:
        outcome = _scoring.reset_rubric(self.rubric)
        if inspect.isawaitable(outcome):
            await outcome


def reseed(environment: Environment[Any, Any, Any], seed: Any) -> None:
    """Seeds an environment's `rng`, unless the environment has set its own."""
    own = environment.__dict__.get("rng")
    if own is None or type(own) is SessionRandom:
        environment.__dict__["rng"] = SessionRandom(
            seed if isinstance(seed, (int, float, str, bytes)) else repr(seed)
        )


def metadata_of(cls: type[Any]) -> EnvironmentMetadata:
    """The description of a class: its name, its own docstring and its `chat`."""
    text = inspect.cleandoc(cls.__doc__) if cls.__doc__ else f"{cls.__name__} environment"
    return EnvironmentMetadata(name=cls.__name__, description=text, version="1.0.0", chat=chat_of(cls))


def chat_of(cls: type[Any]) -> Chat | None:
    """What a class declares as `chat`; None for an attribute that is something else, as existing classes may have."""
    declared = getattr(cls, "chat", None)
    return declared if isinstance(declared, Chat) else None


class CompositeTransform(Transform[ObsT]):
    """Applies transforms one after the other, each to what the one before it returned.

    Args:
        transforms: In order of application; an empty list changes nothing.
    """

    def __init__(self, transforms: Iterable[Transform[ObsT]]):
        self.transforms: list[Transform[ObsT]] = list(transforms)

    def __call__(self, observation: ObsT) -> ObsT:
        for transform in self.transforms:
            observation = transform(observation)
        return observation


class NullTransform(Transform[Any]):
    """Changes nothing."""

    def __call__(self, observation: Any) -> Any:
        return observation


class Message(TypedDict):
    """One turn of a conversation with a model."""

    role: str
    content: str


class ModelTokenizer(Protocol):
    """A tokenizer of the `transformers` library."""

    def apply_chat_template(
        self, conversation: list[Message], tokenize: bool = True, return_tensors: str | None = None, **kwargs: Any
    ) -> Any:
        """The conversation as the text, or as the token ids, that a model expects."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        """The text of token ids."""


class TaskProvider(Protocol):
    """An environment with tasks in splits (`train`, `test`). Served at `/{environment}/...`."""

    def list_splits(self) -> list[Any]:
        """All splits."""

    def list_tasks(self, split: str) -> list[Any]:
        """Every task of a split."""

    def num_tasks(self, split: str) -> int:
        """How many tasks a split has."""

    def get_task(self, split: str, index: int) -> Any:
        """One task of a split, counted from 0."""

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        """The tasks from `start` up to `stop`, in the sense of a slice."""
