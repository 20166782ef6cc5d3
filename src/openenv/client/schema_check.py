"""Compares a client's types with those of its server, once for each class and server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..errors import OpenEnvError, SchemaMismatch
from ..protocol.contract import Contract, Difference, contract_of, first_misfit
from .connection import ClientConnectionV2
from .payloads import raise_or_warn

if TYPE_CHECKING:
    from .session_client import SessionClient

logger = logging.getLogger("openenv.client")

# Contracts by class, and known differences from servers by the hashes of both.
_declared: WeakKeyDictionary[type, Contract] = WeakKeyDictionary()
_found: dict[tuple[Any, ...], Difference | None] = {}
MOST_FOUND = 1000


def schema_check_of(
    client: SessionClient, patience_s: float
) -> Callable[[ClientConnectionV2], Awaitable[None]] | None:
    """Compares the types of a client's class with the hashes in its server's hello.

    Parts that the class reads or writes itself are left out: the action, if it overrides `_step_payload`.
    Older servers send no hashes; then nothing is compared.

    Args:
        client: The client.
        patience_s: Seconds for an answer of the server.

    Returns:
        The `check` of a link: raises `SchemaMismatch` if the client is strict, and else warns, once for its class
        and server. None for a class that declares nothing.
    """
    return partial(_check, client, patience_s) if declared_contract(type(client)).parts else None


def declared_contract(cls: type[SessionClient]) -> Contract:
    """The contract of the types that a client class declares; parts that it reads or writes itself are opaque."""
    contract = _declared.get(cls)
    if contract is None:
        contract = _declared[cls] = contract_of(*cls._checked_types())
    return contract


async def _check(client: SessionClient, patience_s: float, link: ClientConnectionV2) -> None:
    misfit = await _misfit(type(client), link, patience_s)
    if misfit is not None:
        mismatch = SchemaMismatch(
            f"{type(client).__name__} does not fit the environment of {client._url or 'the app'}: "
            f"{misfit.sentence()}; install one version of the environment's package on both sides",
            data=misfit._asdict(),
        )
        raise_or_warn(client, mismatch)


async def _misfit(cls: type, link: ClientConnectionV2, patience_s: float) -> Difference | None:
    mine, hashes = declared_contract(cls), (link.hello or {}).get("schema")
    if not isinstance(hashes, Mapping):
        return None
    differ = {name: hashes[name] for name in mine.parts if isinstance(hashes.get(name), str)}
    differ = {name: found for name, found in differ.items() if found != mine.hashes[name]}
    if not differ:
        return None
    key = (cls, *differ.items())
    if key not in _found:
        try:
            async with asyncio.timeout(patience_s):
                schemas = (await link.request("schema", {})).get("schemas")
            theirs = Contract(schemas if isinstance(schemas, Mapping) else {})
            misfit = first_misfit(mine.only(differ), theirs)
        except (OpenEnvError, TimeoutError, ValueError, RecursionError) as error:
            logger.debug("the types of client and server differ, and the server did not send its types: %s", error)
            return None
        if len(_found) >= MOST_FOUND:
            _found.clear()
        _found[key] = misfit
    return _found[key]
