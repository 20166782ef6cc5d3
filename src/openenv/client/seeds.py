"""What becomes of a seed that an environment cannot take: it is told, once, or every time to who wants that."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import SeedIgnored

if TYPE_CHECKING:
    from .env_client import EnvClient

__all__ = ["check_seed"]

# Client classes and servers that were warned about.
_told: set[tuple[type, str | int]] = set()


def check_seed(client: EnvClient[Any, Any, Any], arguments: Mapping[str, Any], reply: object) -> None:
    """Speaks up if a reset was given a seed that made no difference.

    Args:
        client: Whose reset.
        arguments: What the reset was given.
        reply: Its reply as the wire has it, or anything else in place of one.

    Raises:
        SeedIgnored: The client is strict. Another one warns, once for its class and server.
    """
    if arguments.get("seed") is None or not isinstance(reply, Mapping):
        return
    metadata = reply.get("metadata")
    if not isinstance(metadata, Mapping) or metadata.get("seedable") is not False:
        return
    server = client._url if client._url is not None else id(client._app)
    ignored = SeedIgnored(
        f"the seed {arguments['seed']!r:.50} was ignored: the environment of {client._url or 'the app'} takes none, "
        "so episodes cannot be repeated by it; give its reset a parameter `seed`, or leave the seed out"
    )
    if client._strict:
        raise ignored
    if (type(client), server) not in _told:
        _told.add((type(client), server))
        warnings.warn(ignored, stacklevel=2)
