"""`environment_factory` for TRL: each instance of its classes has one session and plays one episode at a time."""

from __future__ import annotations

import contextlib
import copyreg
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ... import errors
from ..._backoff import Backoff
from ...client import EnvClient
from ...client.portal import portal, submit_to
from ...images import RenderedImage, pillow
from ...rollouts.content import content_of, refusal_of
from ...types import StepResult
from .methods import method_of
from .tools import EpisodeTool, Tools, tools_of

# Converts an observation to text, to content blocks, or to None for nothing.
Render = Callable[[Any], str | list[dict[str, Any]] | None]


def answer_of(observation: Any) -> str | list[dict[str, Any]]:
    """The content that a model reads of an observation; of an MCP environment, the result of the tool.

    Returns:
        The text of `content_of`; with images, a list of content parts: `{"type": "image", "image": PIL.Image.Image}`
        for each image, then the text, if any.

    Raises:
        StepFailed: A value cannot be written as JSON, or an image cannot be read.
        MissingExtra: It contains an image and Pillow is not installed.
    """
    try:
        text, images = content_of(observation)
        pictures = [each.to_pil() if isinstance(each, RenderedImage) else pillow().fromarray(each) for each in images]
    except (errors.StepFailed, errors.InvalidArgument) as error:
        raise errors.StepFailed(
            f"an observation cannot be shown to the model ({error}): give environment_factory render="
        ) from error
    if not images:
        return text
    parts: list[dict[str, Any]] = [{"type": "image", "image": picture} for picture in pictures]
    return [*parts, {"type": "text", "text": text}] if text else parts


Results = Sequence[StepResult[Any]]
# Scores an episode; None if it has no score, so that trainers leave it out.
Reward = Callable[[list[StepResult[Any]]], float | None]


def total(results: Results) -> float | None:
    """The sum of the rewards: 0 for an episode without a step, None if no step gave a reward."""
    given = _given(results)
    return float(sum(given)) if given or not results else None


def last(results: Results) -> float | None:
    """The last reward that a step gave; without any, the result of `total`."""
    given = _given(results)
    return given[-1] if given else total(results)


def reward_of(reward: Reward | str) -> Reward:
    """The function for the argument `reward`.

    Raises:
        UsageError: It is neither a function nor the name of one.
    """
    named: dict[Any, Reward] = {"sum": total, "last": last}
    if callable(reward):
        return reward
    if reward in named:
        return named[reward]
    raise errors.UsageError(
        f"reward={reward!r}: give 'sum', 'last', None or a function from the list of StepResults to a number"
    )


def _given(results: Results) -> list[float]:
    return [float(result.reward) for result in results if result.reward is not None]


@dataclass(frozen=True)
class EpisodeConfig:
    """Configuration of episodes. Picklable, if its parts are.

    Attributes:
        name: Name of the class, under which trainers log its reward.
        connect: Makes a client, which connects with its first call: the client class with its arguments.
        tools: Tools for the model.
        reward: Function that scores an episode; None leaves that to the trainer.
        render: Converts an observation to content for the model; None for `answer_of`.
        columns: Columns of the dataset that the environment's reset gets; None for all.
        patience_s: Seconds for which a reset is tried again while no session is available.
    """

    name: str
    connect: partial[EnvClient[Any, Any, Any]]
    tools: tuple[EpisodeTool, ...]
    reward: Reward | None
    render: Render | None
    columns: tuple[str, ...] | None
    patience_s: float


_log = logging.getLogger(__name__)

# Most resets of one instance that may fail in a row because of the environment.
MOST_FAILURES = 3
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class TrlEpisode:
    """Base of the classes that `environment_factory` makes. Its subclasses have the tools as methods.

    One instance plays one rollout after another: `reset`, tool calls, `get_reward`. Any thread may call it, one at a
    time. It connects with its first call, and again after the connection or the session was lost. Its session is
    closed when it is garbage collected, or when the process ends.
    """

    _config: ClassVar[EpisodeConfig]

    def __init__(self) -> None:
        self._client = self._config.connect().sync()
        self._results: list[StepResult[Any]] = []
        self._failure: Exception | None = None
        self._failures = 0
        self._playing = False
        self._closing: weakref.finalize[..., Any] | None = None

    @property
    def results(self) -> tuple[StepResult[Any], ...]:
        """The results of this episode's steps, for custom reward functions (`environments[i].results`)."""
        return tuple(self._results)

    @property
    def failure(self) -> Exception | None:
        """Why this episode cannot be scored; None if it can."""
        return self._failure

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A tool."""

    def reset(self, /, **row: Any) -> str | list[dict[str, Any]] | None:
        """Starts an episode.

        Args:
            row: The columns of the dataset; the environment gets those that its `reset` takes.

        Returns:
            The first observation, for the prompt. None if it is empty, or if the environment failed, so that the
            episode has no score.

        Raises:
            ConnectionFailed, CapacityError: No session was available within `patience_s`.
            EnvironmentFailed: The environment failed `MOST_FAILURES` times in a row.
        """
        if self._failure is not None and not isinstance(self._failure, errors.StepFailed):
            self._client.close()  # waiting for the rest of that session has no use
        self._results, self._failure, self._playing = [], None, False
        columns = self._config.columns
        sent = row if columns is None else {name: row[name] for name in columns if name in row}
        try:
            result = self._begin(sent)
        except Exception as error:
            self._fail(error)
            self._failures += 1
            if not isinstance(error, errors.EnvironmentFailed) or self._failures >= MOST_FAILURES:
                raise
            return None
        self._failures = 0
        self._playing = not result.done
        return self._rendered(result.observation) or None

    def _begin(self, arguments: dict[str, Any]) -> StepResult[Any]:
        """Resets, and retries while the connection fails or the server is full."""
        if self._closing is None:
            self._closing = weakref.finalize(self, _close_session, self._client.async_client, os.getpid())
            self._closing.atexit = False  # at exit, the portal closes all clients within a time limit
        end = time.monotonic() + self._config.patience_s
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                return self._client.reset(**arguments)
            except (errors.ConnectionFailed, errors.CapacityError) as error:
                pause = max(backoff.grow(), error.retry_after_s or 0.0)
                if not (error.retryable or isinstance(error, errors.SessionLost)) or time.monotonic() + pause > end:
                    raise
                _log.warning("no session yet, trying again in %.1f s: %s", pause, error)
            except errors.InvalidArgument as error:
                raise errors.UsageError(
                    f"a column of the dataset cannot be sent to the environment ({error}): "
                    "name those that its reset needs with environment_factory(columns=[...])"
                ) from error
            time.sleep(pause)

    def _use(self, tool: EpisodeTool, arguments: dict[str, Any]) -> Any:
        """Calls a tool with one step. Trainers show its errors to the model.

        Raises:
            InvalidAction, UsageError: The model made a mistake; the episode continues.
            Exception: Any other failure: the episode is over and has no score.
        """
        if self._failure is not None:
            raise self._failure
        if not self._playing:
            raise errors.ResetRequired("the episode is over: no tool can be called any more")
        action = tool.action(arguments)
        try:
            result = self._client.step(action)
            self._results.append(result)
            self._playing = not result.done
            refusal = refusal_of(result.observation)
            answer = None if refusal else self._rendered(result.observation)
        except errors.InvalidAction:
            raise
        except Exception as error:
            self._fail(error)
            raise
        if refusal:
            raise errors.UsageError(refusal)
        return answer or ""

    def _rendered(self, observation: Any) -> str | list[dict[str, Any]] | None:
        render = self._config.render
        return answer_of(observation) if render is None else render(observation)

    def _fail(self, error: Exception) -> None:
        _log.warning("an episode has no score: %s: %s", type(error).__name__, error)
        self._failure = error
        self._playing = False


def _close_session(client: EnvClient[Any, Any, Any], pid: int) -> None:
    """Closes a session without waiting, since garbage collection may run on any thread."""
    if os.getpid() == pid:
        with contextlib.suppress(errors.OpenEnvError):  # the process is ending: the portal has closed the client
            submit_to(portal().loop, client._close())


class EpisodeType(type):
    """Metaclass of the classes from `environment_factory`. No module has them, so they pickle as their config."""

    _config: EpisodeConfig


def environment_factory(
    client_cls: type[EnvClient[Any, Any, Any]],
    tools: Tools = None,
    reward: Reward | str | None = "sum",
    *,
    render: Render | None = None,
    columns: Iterable[str] | None = None,
    patience_s: float = 60.0,
    name: str | None = None,
    **client_kwargs: Any,
) -> type[TrlEpisode]:
    """Makes the class for `GRPOTrainer(environment_factory=...)` from a served environment::

        F = environment_factory(CounterEnv, tools={"count": CounterAction}, base_url="http://localhost:8000")
        GRPOTrainer(model, environment_factory=F, train_dataset=rows, args=...)

    Its public methods are `reset`, `get_reward` and the tools, each with a typed signature and a docstring made from
    the JSON Schema of its arguments. The class can be pickled if the client class, the functions and `client_kwargs`
    can, so it also works with TRL's asynchronous trainer. Each tool call is one step of the environment.

    Failures:

    - Invalid arguments, a call after the end of the episode, an error that a tool reports: the model reads the error,
      and the episode continues. (TRL turns an error of a tool into a tool message.)
    - The environment, its server or its connection failed in an episode: the model reads the error, further calls
      raise it again, and `get_reward` returns None. TRL leaves such a rollout out, instead of a reward of 0.
    - No session is available at the start of an episode (server gone, or full): reset tries again for `patience_s`
      seconds and then raises, which ends the training. If the environment's reset fails, the episode has no score;
      the third failure in a row in one instance raises.

    Args:
        client_cls: The client class: a subclass of `EnvClient`.
        tools: The tools for the model. A mapping from names to action classes (`{"move": MoveAction}`), to functions
            with typed arguments that return an action, or to names of tools of an MCP environment; a list of the
            same, which keep their names; `"mcp"` for all tools of an MCP environment, which is asked now, once; None
            for `"mcp"` if the client lists tools, and otherwise for the client's action classes.
        reward: The episode's reward: `"sum"` or `"last"` of the steps' rewards (0 without any step), a function from
            the list of their `StepResult`s to a number or None, or None for a class without `get_reward`.
        render: Converts an observation, from `reset` and from tools, to content for the model: text, a list of
            content blocks, or None. By default a field such as `text` or `message`, its only string, or JSON.
        columns: Columns of the dataset that the environment's reset gets; None passes all of them, `prompt` included,
            and the environment takes those that it knows.
        patience_s: Seconds for which a reset is tried again.
        name: Name of the class, under which TRL logs the reward.
        client_kwargs: Arguments of the client class: `base_url`, `api_key`, `message_timeout_s` and so on.

    Raises:
        UsageError: A tool is invalid (the message says why), or the environment has no tools.
        ConnectionFailed: The server did not answer the request for its tools.
    """
    if not (isinstance(client_cls, type) and issubclass(client_cls, EnvClient)):
        raise errors.UsageError(f"client_cls is {client_cls!r}: give a subclass of EnvClient")
    if isinstance(columns, str):
        raise errors.UsageError(f"columns={columns!r}: give a list of names")
    connect = partial(client_cls, **client_kwargs)
    config = EpisodeConfig(
        name=name or f"{client_cls.__name__.removesuffix('Client').removesuffix('Env')}Environment",
        connect=connect,
        tools=tools_of(client_cls, tools, connect),
        reward=None if reward is None else reward_of(reward),
        render=render,
        columns=None if columns is None else tuple(columns),
        patience_s=patience_s,
    )
    return _class_of(config)


def _class_of(config: EpisodeConfig) -> type[TrlEpisode]:
    methods: dict[str, Callable[..., Any]] = {tool.name: method_of(tool, TrlEpisode._use) for tool in config.tools}
    if config.reward is not None:
        score = config.reward

        def get_reward(self: TrlEpisode) -> float | None:
            """The episode's reward, None if it cannot be scored."""
            return None if self._failure is not None else score(list(self._results))

        methods["get_reward"] = get_reward
    for each, method in methods.items():
        method.__qualname__ = f"{config.name}.{each}"
    described = {"__doc__": f"Episodes of {config.connect.func.__name__}.", "__module__": __name__}
    made = EpisodeType(config.name, (TrlEpisode,), {**methods, **described, "_config": config})
    return cast("type[TrlEpisode]", made)


copyreg.dispatch_table[EpisodeType] = lambda cls: (_class_of, (cls._config,))
