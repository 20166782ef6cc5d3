"""The classes that trainers make their environments with."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from ...client import EnvClient
from ...errors import UsageError
from .answer import Render
from .episode import Episode
from .method import method_of
from .recipe import Recipe
from .reward import Reward, reward_of
from .toolbox import Tools, tools_of

__all__ = ["EpisodeType", "environment_factory"]


class EpisodeType(type):
    """Class of the classes that `environment_factory` makes. They are in no module: pickled is their recipe."""

    _recipe: Recipe


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
) -> type[Episode]:
    """The class that `GRPOTrainer(environment_factory=...)` wants, for an environment served somewhere::

        F = environment_factory(CounterEnv, tools={"count": CounterAction}, base_url="http://localhost:8000")
        GRPOTrainer(model, environment_factory=F, train_dataset=rows, args=...)

    Its public methods are `reset`, `get_reward` and the tools, each with a typed signature and a docstring made from
    the JSON Schema of its arguments. The class can be pickled if the client class, the functions and `client_kwargs`
    can, so it serves TRL's asynchronous trainer as well. Tool calls are one step of the environment each.

    What goes wrong, and what becomes of it:

    - Wrong arguments, a call after the end of the episode, an error that a tool reports: the model is told, and the
      episode goes on. (TRL turns what a tool raises into a tool message.)
    - The environment, its server or the road to it failed in an episode: the model is told, further calls say the
      same, and `get_reward` returns None. TRL leaves such a rollout out: it is no reward of 0.
    - There is no session at the start of an episode (server gone, or full): reset tries again for `patience_s`
      seconds and then raises, which ends the training. Where the environment's own reset fails, the episode goes
      unscored; three times in a row in one instance raise.

    Args:
        client_cls: The client class: a subclass of `EnvClient`.
        tools: What the model may call. A mapping from names to action classes (`{"move": MoveAction}`), to functions
            with typed arguments that return an action, or to names of tools of an MCP environment; a list of the
            same, named after them; `"mcp"` for all tools of an MCP environment, which is asked now, once; None for
            `"mcp"` where the client lists tools, or else for the action classes that it was declared with.
        reward: The episode's reward: `"sum"` or `"last"` of what the steps gave (0 without any step), a function from
            the list of their `StepResult`s to a number or None, or None for a class without `get_reward`.
        render: What a model gets to read of an observation, from `reset` and from tools: text, a list of content
            blocks, or None. By default a field such as `text` or `message`, an only text, or JSON.
        columns: Columns of the dataset that the environment's reset gets; None passes all of them on, `prompt`
            included, and the environment takes those that it knows.
        patience_s: Seconds for which a reset is tried again.
        name: Name of the class, under which TRL logs the reward.
        client_kwargs: For the client class: `base_url`, `api_key`, `message_timeout_s` and so on.

    Raises:
        UsageError: A tool that cannot be one (the message says why), or no tools at all.
        ConnectionFailed: The server was to be asked for its tools, and did not answer.
    """
    if not (isinstance(client_cls, type) and issubclass(client_cls, EnvClient)):
        raise UsageError(f"client_cls is a subclass of EnvClient, not {client_cls!r}")
    if isinstance(columns, str):
        raise UsageError(f"columns={columns!r}: give a list of names")
    recipe = Recipe(
        name=name or f"{client_cls.__name__.removesuffix('Client').removesuffix('Env')}Environment",
        client_type=client_cls,
        arguments=client_kwargs,
        tools=tools_of(client_cls, tools, partial(client_cls, **client_kwargs)),
        reward=None if reward is None else reward_of(reward),
        render=render,
        columns=None if columns is None else tuple(columns),
        patience_s=patience_s,
    )
    return _class_of(recipe)


def _class_of(recipe: Recipe) -> type[Episode]:
    methods: dict[str, Callable[..., Any]] = {tool.name: method_of(tool, Episode._use) for tool in recipe.tools}
    if recipe.reward is not None:
        methods["get_reward"] = _get_reward()
    for each, method in methods.items():
        method.__qualname__ = f"{recipe.name}.{each}"
    described = {"__doc__": f"Episodes of {recipe.client_type.__name__}.", "__module__": __name__}
    made = EpisodeType(recipe.name, (Episode,), {**methods, **described, "_recipe": recipe})
    return cast("type[Episode]", made)


def _get_reward() -> Callable[[Episode], float | None]:
    def get_reward(self: Episode) -> float | None:
        """The episode's reward, None if it cannot be scored."""
        return self._score()

    return get_reward


def _reduce(cls: EpisodeType) -> tuple[Callable[[Recipe], type[Episode]], tuple[Recipe]]:
    return _class_of, (cls._recipe,)


copyreg.dispatch_table[EpisodeType] = _reduce
