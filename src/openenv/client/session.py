"""What a client has of its session, whichever version of the protocol carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..errors import OpenEnvError

if TYPE_CHECKING:
    from .linked_session import LinkedSession

__all__ = ["Kind", "Session"]

Kind = Literal["reset", "step", "state", "fork", "restore", "tasks", "mcp"]


class Session(Protocol):
    """One session of an environment, on the event loop that opened it.

    Attributes:
        error: Why there is no session any more; None while there is one.
    """

    error: OpenEnvError | None

    @property
    def leaving(self) -> bool:
        """Whether its server ends it soon, so that the next episode is better begun elsewhere."""

    @property
    def linked(self) -> LinkedSession | None:
        """The session of protocol v2 that it is; None for one of v1, which is all that it is."""

    async def call(self, kind: Kind, data: Any, timeout_s: float | None) -> dict[str, Any]:
        """Sends a request and waits for its reply; calls made meanwhile are executed in their order.

        Args:
            kind: What to do; fork, restore and tasks take protocol v2.
            data: Arguments of a reset, the action of a step, or the fields of another request; None for state.
            timeout_s: Seconds to wait; None waits for as long as the connection lasts.

        Returns:
            An observation with what goes beside it (`observation`, `reward`, `done`, ...), the state's fields, the
            `result` or `error` of mcp, or the reply to another request.

        Raises:
            MessageTooLarge: The request is over the limit, and was not sent.
            StepTimeout: No reply in time. The reply is dropped when it comes, and later calls get their own.
            OpenEnvError: Whatever the server reported, or `SessionLost` when the session has ended.
        """

    async def aclose(self) -> None:
        """Ends the session and its connection, within a bounded time."""
