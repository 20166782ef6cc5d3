"""The vector client for code that cannot await: each method is one trip through the portal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ..types import ObsT, StepResult

if TYPE_CHECKING:
    from .vector import Finished, VectorEnvClient

__all__ = ["SyncVectorEnvClient"]

ActT = TypeVar("ActT")


class SyncVectorEnvClient(Generic[ActT, ObsT]):
    """`VectorEnvClient` without `await`; it may be used from any thread, by one at a time.

    Args:
        client: The client it drives; both share its sessions.
    """

    def __init__(self, client: VectorEnvClient[ActT, ObsT]):
        self._client = client

    @property
    def async_client(self) -> VectorEnvClient[ActT, ObsT]:
        """The client behind this one."""
        return self._client

    @property
    def num_envs(self) -> int:
        """How many environments there are."""
        return self._client.num_envs

    def connect(self) -> Self:
        """See `VectorEnvClient.connect`."""
        self._client.blocking(self._client.connect())
        return self

    def reset(
        self,
        seeds: Sequence[int | None] | None = None,
        env_ids: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> list[StepResult[ObsT]]:
        """See `VectorEnvClient.reset`."""
        return self._client.blocking(self._client.reset(seeds, env_ids, **kwargs))

    def step(self, actions: Sequence[ActT]) -> list[StepResult[ObsT]]:
        """See `VectorEnvClient.step`."""
        return self._client.blocking(self._client.step(actions))

    def send(self, actions: Sequence[ActT], env_ids: Sequence[int] | None = None) -> None:
        """See `VectorEnvClient.send`."""
        self._client.blocking(self._client.send(actions, env_ids))

    def recv(self, min_ready: int = 1, timeout_s: float | None = None) -> list[Finished[ObsT]]:
        """See `VectorEnvClient.recv`."""
        return self._client.blocking(self._client.recv(min_ready, timeout_s))

    def close(self) -> None:
        """See `VectorEnvClient.close`."""
        self._client.blocking(self._client.close())

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *exc_info: object) -> None:
        self.close()
