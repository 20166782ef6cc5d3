"""Compares a client's types with those of its server, once for each class and server. Loaded on first use."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, get_args
from weakref import WeakKeyDictionary

from .._introspection import type_arguments
from ..errors import OpenEnvError, SchemaMismatch
from ..protocol.contract import Contract, Difference, contract_of, first_misfit
from .connection import ClientConnectionV2

if TYPE_CHECKING:
    from .env_client import EnvClient


logger = logging.getLogger("openenv.client")

# What classes declare; what was found when they were compared with the contract of some hashes; which classes and
# servers were warned about.
_declared: WeakKeyDictionary[type, Contract] = WeakKeyDictionary()
_found: dict[tuple[Any, ...], Difference | None] = {}
_told: set[tuple[type, str | int]] = set()
MOST_FOUND = 1000


def schema_check_of(
    client: EnvClient[Any, Any, Any], patience_s: float
) -> Callable[[ClientConnectionV2], Awaitable[None]] | None:
    """What compares the types of a client's class with those its server tells of in its hello.

    Only what the class leaves to its types is compared: not the action where it overrides `_step_payload`, for one.
    With a server that says nothing of its types (older ones do not) nothing is.

    Args:
        client: Whose types.
        patience_s: Seconds for an answer of the server.

    Returns:
        The `check` of a link: raises `SchemaMismatch` if the client is strict, and else warns, once for its class
        and server. None for a class that declares nothing.
    """
    return partial(_check, client, patience_s) if declared_contract(type(client)).parts else None


async def await_schema_check(link: ClientConnectionV2 | object, patience_s: float) -> None:
    """Waits for the check of a new link that nobody else greets; of one without a check, nothing is awaited.

    A connection that is lost meanwhile is no concern of this: whoever uses it makes it again.

    Raises:
        SchemaMismatch: As its check does; the link is closed then.
        ProtocolViolation: There was no hello.
    """
    if not isinstance(link, ClientConnectionV2) or link.check is None:
        return
    try:
        await link.greeting(patience_s)
    except BaseException as error:
        if error is link.error and link.error.retryable:
            return
        await link.aclose()
        raise


def declared_contract(cls: type[EnvClient[Any, Any, Any]]) -> Contract:
    """What a client class sends and takes by its types alone; the rest of the contract is opaque."""
    contract = _declared.get(cls)
    if contract is None:
        contract = _declared[cls] = _contract(cls)
    return contract


def _contract(cls: type[EnvClient[Any, Any, Any]]) -> Contract:
    from .env_client import EnvClient

    arguments = type_arguments(cls, EnvClient)
    action = arguments[0] if len(arguments) == 3 and cls._step_payload is EnvClient._step_payload else None
    observation, state = cls._types
    return contract_of(
        None if action is None or _has_subclasses(action) else action,
        observation if cls._parse_result is EnvClient._parse_result else None,
        state if cls._parse_state is EnvClient._parse_state else None,
    )


def _has_subclasses(action: Any) -> bool:
    """Whether what is sent may be of a subclass of what is declared."""
    kinds = get_args(action) or (action,)
    return any(isinstance(kind, type) and kind.__subclasses__() for kind in kinds)


async def _check(client: EnvClient[Any, Any, Any], patience_s: float, link: ClientConnectionV2) -> None:
    misfit = await _misfit(type(client), link, patience_s)
    if misfit is not None:
        _tell(client, misfit)


async def _misfit(cls: type, link: ClientConnectionV2, patience_s: float) -> Difference | None:
    mine, told = declared_contract(cls), (link.hello or {}).get("schema")
    if not isinstance(told, Mapping):
        return None
    differ = {name: told[name] for name in mine.parts if isinstance(told.get(name), str)}
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
            logger.debug("the types of client and server differ, and the server's are not to be had: %s", error)
            return None
        if len(_found) >= MOST_FOUND:
            _found.clear()
        _found[key] = misfit
    return _found[key]


def _tell(client: EnvClient[Any, Any, Any], misfit: Difference) -> None:
    cls = type(client)
    server = client._url if client._url is not None else id(client._app)
    mismatch = SchemaMismatch(
        f"{cls.__name__} does not fit the environment of {client._url or 'the app'}: {misfit.sentence()}; "
        "install one version of the environment's package on both sides",
        data=misfit._asdict(),
    )
    if client._strict:
        raise mismatch
    if (cls, server) not in _told:
        _told.add((cls, server))
        warnings.warn(mismatch, stacklevel=2)
