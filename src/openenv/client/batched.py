"""The client that owns a whole batch of episodes: one call is a step of all of them, with arrays."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any, cast

from ..batched import Autoreset
from ..errors import InvalidArgument, MissingExtra, OpenEnvError, ProtocolViolation, UsageError
from ..protocol.buffers import array_of_rows
from ..types import StepResult
from .connection import ClientConnectionV2, OneSessionConnection
from .session_client import SessionClient, SyncSessionClient

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True)
class BatchResult:
    """The result of a reset or a step of all episodes.

    Attributes:
        observation: The fields of the observations: an array of shape (num_envs, ...) or a list of num_envs values.
        reward: float64 of shape (num_envs,); 0 after a reset.
        terminated: bool of shape (num_envs,): the episode has reached its own end.
        truncated: bool of shape (num_envs,): the episode was cut short.
        info: Facts beside the observation, an array, a list or a dict of such for each name. As in Gymnasium, `_name`
            says which episodes have the info `name`; with `autoreset="same_step"`, `final_obs` and `final_info` are
            of the episodes that have just ended.
        errors: The failures of single sessions, by number; a batch in one session has none. Their rows are 0 or None.
    """

    observation: dict[str, Any]
    reward: NDArray[Any]
    terminated: NDArray[Any]
    truncated: NDArray[Any]
    info: dict[str, Any]
    errors: dict[int, OpenEnvError] = field(default_factory=dict)

    @classmethod
    def of(cls, results: Sequence[StepResult[Any]]) -> BatchResult:
        """The results of several sessions, in arrays::

            batch = BatchResult.of(await envs.step(actions))  # envs: a VectorEnvClient
            mask = np.isfinite(batch.reward)  # as `reward_mask`

        A reward is NaN where there is none: the call failed, or the environment gave no reward. With
        `VectorEnvClient(arrays="batch")`, the arrays of the observations are not copied if no call failed.

        Args:
            results: Their observations have the same fields. Fields with numbers, or with arrays of one shape, become
                arrays; dicts, and lists that contain arrays, become a dict or list of such.

        Raises:
            UsageError: There are no results, or all of them failed.
        """
        import numpy as np

        errors = {index: result.error for index, result in enumerate(results) if result.error is not None}
        rows: list[dict[str, Any]] = [
            {} if result.error is not None else dict(result.observation) for result in results
        ]
        if len(errors) == len(results):
            first = next((f": {error.message}" for error in errors.values()), "")
            raise UsageError(f"none of {len(results)} results has an observation{first}")
        names = [name for name in next(filter(None, rows)) if name not in {"done", "reward", "metadata"}]
        info: dict[str, Any] = {}
        for name in sorted({name for result in results for name in result.metadata or ()}):
            values = [(result.metadata or {}).get(name) for result in results]
            info[name] = values
            info[f"_{name}"] = np.array([name in (result.metadata or {}) for result in results])
        return cls(
            {name: _column([fields.get(name) for fields in rows]) for name in names},
            np.array([math.nan if result.reward is None else float(result.reward) for result in results]),
            np.array([result.terminated for result in results], np.bool_),
            np.array([result.truncated for result in results], np.bool_),
            info,
            errors,
        )


def _column(values: list[Any]) -> Any:
    """An array of numbers, or of arrays of one type and shape; otherwise the list. None becomes 0 in an array.

    Of dicts with the same keys, and of lists of one length that have arrays, a dict or list of such columns.
    """
    import numpy as np

    kinds = {(type(value), getattr(value, "dtype", None), getattr(value, "shape", None)) for value in values}
    kinds.discard((type(None), None, None))
    kind = next(iter(kinds))[0] if len(kinds) == 1 else None
    if kind in (bool, int, float):
        return np.array([kind() if value is None else value for value in values])
    if kind is None:
        return values
    first = next(value for value in values if value is not None)
    if issubclass(kind, np.ndarray):
        whole = None if any(value is None for value in values) else array_of_rows(values)
        if whole is not None:
            return whole
        return np.stack([np.zeros_like(first) if value is None else value for value in values])
    places: Any = range(0)
    if kind is dict and all(value is None or value.keys() == first.keys() for value in values):
        places = first
    elif kind in (list, tuple) and any(isinstance(part, np.ndarray) for part in first):
        places = range(len(first)) if all(value is None or len(value) == len(first) for value in values) else places
    columns = [_column([None if value is None else value[place] for value in values]) for place in places]
    if not columns:
        return values
    return dict(zip(first, columns, strict=True)) if kind is dict else kind(columns)


class BatchedEnvClient(SessionClient):
    """Owns all episodes of a `BatchedEnvironment`, in one session::

        async with BatchedEnvClient("http://localhost:8000") as env:
            result = await env.reset(seed=1)
            while True:
                result = await env.step(policy(result.observation["observation"]))

    One call is one frame and one step of all episodes. Otherwise it is a session as that of `EnvClient`: it resumes
    after a lost connection, and each call is executed once. It needs numpy and protocol v2.

    Args:
        base_url: As for `EnvClient`.
        autoreset: When an episode that has ended is followed by the next one, as in Gymnasium: `"next_step"`: its
            next action is ignored, and its reward is 0; `"same_step"`: at once; `"disabled"`: `reset` does it. An
            environment that resets its episodes itself offers one mode.
        options: Further arguments of `EnvClient`, except `record`: the server can record (OPENENV_RECORD).

    Raises:
        MissingExtra: numpy is not installed.
    """

    def __init__(
        self, base_url: str | Sequence[str] | None = None, autoreset: Autoreset = "next_step", **options: Any
    ) -> None:
        if importlib.util.find_spec("numpy") is None:
            raise MissingExtra("numpy", None)
        if options.get("record") is not None:
            raise InvalidArgument("record: a BatchedEnvClient does not record: let the server do it (OPENENV_RECORD)")
        super().__init__(base_url, **options)
        self._session_options = {"batch": True, "autoreset": autoreset}
        self._num_envs: int | None = None
        self._action_fields: list[str] = []

    @property
    def num_envs(self) -> int:
        """The number of episodes. Raises `UsageError` before the first connection, which tells it."""
        if self._num_envs is None:
            raise UsageError("num_envs is known from the first connection on: call connect() or reset() first")
        return self._num_envs

    @property
    def autoreset(self) -> Autoreset:
        """The autoreset mode of the session."""
        assert self._session_options is not None
        return cast("Autoreset", self._session_options["autoreset"])

    def reset(
        self, seed: int | Sequence[int | None] | None = None, mask: Any = None, **kwargs: Any
    ) -> Awaitable[BatchResult]:
        """Starts episodes.

        Args:
            seed: A seed for each episode; an integer is the seed of the first one, and the others have the following
                numbers. None: any.
            mask: Which episodes start, num_envs bools; None: all.
            kwargs: Further arguments of the environment's `reset`.

        Raises:
            InvalidArgument: `seed` or `mask` has another length or type.
            UsageError: The server's environment does not play many episodes, or not in this autoreset mode.
            OpenEnvError: As for `EnvClient.reset`.
        """
        return self._offered(self._reset_batch(seed, mask, kwargs))

    def step(self, actions: Any, *, timeout_s: float | None = None) -> Awaitable[BatchResult]:
        """Executes one action of each episode.

        Args:
            actions: The fields of the actions, each an array of shape (num_envs, ...) or a list of num_envs values;
                or one of these alone, if actions have one field.
            timeout_s: Seconds for this call, in place of `message_timeout_s`.

        Raises:
            InvalidAction: A field is missing or unknown, or has another length, shape or type.
            ResetRequired: No reset came before; or an episode has ended, with `autoreset="disabled"`.
            OpenEnvError: As for `EnvClient.step`.
        """
        return self._offered(self._step_batch(actions, timeout_s))

    def state(self) -> Awaitable[dict[str, Any]]:
        """The fields of the batch's state: `step_count`, the steps since the last reset. Raises as `step` does."""
        return self._offered(self._state_batch())

    def sync(self) -> SyncBatchedEnvClient:
        """This client for code that cannot await."""
        return SyncBatchedEnvClient(self)

    async def _reset_batch(self, seed: Any, mask: Any, kwargs: dict[str, Any]) -> BatchResult:
        session = await self._open("reset", anew=True)
        arguments = dict(kwargs)
        if hasattr(seed, "__iter__"):  # a seed for each episode
            arguments["seeds"] = list(seed)
        elif seed is not None:
            try:
                first = index(seed)
            except TypeError:
                wanted = f"give an integer, or {self.num_envs} of them"
                raise InvalidArgument(f"seed={seed!r:.50}: {wanted}") from None
            arguments["seeds"] = list(range(first, first + self.num_envs))
        if mask is not None:
            arguments["mask"] = mask
        return self._result(await session.call("reset", arguments, self._message_timeout_s))

    async def _step_batch(self, actions: Any, timeout_s: float | None) -> BatchResult:
        session = await self._open("step")
        if not isinstance(actions, Mapping):
            if len(self._action_fields) != 1:
                names = ", ".join(self._action_fields)
                raise UsageError(f"actions have the fields {names}: give a dict with an array for each")
            actions = {self._action_fields[0]: actions}
        limit_s = self._message_timeout_s if timeout_s is None else timeout_s
        return self._result(await session.call("step", dict(actions), limit_s))

    async def _state_batch(self) -> dict[str, Any]:
        session = await self._open("state")
        return await session.call("state", None, self._message_timeout_s)

    def _result(self, payload: dict[str, Any]) -> BatchResult:
        import numpy as np

        observation = payload.get("observation")
        vectors: list[Any] = [payload.get(name) for name in ("reward", "terminated", "truncated")]
        if not isinstance(observation, dict) or not all(np.shape(vector) == (self.num_envs,) for vector in vectors):
            raise ProtocolViolation(
                f"the server sent a reply that is not of {self.num_envs} episodes: {payload!r:.200}"
            )
        reward, terminated, truncated = map(np.asarray, vectors)
        if not (reward.dtype.kind in "fiu" and np.isfinite(reward).all()):
            raise ProtocolViolation("the server sent rewards that are not finite numbers")
        return BatchResult(observation, reward, terminated, truncated, payload.get("metadata") or {})

    async def _dial_session(self) -> ClientConnectionV2 | OneSessionConnection:
        end = await super()._dial_session()
        try:
            if not isinstance(end, ClientConnectionV2):
                raise UsageError("BatchedEnvClient needs protocol v2, and this server speaks v1 only: upgrade it")
            facts = (await end.greeting(self._options.connect_timeout_s)).get("batch")
            num_envs = facts.get("num_envs") if isinstance(facts, Mapping) else None
            if not isinstance(num_envs, int):
                raise UsageError(
                    "the environment of this server plays one episode a session: use EnvClient or "
                    "VectorEnvClient, or serve a BatchedEnvironment"
                )
            assert isinstance(facts, Mapping)
            self._num_envs, self._action_fields = num_envs, list(facts.get("action_fields") or ())
        except BaseException:
            await end.aclose()
            raise
        return end


class SyncBatchedEnvClient(SyncSessionClient[BatchedEnvClient]):
    """`BatchedEnvClient` without `await`; it takes the same arguments, or an existing client to drive::

    with BatchedEnvClient("http://localhost:8000").sync() as env:
        result = env.reset(seed=1)
        result = env.step(np.zeros(env.num_envs, np.int64))
    """

    _async_class = BatchedEnvClient

    def reset(self, seed: int | Sequence[int | None] | None = None, mask: Any = None, **kwargs: Any) -> BatchResult:
        """See `BatchedEnvClient.reset`."""
        return self._client.waited(self._client.reset, seed, mask, **kwargs)

    def step(self, actions: Any, *, timeout_s: float | None = None) -> BatchResult:
        """See `BatchedEnvClient.step`."""
        return self._client.waited(self._client.step, actions, timeout_s=timeout_s)

    def state(self) -> dict[str, Any]:
        """See `BatchedEnvClient.state`."""
        return self._client.waited(self._client.state)

    @property
    def num_envs(self) -> int:
        """See `BatchedEnvClient.num_envs`."""
        return self._client.num_envs
