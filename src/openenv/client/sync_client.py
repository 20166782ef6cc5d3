"""The client for code that cannot await: each method is one trip through the portal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ..types import ObsT, StateT, StepResult

if TYPE_CHECKING:
    from .env_client import EnvClient

__all__ = ["SyncEnvClient"]

ActT = TypeVar("ActT")


class SyncEnvClient(Generic[ActT, ObsT, StateT]):
    """`EnvClient` without `await`; it may be used from any thread, and inside a running event loop too.

    Args:
        client: The client it drives; both share one session.
    """

    def __init__(self, client: EnvClient[ActT, ObsT, StateT]):
        self._client = client

    @property
    def async_client(self) -> EnvClient[ActT, ObsT, StateT]:
        """The client behind this one."""
        return self._client

    def connect(self) -> Self:
        """See `EnvClient.connect`."""
        self._client.blocking(self._client._connect())
        return self

    def reset(self, **kwargs: Any) -> StepResult[ObsT]:
        """See `EnvClient.reset`."""
        return self._client.blocking(self._client._reset(kwargs))

    def step(self, action: ActT) -> StepResult[ObsT]:
        """See `EnvClient.step`."""
        return self._client.blocking(self._client._step(action))

    def state(self) -> StateT:
        """See `EnvClient.state`."""
        return self._client.blocking(self._client._state())

    def close(self) -> None:
        """See `EnvClient.close`."""
        self._client.blocking(self._client._close())

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *exc_info: object) -> None:
        self.close()
