"""Policies: a user's function or class, or random actions from the action schema."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol

from .._introspection import accepted_arguments, unwrap_partial
from ..errors import OpenEnvError, PolicyFailed, UsageError
from ..mcp.types import Tool
from ..project.target import attribute_of, import_module, search
from ..testing.schemas import NoValue, SchemaValues

Observation = Mapping[str, Any]


class Agent(Protocol):
    """A policy in one episode."""

    async def act(self, observation: Observation) -> Any:
        """The next action. Raises `PolicyFailed`."""
        ...


class Policy(Protocol):
    """A policy.

    Attributes:
        name: Name as given by the user.
        attempts: Number of choices per step, if the server rejects the earlier ones as invalid actions.
    """

    name: str
    attempts: int

    async def begin(self, seed: int | None) -> Agent:
        """The policy's agent for a new episode. Raises `PolicyFailed`."""
        ...

    def close(self) -> None:
        """Releases resources after the last episode."""
        ...


class UserPolicy:
    """A policy of the user: a function, an object with `act`, or a class of such objects.

    A function takes the observation, a dict, and returns the action, a dict or a model; it may be a coroutine
    function. It also gets those of `rng`, `seed` and `step` that are among its parameters: a random generator with
    the episode's seed, that seed, and the number of the step, from 0. A class makes an object for each episode, with
    `seed` and `rng` if it takes them; its `act` is such a function. All episodes share an object.

    Synchronous code runs on one thread, one call at a time, so that it need not be thread-safe and blocks no
    connection. Code that waits (for a model server, say) must be `async`, so that all episodes wait concurrently.

    Args:
        name: Name in messages.
        value: The function, class or object.

    Raises:
        UsageError: The value is not one of those.
    """

    attempts = 1

    def __init__(self, name: str, value: Any):
        self.name = name
        self._value = value
        self._is_class = inspect.isclass(value)
        act = getattr(value, "act", None)
        if act is None and (self._is_class or not callable(value)):
            raise UsageError(
                f"{name} is not a policy: give a function that takes an observation and returns an action, or a "
                "class with such a method `act`"
            )
        self._function: Callable[..., Any] | None = None if self._is_class else (act or value)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="openenv-policy")

    async def begin(self, seed: int | None) -> Agent:
        rng = Random(seed)  # noqa: S311 - no secrets
        if self._function is not None:
            return _UserAgent(self, self._function, seed, rng)

        def make() -> Any:
            try:
                takes = accepted_arguments(self._value)
            except (TypeError, ValueError):  # a class without a readable signature
                return self._value()
            return self._value(**takes.of({"seed": seed, "rng": rng}))

        agent = await self.call(make)
        return _UserAgent(self, agent.act, seed, rng)

    async def call(self, function: Callable[[], Any]) -> Any:
        """Calls a function of the policy on its thread, or awaits it. Raises `PolicyFailed`."""
        called = unwrap_partial(function)
        if not (inspect.isroutine(called) or inspect.isclass(called)):
            called = getattr(called, "__call__", called)  # noqa: B004 - its own, to look at

        def in_thread() -> Any:
            try:
                return function()
            except StopIteration as error:  # a future cannot hold it: its awaiter would wait for ever
                raise self._failure(error) from error

        try:
            if inspect.iscoroutinefunction(called):
                return await function()
            context = contextvars.copy_context()
            here = asyncio.get_running_loop().run_in_executor(self._thread, context.run, in_thread)
            found = await here
            return await found if inspect.isawaitable(found) else found
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._failure(error) from error  # raised by the policy: this task was not cancelled
        except PolicyFailed:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _failure(self, error: BaseException) -> PolicyFailed:
        text = error.message if isinstance(error, OpenEnvError) else str(error)
        said = f"{type(error).__name__}: {text}" if text else type(error).__name__
        # The last frame outside of the standard library.
        library, place = ("<frozen", sys.base_prefix + "/lib"), ""
        for frame in traceback.extract_tb(error.__traceback__):
            file = frame.filename
            if file != __file__ and not file.startswith(library) and "/concurrent/futures/" not in file:
                place = f" ({Path(file).name}, line {frame.lineno})"
        return PolicyFailed(f"{self.name} raised {said}{place}")


class _UserAgent:
    """One episode of a `UserPolicy`."""

    def __init__(self, policy: UserPolicy, function: Callable[..., Any], seed: int | None, rng: Random):
        self._policy = policy
        self._function = function
        self._takes = accepted_arguments(function, positional=1)
        self._given: dict[str, Any] = {"seed": seed, "rng": rng}
        self._step = 0

    async def act(self, observation: Observation) -> Any:
        named = self._takes.of({**self._given, "step": self._step})
        self._step += 1
        return await self._policy.call(partial(self._function, observation, **named))


def load_policy(target: str) -> UserPolicy:
    """Loads the policy `module:attribute`; the current folder is searched first.

    Raises:
        UsageError: The object does not exist, or is not a policy.
        ImportFailed: Its module cannot be imported.
    """
    module, colon, path = target.partition(":")
    if not colon or not path:
        raise UsageError(f"{target!r} is not the name of a policy: give module:function (my_policy:act), or random")
    search(Path.cwd())
    if module.endswith(".py"):
        module = module.removesuffix(".py").replace("/", ".")
    return UserPolicy(target, attribute_of(import_module(module, target), path, target))


# Fields that every action has.
_BESIDE = frozenset({"metadata"})


class RandomPolicy:
    """Takes random actions that the schema allows. The same seed repeats the same actions.

    Args:
        schema: JSON Schema of actions.
        tools: The environment's tools, if actions are tool calls.

    Raises:
        UsageError: The environment has no actions.
    """

    name = "random"
    # A schema may allow actions that the environment's validation rejects.
    attempts = 20

    def __init__(self, schema: Mapping[str, Any], tools: Sequence[Tool] | None = None):
        if tools is not None and not tools:
            raise UsageError("the environment offers no tools, so the policy `random` has nothing to do")
        self._schema = schema
        self._tools = tools

    async def begin(self, seed: int | None) -> Agent:
        return _RandomAgent(self._schema, self._tools, Random(seed))  # noqa: S311 - no secrets

    def close(self) -> None:
        pass


class _RandomAgent:
    """Random actions in one episode."""

    def __init__(self, schema: Mapping[str, Any], tools: Sequence[Tool] | None, random: Random):
        self._random = random
        self._actions = None if tools is not None else SchemaValues(schema, random.getrandbits(32), _BESIDE)
        self._tools = [(tool.name, SchemaValues(tool.input_schema, random.getrandbits(32))) for tool in tools or ()]

    async def act(self, observation: Mapping[str, Any]) -> Any:
        try:
            if self._actions is not None:
                return self._actions.value()
            name, arguments = self._random.choice(self._tools)
            return {"type": "call_tool", "tool_name": name, "arguments": arguments.value()}
        except NoValue as reason:
            raise PolicyFailed(f"random cannot make up an action: {reason}; give a policy of your own") from None
