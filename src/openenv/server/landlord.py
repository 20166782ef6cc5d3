"""What a session of protocol v2 has of the connection that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ..errors import OpenEnvError
from ..protocol.codec import Body
from ..protocol.messages import Fork, Restore, Tasks
from ..protocol.server_v2 import ServerProtocolV2
from ..tracing import Trail
from .deadlines import Deadlines

if TYPE_CHECKING:
    from .call import Asker
    from .seat import Seat

__all__ = ["Landlord"]


class Landlord(Protocol):
    """Who has the seats: a connection.

    Attributes:
        protocol: How its replies are written.
        max_in_flight: Calls of one session that may wait for their turn.
        max_reply_bytes: Largest reply.
        deadlines: Watches over calls.
        trail: Where calls are traced; None: nowhere.
    """

    protocol: ServerProtocolV2
    max_in_flight: int
    max_reply_bytes: int
    deadlines: Deadlines
    trail: Trail | None

    def seated(self) -> None:
        """One of its sessions is open now."""

    def welcome(self, seat: Seat) -> Body:
        """The reply to `open`."""

    def refusal(self, session: str | None, error: OpenEnvError, request: str | None = None) -> Body:
        """The reply that says why not. `request`: how the call is named in the log."""

    def vacated(self, seat: Seat, loss: OpenEnvError | None) -> None:
        """The seat is no longer its own. `loss`: why, if its client has not asked for that and must be told."""

    def fork(self, seat: Seat, message: Fork, asker: Asker, key: int, freed: Callable[[], None]) -> None:
        """Opens a session with the state of a seat's, which answers whoever asked; `freed`: that may go on."""

    def source_of(self, seat: Seat, message: Restore) -> Seat:
        """The other session of a `restore`. Raises why it cannot be that one."""

    def ask_tasks(self, seat: Seat, message: Tasks, answered: Callable[[Body], None]) -> None:
        """Has a seat's environment asked for its tasks."""
