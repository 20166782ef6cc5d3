"""Sessions and their calls for coroutines, which await what callbacks hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ..errors import OpenEnvError
from .executor import Done
from .manager import SessionManager
from .session import Session, SessionState


@asynccontextmanager
async def opened_session(
    manager: SessionManager, holder: int = 0, peer: str = "", wait_s: float | None = None
) -> AsyncIterator[Session]:
    """A session for the length of a block. Raises what refused it; closes it in any case.

    Args:
        manager: Where it is opened.
        holder: Number of the API key it is for.
        peer: The address of its client.
        wait_s: Seconds that it may wait for a slot; None leaves that to the limits.
    """
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def opened(error: OpenEnvError | None) -> None:
        settle(ready, None, error)

    session = manager.create(opened)
    session.holder, session.peer = holder, peer
    try:
        manager.open(session, wait_s)
        await ready
        yield session
    finally:
        session.close()


async def close_session(session: Session) -> None:
    """Closes a session and waits until nothing of it is left."""
    session.close()
    if session.state is not SessionState.GONE:
        session.gone = session.gone or asyncio.Event()
        await session.gone.wait()


async def result_of(call: Callable[[Done], None]) -> Any:
    """Awaits one call: `await result_of(partial(session.reset, arguments))`. Raises what the call failed with."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call(lambda result, error: settle(future, result, error))
    return await future


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Gives a future the outcome that a callback got."""
    if future.done() or future.get_loop().is_closed():  # the waiting task was cancelled, or is gone with its loop
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
