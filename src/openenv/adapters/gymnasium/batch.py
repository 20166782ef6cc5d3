"""Actions and observations of many environments at once: one array on this side, one value each on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from ...errors import InvalidArgument, OpenEnvError
from .bounds import Bounds
from .outlet import Fields, Outlet, outside

__all__ = ["ActionBatch", "ObservationBatch"]


class ActionBatch:
    """Takes a batch of actions apart.

    Args:
        outlet: Whose actions.
        count: How many environments.

    Attributes:
        space: Of the batch.
    """

    def __init__(self, outlet: Outlet, count: int):
        self._outlet = outlet
        self._count = count
        self.space = batch_space(outlet.action_space, count)
        side = outlet.action
        self._field = side.field if side.plain else None
        self._flat = side.single
        self._bounds = Bounds.of(outlet.action_space)

    def fields(self, actions: Any) -> list[Fields]:
        """Each environment's action as the wire has it.

        Raises:
            InvalidAction: One of them is not in its space; nothing was sent.
            InvalidArgument: They are not one for each environment.
        """
        if self._bounds is None:
            return self._each(actions)
        try:
            array = np.asarray(actions)
        except ValueError as error:
            raise outside(actions, self.space) from error
        if array.shape != self.space.shape:
            raise InvalidArgument(
                f"actions of shape {array.shape} for {self._count} environments: give {self.space.shape}"
            )
        self._check(array, self._bounds)
        field = self._field
        if field is None:
            return [self._outlet.fields_of(action) for action in array]
        values = (array.reshape(self._count) if self._flat else array).tolist()
        return [{field: value} for value in values]

    def _check(self, array: NDArray[Any], bounds: Bounds) -> None:
        try:
            inside = bounds.inside(array)
        except TypeError as error:
            raise outside(array, self.space) from error
        if not inside.all():
            index = int(np.argwhere(~inside)[0][0])
            raise self._refusal(index, array[index])

    def _each(self, actions: Any) -> list[Fields]:
        try:
            members = list(iterate(self.space, actions))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise outside(actions, self.space) from error
        if len(members) != self._count:
            raise InvalidArgument(f"{len(members)} actions for {self._count} environments: one for each")
        for index, member in enumerate(members):
            if not self._outlet.action_space.contains(member):
                raise self._refusal(index, member)
        return [self._outlet.fields_of(member) for member in members]

    def _refusal(self, index: int, member: Any) -> OpenEnvError:
        refusal = outside(member, self._outlet.action_space)
        refusal.data["env_ids"] = [index]
        return refusal


class ObservationBatch:
    """Puts observations together. Arguments and attributes are those of `ActionBatch`."""

    def __init__(self, outlet: Outlet, count: int):
        self._outlet = outlet
        self._count = count
        single = outlet.observation_space
        self.space = batch_space(single, count)
        side = outlet.observation
        self._field = side.field if side.plain else None
        self._shape = (count, *(single.shape or ()))

    def together(self, rows: Sequence[Fields]) -> Any:
        """The batch of the observations as the wire has them; a new one each time.

        Raises:
            ProtocolViolation: One of them does not fit its space.
        """
        field = self._field
        if field is not None:
            try:
                return np.array([row[field] for row in rows], self.space.dtype).reshape(self._shape)
            except (LookupError, TypeError, ValueError, OverflowError):  # which one, the other way finds out
                pass
        members = [self._outlet.member_of(row) for row in rows]
        single = self._outlet.observation_space
        empty: Any = create_empty_array(single, n=self._count, fn=np.zeros)
        try:
            return concatenate(single, members, empty)
        except (TypeError, ValueError, LookupError) as error:
            raise self._outlet.misfit(rows[0], error) from error
