"""What a client class makes of actions and replies, for many environments at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar, cast

from ..errors import OpenEnvError
from ..protocol.reward import check_outcome
from ..types import ObsT, StepResult
from .env_client import EnvClient
from .models import dump_action, misread, parse_observation
from .seat import Finale, Outcome

__all__ = ["Hooks"]

ActT = TypeVar("ActT")


class Hooks(Generic[ActT, ObsT]):
    """The hooks of one client; those that its class does not override are called with nothing in between.

    Args:
        client: Made for the environment; it connects to nothing.
    """

    def __init__(self, client: EnvClient[ActT, ObsT, Any]):
        cls = type(client)
        self._client = client
        self._own_payload = cls._step_payload is not EnvClient._step_payload
        own_result = cls._parse_result is not EnvClient._parse_result
        self._parse: Callable[[dict[str, Any]], StepResult[ObsT]] = (
            client._parse_result if own_result else partial(parse_observation, client._types[0])
        )

    def payloads(self, actions: Sequence[ActT]) -> list[dict[str, Any]]:
        """Actions as the wire has them. Raises what a hook raises: that is a mistake of the caller."""
        if self._own_payload:
            return list(map(self._client._step_payload, actions))
        given: Sequence[Any] = actions
        # No copy of a dict: it is written before the caller goes on.
        return [action if type(action) is dict else dump_action(action) for action in given]

    def result(self, outcome: Outcome) -> StepResult[ObsT]:
        """What came of a call; whatever went wrong with it is in `error`."""
        try:
            if type(outcome) is dict:
                return self._read(outcome)
            if isinstance(outcome, Finale):
                return self._turn_of_episodes(outcome)
            error = cast("OpenEnvError", outcome)
        except OpenEnvError as violation:
            error = violation
        except Exception as fault:  # noqa: BLE001 - a subclass's own code, and one environment's reply
            error = misread(self._parse, fault)
            error.__cause__ = fault
        return StepResult(observation=cast("ObsT", None), error=error)

    def _read(self, payload: dict[str, Any]) -> StepResult[ObsT]:
        check_outcome(payload)
        return self._parse(payload)

    def _turn_of_episodes(self, finale: Finale) -> StepResult[ObsT]:
        last, first = self._read(finale.last), self._read(finale.first)
        final = {"final_observation": last.observation, "final_metadata": last.metadata}
        return replace(last, observation=first.observation, metadata={**(first.metadata or {}), **final})
