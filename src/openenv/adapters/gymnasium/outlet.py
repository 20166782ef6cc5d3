"""The two sides of a served environment as Gymnasium has them: spaces, and members as the fields on the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import Space

from ...client import GenericEnvClient
from ...errors import InvalidAction, InvalidArgument, OpenEnvError, ProtocolViolation, UsageError
from ...types import StepResult
from .bounds import Bounds
from .description import KEYWORD
from .inquiry import Schemas, schemas_of
from .mapped import MappedSpace
from .schema import Role, space_of_fields

__all__ = ["Fields", "Outlet", "ends_of", "outside"]

Fields = dict[str, Any]
_MISFITS = (LookupError, TypeError, ValueError, AttributeError, OverflowError)


class Outlet:
    """Where a served environment is, and how its values become members of spaces. It can be pickled.

    Args:
        base_url: As for `EnvClient`.
        observation_space, decode_observation: In place of what the schema says. The function makes a member of the
            fields of an observation.
        action_space, encode_action: The same for actions. The function makes the fields of an action of a member.
        missing_reward: The reward of a step that has none; None: such a step is an error.
        options: Further arguments of `EnvClient`.

    Attributes:
        observation_space, action_space: Of one environment.
        observation, action: How their members travel.
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
        self._base_url = base_url
        self._options = dict(options)
        self._given = observation_space, decode_observation, action_space, encode_action
        self._missing_reward = missing_reward
        complete = all(each is not None for each in self._given)
        self._schemas: Schemas = {} if complete else self._ask()
        self._read()

    @property
    def place(self) -> str:
        """Its address, for people."""
        return "an app in this process" if self._base_url is None else str(self._base_url)

    def client(self) -> GenericEnvClient:
        """A new client of it."""
        return GenericEnvClient(self._base_url, **self._options)

    def vector_arguments(self) -> tuple[Any, Fields]:
        """What a vector client of it is made with: its address, and options."""
        return self._base_url, self._options

    def reset_arguments(self, seed: Any, options: Mapping[str, Any] | None) -> Fields:
        """What the environment's reset is given. Raises `InvalidArgument` for options that are none."""
        if options is not None and not isinstance(options, Mapping):
            raise InvalidArgument(f"options is {options!r:.80}: give a dict, or None")
        # What nobody gave is not sent: not every environment takes a seed.
        seeded: Fields = {} if seed is None else {"seed": int(seed)}
        if options is None:
            return seeded
        return {**seeded, "options": dict(options)} if self._is_gymnasium else {**options, **seeded}

    def fields_of(self, member: Any) -> Fields:
        """An action as the wire has it.

        Raises:
            InvalidAction: It is none, or a number outside of its space. All else about it is for the server to say.
        """
        bounds = self._bounds
        try:
            if bounds is not None and not bounds.inside(np.asarray(member)).all():
                raise outside(member, self.action_space)
            fields: Fields = self.action.encode(member)
        except _MISFITS as error:
            raise outside(member, self.action_space) from error
        return fields

    def member_of(self, fields: Any) -> Any:
        """An observation as a member of the space. Raises `ProtocolViolation` for what cannot be one."""
        try:
            return self.observation.decode(fields)
        except _MISFITS as error:
            raise self.misfit(fields, error) from error

    def misfit(self, fields: Any, error: Exception) -> ProtocolViolation:
        """The error for an observation that is no member."""
        return ProtocolViolation(
            f"the server's observation {fields!s:.200} does not fit {self.observation_space} "
            f"({type(error).__name__}: {error}): give observation_space=... and decode_observation=..."
        )

    def reward_of(self, result: StepResult[Any]) -> float:
        """The reward of a step. Raises `UsageError` where it has none, and nothing was given in place of one."""
        reward = result.reward
        if reward is None:
            reward = self._missing_reward
        if reward is None:
            raise UsageError(
                "the environment gave this step no reward, which is not 0, and Gymnasium knows only numbers: pass "
                "missing_reward=0.0 if none means 0 here"
            )
        return float(reward)

    def __getstate__(self) -> Fields:
        if self._options.keys() & {"app", "env", "provider"}:
            raise UsageError(
                "its environment belongs to this process, and cannot be pickled: serve it (openenv serve) and give "
                "its base_url"
            )
        return {name: value for name, value in self.__dict__.items() if name not in {"observation", "action"}}

    def __setstate__(self, state: Fields) -> None:
        self.__dict__.update(state)
        seeded: tuple[Space[Any], Space[Any]] = state["observation_space"], state["action_space"]
        self._read()
        self.observation_space, self.action_space = seeded  # with their random numbers

    def _ask(self) -> Schemas:
        client = self.client()
        try:
            return schemas_of(client)
        finally:
            client.sync().close()

    def _read(self) -> None:
        observation_space, decode, action_space, encode = self._given
        self.observation = self._side("observation", observation_space, decode)
        self.action = self._side("action", action_space, encode)
        self.observation_space, self.action_space = self.observation.space, self.action.space
        self._bounds = Bounds.of(self.action_space)
        self._is_gymnasium = KEYWORD in self._schemas.get("action", {}).get("properties", {}).get("action", {})

    def _side(self, role: Role, space: Space[Any] | None, function: Callable[[Any], Any] | None) -> MappedSpace:
        """A side by what was given for it, and by its schema where that says more."""
        if space is not None and function is not None:
            return MappedSpace(space, function, function)
        if function is not None:
            raise InvalidArgument(f"a function for the {role} needs a space: give {role}_space=... too")
        mapped = space_of_fields(self._schemas[role], role)
        return mapped if space is None else replace(mapped, space=space)


def ends_of(result: StepResult[Any]) -> tuple[bool, bool]:
    """Whether the episode terminated, and whether it was truncated.

    Only where `done` says that it is over, for that is when the next one begins; and then at least one of both.
    """
    truncated = result.done and result.truncated
    return result.done and (result.terminated or not truncated), truncated


def outside(member: Any, space: Space[Any]) -> OpenEnvError:
    """The error for an action that is none."""
    return InvalidAction(f"the action {member!s:.200} is not in the action space {space}")
