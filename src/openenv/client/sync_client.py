"""The client for code that cannot await: each method is one trip through the portal."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ..cleanup import kept
from ..types import ObsT, StateT, StepResult
from .tasks import SyncTasks

if TYPE_CHECKING:
    from .env_client import EnvClient

__all__ = ["SyncEnvClient"]

ActT = TypeVar("ActT")


class SyncEnvClient(Generic[ActT, ObsT, StateT]):
    """`EnvClient` without `await`; it may be used from any thread, and inside a running event loop too.

    Args:
        async_client: The client it drives; both share one session.
    """

    def __init__(self, async_client: EnvClient[ActT, ObsT, StateT]):
        self._client = async_client

    @property
    def async_client(self) -> EnvClient[ActT, ObsT, StateT]:
        """The client behind this one."""
        return self._client

    def connect(self) -> Self:
        """See `EnvClient.connect`."""
        self._client.waited(self._client.connect)
        return self

    def reset(self, **kwargs: Any) -> StepResult[ObsT]:
        """See `EnvClient.reset`."""
        return self._client.waited(self._client.reset, **kwargs)

    def step(self, action: ActT, *, timeout_s: float | None = None, **kwargs: Any) -> StepResult[ObsT]:
        """See `EnvClient.step`."""
        if timeout_s is not None:  # a subclass may know of none
            kwargs["timeout_s"] = timeout_s
        return self._client.waited(self._client.step, action, **kwargs)

    def state(self) -> StateT:
        """See `EnvClient.state`."""
        return self._client.waited(self._client.state)

    def close(self) -> None:
        """See `EnvClient.close`."""
        self._client.waited(self._client.close)

    def disconnect(self) -> None:
        """See `EnvClient.disconnect`."""
        self._client.waited(self._client.disconnect)

    def new_session(self) -> Self:
        """See `EnvClient.new_session`."""
        return type(self)(self._client.waited(self._client.new_session))

    def fork(self, wait_s: float | None = None) -> Self:
        """See `EnvClient.fork`."""
        return type(self)(self._client.waited(self._client.fork, wait_s))

    def restore(self, source: EnvClient[ActT, ObsT, StateT] | SyncEnvClient[ActT, ObsT, StateT]) -> None:
        """See `EnvClient.restore`."""
        self._client.waited(self._client.restore, source)

    def tasks(self, split: str | None = None) -> SyncTasks:
        """See `EnvClient.tasks`; what it gives does not need to be awaited."""
        return SyncTasks(self._client.waited(self._client.tasks, split))

    @property
    def base_url(self) -> str | None:
        """See `EnvClient.base_url`."""
        return self._client.base_url

    def __getattr__(self, name: str) -> Any:
        """What the client has and this class has not: its subclass's own attributes, and methods, which block."""
        if name == "_client" or name.startswith("__"):  # asked for in a copy that is still empty
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self._client, name)
        if not (inspect.ismethod(found) or inspect.iscoroutinefunction(found)):
            return found

        @wraps(found)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            return self._client.settled(found(*args, **kwargs))

        return blocking

    def __enter__(self) -> Self:
        try:
            return self.connect()
        except BaseException as error:  # as in the block of the client itself
            with kept(error):
                self.close()
            raise

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        with kept(error):
            self.close()
