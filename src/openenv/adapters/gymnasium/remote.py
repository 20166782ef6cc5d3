"""One served environment as a `gymnasium.Env`: spaces from its schemas, actions and observations converted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from ... import errors
from ..._http import fetch
from ...client import GenericEnvClient, SyncEnvClient
from ...client.endpoints import http_url
from ...types import StepResult
from .description import KEYWORD, NUMBERS, limits_of
from .schema import MISFITS, MappedSpace, Role, space_of_fields


class Bounds:
    """Lower and upper bounds of a space of numbers (one of `NUMBERS`).

    Gymnasium's `contains` also checks the dtype, and so refuses actions that environments accept.
    """

    def __init__(self, space: Space[Any]):
        self._low, self._high = limits_of(space)
        self._dtype = np.dtype(space.dtype)

    def inside(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        """A mask of the elements that are in the space: within bounds, and integers in a space of integers.

        Raises:
            TypeError: The elements are not numbers.
            ValueError: The array has another shape.
        """
        if array.dtype.kind not in "biuf":
            raise TypeError(f"an array of {array.dtype} does not contain numbers")
        inside: NDArray[np.bool_] = (array >= self._low) & (array <= self._high)  # NaN is outside
        if array.dtype.kind != "f":
            return inside
        if self._dtype.kind != "f":
            inside &= array == np.floor(array)
        elif array.dtype.itemsize > self._dtype.itemsize:
            with np.errstate(over="ignore"):
                inside &= np.isfinite(array.astype(self._dtype)) | ~np.isfinite(array)
        return inside


Schemas = Mapping[str, Mapping[str, Any]]


def schemas_of(client: GenericEnvClient) -> Schemas:
    """Asks a client's server for the schemas of `action` and `observation`. Blocks.

    Raises:
        ConnectionFailed: No server answers, or the last of several has no such route.
        Unauthorized: The server needs a valid API key.
        ProtocolViolation: The answer is not a pair of schemas.
    """
    if client._app is not None:
        return _check_schemas(client._app.state.openenv.schemas, "the app")
    if client._endpoints is None:  # a provider starts the server first
        client.sync().connect()
    assert client._endpoints is not None
    failure: errors.OpenEnvError = errors.ConnectionFailed("there is no server")
    for endpoint in client._endpoints.all:
        try:
            return _get_schemas(f"{http_url(endpoint.url)}/schema", client)
        except errors.ConnectionFailed as error:
            failure = error
    raise failure


def _get_schemas(url: str, client: GenericEnvClient) -> Schemas:
    options = client._options
    reply = fetch(url, dict(options.headers), options.connect_timeout_s)
    if reply.status == HTTPStatus.UNAUTHORIZED:
        raise errors.Unauthorized(f"{url} needs a key: pass api_key=..., or set OPENENV_API_KEY")
    if reply.status == HTTPStatus.FORBIDDEN:
        raise errors.Forbidden(f"{url} does not let this api_key (OPENENV_API_KEY) read: pass one with a wider scope")
    if reply.status != HTTPStatus.OK:
        raise errors.ConnectionFailed(
            f"{url} answered HTTP {reply.status} instead of the schemas: check that it is an openenv server, or give "
            "observation_space, decode_observation, action_space and encode_action"
        )
    try:
        return _check_schemas(reply.json(), url)
    except ValueError:
        raise errors.ProtocolViolation(f"{url} answered something that is not JSON: {reply.body[:100]!r}") from None


def _check_schemas(schemas: Any, place: str) -> Schemas:
    if isinstance(schemas, Mapping) and all(
        isinstance(schemas.get(name), Mapping) for name in ("action", "observation")
    ):
        return schemas
    raise errors.ProtocolViolation(f"{place} gave no schemas of its action and observation: {schemas!s:.200}")


Fields = dict[str, Any]


class RemoteSpaces:
    """The address of a served environment, and the conversion of its values to members of spaces. Picklable.

    Args:
        base_url: URL of the server, as in `EnvClient`.
        observation_space, decode_observation: Replace the space from the schema. The function converts the fields of
            an observation to a member.
        action_space, encode_action: Replace the space from the schema. The function converts a member to the fields
            of an action.
        missing_reward: Reward of a step that has none; None to raise an error.
        options: Further arguments of `EnvClient`.

    Attributes:
        observation_space, action_space: Spaces of one environment.
        observation, action: Conversions of their members.
        bounds: Bounds of the actions; None if they are not numbers.
        batch: The facts of a server that plays a batch (`num_envs`, `autoreset`); None for another one, and if all
            spaces and functions are given, since then no schema is read.
        base_url, options: As given.
    """

    def __init__(
        self,
        base_url: Any,
        observation_space: Space[Any] | None,
        decode_observation: Callable[[Fields], Any] | None,
        action_space: Space[Any] | None,
        encode_action: Callable[[Any], Fields] | None,
        missing_reward: float | None,
        options: Mapping[str, Any],
    ):
        self.base_url = base_url
        self.options = dict(options)
        self._given = observation_space, decode_observation, action_space, encode_action
        self._missing_reward = missing_reward
        self._schemas: Schemas = {}
        if any(each is None for each in self._given):
            client = self.client()
            try:
                self._schemas = schemas_of(client)
            finally:
                client.sync().close()
        self._read()

    def client(self) -> GenericEnvClient:
        """A new client of the environment."""
        return GenericEnvClient(self.base_url, **self.options)

    def reset_arguments(self, seed: Any, options: Mapping[str, Any] | None) -> Fields:
        """The arguments of the environment's reset. Raises `InvalidArgument` for invalid options."""
        if options is not None and not isinstance(options, Mapping):
            raise errors.InvalidArgument(f"options is {options!r:.80}: give a dict, or None")
        # A seed is sent only if given, since some environments take no seed.
        seeded: Fields = {} if seed is None else {"seed": int(seed)}
        if options is None:
            return seeded
        return {**seeded, "options": dict(options)} if self._is_gymnasium else {**options, **seeded}

    def fields_of(self, member: Any) -> Fields:
        """Converts an action to its fields in a message.

        Raises:
            InvalidAction: It cannot be converted, or a number is outside of its space. The server checks the rest.
        """
        bounds = self.bounds
        try:
            if bounds is not None and not bounds.inside(np.asarray(member)).all():
                raise outside_error(member, self.action_space)
            fields: Fields = self.action.encode(member)
        except MISFITS as error:
            raise outside_error(member, self.action_space) from error
        return fields

    def member_of(self, fields: Any) -> Any:
        """An observation as a member of the space. Raises `ProtocolViolation` if it cannot be one."""
        try:
            return self.observation.decode(fields)
        except MISFITS as error:
            raise self.misfit(fields, error) from error

    def misfit(self, fields: Any, error: Exception) -> errors.ProtocolViolation:
        """The error for an observation that is not a member of the space."""
        return errors.ProtocolViolation(
            f"the server's observation {fields!s:.200} does not fit {self.observation_space} "
            f"({type(error).__name__}: {error}): give observation_space=... and decode_observation=..."
        )

    def reward_or_missing(self, reward: float | None) -> float:
        """The reward of a step, or else `missing_reward`. Raises `UsageError` if both are None."""
        if reward is None:
            reward = self._missing_reward
        if reward is None:
            raise errors.UsageError(
                "the environment gave this step no reward, and Gymnasium needs a number: pass missing_reward=0.0 if "
                "a missing reward means 0 here"
            )
        return float(reward)

    def __getstate__(self) -> Fields:
        if self.options.keys() & {"app", "env", "provider"}:
            raise errors.UsageError(
                "its environment belongs to this process, and cannot be pickled: serve it (openenv serve) and give "
                "its base_url"
            )
        return {name: value for name, value in self.__dict__.items() if name not in {"observation", "action"}}

    def __setstate__(self, state: Fields) -> None:
        self.__dict__.update(state)
        seeded: tuple[Space[Any], Space[Any]] = state["observation_space"], state["action_space"]
        self._read()
        self.observation_space, self.action_space = seeded  # with their random numbers

    def _read(self) -> None:
        observation_space, decode, action_space, encode = self._given
        self.observation = self._side("observation", observation_space, decode)
        self.action = self._side("action", action_space, encode)
        self.observation_space, self.action_space = self.observation.space, self.action.space
        self.bounds = Bounds(self.action_space) if isinstance(self.action_space, NUMBERS) else None
        self.batch = self._schemas.get("batch")
        self._is_gymnasium = KEYWORD in self._schemas.get("action", {}).get("properties", {}).get("action", {})

    def _side(self, role: Role, space: Space[Any] | None, function: Callable[[Any], Any] | None) -> MappedSpace:
        """The mapping of actions or observations: by the given space and function, else by the schema."""
        if space is not None and function is not None:
            return MappedSpace(space, function, function)
        if function is not None:
            raise errors.InvalidArgument(f"a function for the {role} needs a space: give {role}_space=... too")
        mapped = space_of_fields(self._schemas[role], role)
        return mapped if space is None else replace(mapped, space=space)


def ends_of(result: StepResult[Any]) -> tuple[bool, bool]:
    """Whether the episode terminated, and whether it was truncated.

    At least one is true if `done` is, and none otherwise, since `done` decides when the next episode begins.
    """
    truncated = result.done and result.truncated
    return result.done and (result.terminated or not truncated), truncated


def outside_error(member: Any, space: Space[Any], env_id: int | None = None) -> errors.OpenEnvError:
    """The error for an invalid action, of all environments or of one of them."""
    data = None if env_id is None else {"env_ids": [env_id]}
    return errors.InvalidAction(f"the action {member!s:.200} is not in the action space {space}", data=data)


class RemoteEnv(gymnasium.Env[Any, Any]):
    """One session of a served environment, for trainers that take a `gymnasium.Env`::

        env = RemoteEnv("http://localhost:8000")
        observation, info = env.reset(seed=1)
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())

    Spaces come from the server: a Gymnasium server has its environment's own spaces, and those of any other server
    are made from its JSON Schemas (`openenv.adapters.gymnasium.schema`). `info` is the metadata of the result.

    The first reset connects. The object may be pickled, copied and forked: each copy has a separate session, which
    begins with a reset. Errors are those of `EnvClient`. A lost connection is made again without an error. After the
    death of its server or worker, `step` raises `SessionLost`, or `StepTimeout` after `message_timeout_s`, since the
    step has no reward. `reset` then opens a new session.

    Args:
        base_url: URL of the server, as in `EnvClient`.
        observation_space: Space of observations, for a schema without an equivalent space or for another view.
        decode_observation: Converts an observation's fields to a member of that space; None if their form fits.
        action_space: Space of actions, as for observations.
        encode_action: Converts a member of that space to an action's fields; None if its form fits.
        missing_reward: Reward of a step for which the environment returns None; None raises `UsageError` instead.
        options: Further arguments of `EnvClient`: timeouts, `api_key`, `headers`, `app`, `env`, ...

    Raises:
        ConnectionFailed: No server answers with its schemas.
        UnmappableSpace: The schema of its actions or observations has no equivalent space.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        *,
        observation_space: Space[Any] | None = None,
        decode_observation: Callable[[Fields], Any] | None = None,
        action_space: Space[Any] | None = None,
        encode_action: Callable[[Any], Fields] | None = None,
        missing_reward: float | None = None,
        **options: Any,
    ):
        self.metadata = {"render_modes": []}
        self._spaces = RemoteSpaces(
            base_url, observation_space, decode_observation, action_space, encode_action, missing_reward, options
        )
        self.observation_space = self._spaces.observation_space
        self.action_space = self._spaces.action_space
        self._client: SyncEnvClient[Any, Any, Any] | None = None

    @property
    def client(self) -> SyncEnvClient[Any, Any, Any]:
        """The client, for calls that Gymnasium lacks, such as `state()`."""
        if self._client is None:
            self._client = self._spaces.client().sync()
        return self._client

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: Seed for the environment, and for this object's `np_random`, which wrappers use.
            options: Sent unchanged to a Gymnasium server, and to any other server as arguments of `reset`.
        """
        super().reset(seed=seed)
        result = self.client.reset(**self._spaces.reset_arguments(seed, options))
        return self._spaces.member_of(result.observation), _info(result)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one step.

        Raises:
            InvalidAction: The action is not in its space; the episode continues.
            SessionLost: The session and its episode are lost: reset.
        """
        result = self.client.step(self._spaces.fields_of(action))
        observation = self._spaces.member_of(result.observation)
        reward = self._spaces.reward_or_missing(result.reward)
        return observation, reward, *ends_of(result), _info(result)

    def close(self) -> None:
        """Ends the session and its connection. A later reset opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def __str__(self) -> str:
        url = self._spaces.base_url
        return f"<RemoteEnv {'an app in this process' if url is None else url}>"


def _info(result: StepResult[Any]) -> dict[str, Any]:
    return {} if result.metadata is None else dict(result.metadata)
