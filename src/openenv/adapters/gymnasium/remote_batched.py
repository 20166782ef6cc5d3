"""The whole batch of a server for a `RemoteVectorEnv`: arrays in, arrays out, one call for a step of all episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from ...batched import Autoreset
from ...client import BatchedEnvClient, SyncBatchedEnvClient
from ...errors import InvalidAction, InvalidArgument, OpenEnvError, ResetRequired
from .batch_codec import BatchCodec, column_codec_of, member_at
from .remote import Fields, RemoteSpaces, outside_error
from .schema import MISFITS

Infos = dict[str, Any]
Mask = NDArray[np.bool_]
Step = tuple[Any, NDArray[Any], Mask, Mask, Infos]


class RemoteBatch:
    """All episodes of one server's batch, as arrays of Gymnasium.

    Args:
        spaces: The server, and the spaces of one episode.
        num_envs: Number of episodes.
        autoreset: What follows an episode that has ended, as in `BatchedEnvClient`.

    Attributes:
        client: The client that owns the batch.
    """

    def __init__(self, spaces: RemoteSpaces, num_envs: int, autoreset: Autoreset):
        self._spaces = spaces
        self._num_envs = num_envs
        self._autoreset = autoreset
        self._waiting = np.ones(num_envs, dtype=np.bool_)  # episodes that need a reset before a step
        self._join = _joining(spaces, num_envs)
        self._split = _splitting(spaces, num_envs)
        self.client: SyncBatchedEnvClient = BatchedEnvClient(
            spaces.base_url, autoreset=autoreset, **spaces.options
        ).sync()

    def reset(
        self, seeds: Sequence[int | None] | None, env_ids: Sequence[int], arguments: Fields
    ) -> tuple[Any, Infos]:
        """Starts episodes.

        Args:
            seeds: The seed of each episode that starts; None for no seeds.
            env_ids: The numbers of these episodes.
            arguments: Further arguments of the environment's reset.

        Returns:
            The observations of all episodes, and the infos of those that started.
        """
        mask = np.zeros(self._num_envs, dtype=np.bool_)
        mask[env_ids] = True
        given: list[int | None] | None = None
        if seeds is not None:
            given = [None] * self._num_envs
            for env_id, seed in zip(env_ids, seeds, strict=True):
                given[env_id] = None if seed is None else int(seed)
        with self._undecided(mask):
            result = self.client.reset(seed=given, mask=None if mask.all() else mask, **arguments)
        self._waiting &= ~mask
        return self._join(result.observation), self._infos(result.info, mask)

    def step(self, actions: Any) -> Step:
        """Takes one step in each episode; arguments and errors are those of `RemoteVectorEnv.step`."""
        if self._waiting.any():
            raise reset_required(np.flatnonzero(self._waiting).tolist())
        fields = self._split(actions)
        try:
            with self._undecided(np.ones_like(self._waiting)):
                result = self.client.step(fields)
        except InvalidAction:  # no episode has stepped
            self._waiting[:] = False
            raise
        ended = result.terminated | result.truncated
        self._waiting[:] = ended if self._autoreset == "disabled" else False
        infos = self._infos(result.info, np.ones_like(ended), ended)
        return self._join(result.observation), result.reward, result.terminated, result.truncated, infos

    @contextmanager
    def _undecided(self, mask: Mask) -> Iterator[None]:
        """Marks episodes as in need of a reset: if the call fails or is interrupted, their state is unknown."""
        self._waiting |= mask
        try:
            yield
        except OpenEnvError as error:
            error.data.setdefault("env_ids", np.flatnonzero(mask).tolist())
            raise

    def forget(self) -> None:
        """Its client is closed, so all episodes need a reset."""
        self._waiting[:] = True

    def _infos(self, infos: Mapping[str, Any], mask: Mask, ended: Mask | None = None) -> Infos:
        """The infos in Gymnasium's form: for each name an array, and a mask of the episodes that have this info."""
        found: Infos = {}
        for name, column in infos.items():
            if name.startswith("_") and name[1:] in infos:
                continue
            all_with_it = ended if ended is not None and name in {"final_obs", "final_info"} else mask
            present = np.asarray(infos.get(f"_{name}", all_with_it)) & mask
            if name == "final_obs" and isinstance(column, Mapping):
                found[name] = self._final_observations(column, present)
            elif isinstance(column, Mapping):
                found[name] = self._infos(column, present)
            else:
                array = np.array(column) if isinstance(column, np.ndarray) else _objects(column)
                array[~present] = None if array.dtype == np.object_ else 0
                found[name] = array
            found[f"_{name}"] = present
        return found

    def _final_observations(self, columns: Mapping[str, Any], ended: Mask) -> NDArray[Any]:
        """The last observations of the episodes that have ended, and None for the others."""
        members: list[Any] = [None] * self._num_envs
        # Gymnasium's own vector environments list them, and None for the others.
        are_listed = any(isinstance(column, list) and type(None) in map(type, column) for column in columns.values())
        joined = None if are_listed else self._join(columns)
        for index in np.flatnonzero(ended).tolist():
            members[index] = (
                self._spaces.member_of({name: column[index] for name, column in columns.items()})
                if are_listed
                else member_at(self._spaces.observation_space, joined, index)
            )
        return _objects(members)


def reset_required(env_ids: list[int], calls: str = "reset()") -> ResetRequired:
    """The error for a step of environments without a running episode, of which `calls` starts one."""
    return ResetRequired(
        f"environments {env_ids[:8]} have no running episode: call {calls}, for those alone with "
        "options={'reset_mask': mask}",
        data={"env_ids": env_ids},
    )


def checked_array(actions: Any, spaces: RemoteSpaces, count: int) -> NDArray[Any]:
    """Actions in a space of numbers as one array.

    Args:
        actions: An action for each of some environments.
        spaces: The spaces of one environment; its action space is one of numbers.
        count: Number of these environments.

    Raises:
        InvalidAction: An action is not in its space.
        InvalidArgument: They have another shape.
    """
    assert spaces.bounds is not None
    space = spaces.action_space
    shape = (count, *(space.shape or ()))
    try:
        array = np.asarray(actions)
    except ValueError as error:
        raise outside_error(actions, space) from error
    if array.shape != shape:
        raise InvalidArgument(f"actions of shape {array.shape} for {count} environments: give {shape}")
    try:
        inside = spaces.bounds.inside(array)
    except TypeError as error:
        raise outside_error(array, space) from error
    if not inside.all():
        index = int(np.argwhere(~inside)[0][0])
        raise outside_error(array[index], space, index)
    return array


def _field_codecs(mapped: Any, num_envs: int) -> dict[str, BatchCodec] | None:
    """The codec of each field; None if a function of the user converts all fields of one episode."""
    if mapped.field is not None:
        return {mapped.field: column_codec_of(mapped, num_envs)}
    fields = mapped.fields
    return None if fields is None else {name: column_codec_of(part, num_envs) for name, part in fields.items()}


def _joining(spaces: RemoteSpaces, num_envs: int) -> Callable[[Mapping[str, Any]], Any]:
    """A function that makes a member of the batched observation space of the columns of observations."""
    mapped, space = spaces.observation, spaces.observation_space
    codecs = _field_codecs(mapped, num_envs)

    def join_rows(columns: Mapping[str, Any]) -> Any:
        rows = [{name: column[index] for name, column in columns.items()} for index in range(num_envs)]
        members = [spaces.member_of(row) for row in rows]
        empty: Any = create_empty_array(space, n=num_envs, fn=np.zeros)
        return concatenate(space, members, empty)

    def join(columns: Mapping[str, Any]) -> Any:
        assert codecs is not None
        try:
            parts = {name: codec.decode(columns[name]) for name, codec in codecs.items()}
        except MISFITS as error:
            raise spaces.misfit(columns, error) from error
        return parts if mapped.field is None else parts[mapped.field]

    return join_rows if codecs is None else join


def _splitting(spaces: RemoteSpaces, num_envs: int) -> Callable[[Any], Fields]:
    """A function that makes the columns of actions of a member of the batched action space."""
    mapped, batched = spaces.action, batch_space(spaces.action_space, num_envs)
    codecs = _field_codecs(mapped, num_envs)

    def split_rows(actions: Any) -> Fields:
        rows = [spaces.fields_of(action) for action in iterate(batched, actions)]
        if len(rows) != num_envs:
            raise InvalidArgument(f"{len(rows)} actions for {num_envs} environments: one for each")
        return {name: [row[name] for row in rows] for name in rows[0]}

    def split(actions: Any) -> Fields:
        assert codecs is not None
        if spaces.bounds is not None:
            actions = checked_array(actions, spaces, num_envs)
        elif not batched.contains(actions):
            raise outside_error(actions, batched)
        try:
            given = actions if mapped.field is None else {mapped.field: actions}
            return {name: codec.encode(given[name]) for name, codec in codecs.items()}
        except MISFITS as error:
            raise outside_error(actions, batched) from error

    return split_rows if codecs is None else split


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.full(len(values), None, dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array
