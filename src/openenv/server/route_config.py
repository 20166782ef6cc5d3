"""GET routes of an app, given as a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

__all__ = ["GetEndpointConfig", "register_get_endpoints"]


@dataclass
class GetEndpointConfig:
    """One GET route.

    Attributes:
        path: Its path.
        handler: Returns the response. It is called on the event loop, so it must not block.
        response_model: What FastAPI validates the response with.
        tag: The group of the route in the OpenAPI document.
        summary: One line about it, for that document.
        description: More about it, for that document.
    """

    path: str
    handler: Callable[[], BaseModel | dict[str, Any]]
    response_model: type[BaseModel] | type[dict[str, Any]]
    tag: str
    summary: str
    description: str


def register_get_endpoints(app: FastAPI, configs: Iterable[GetEndpointConfig]) -> None:
    """Adds a GET route to an app for each entry of a list."""
    for config in configs:
        app.add_api_route(
            config.path,
            _endpoint(config.handler),
            methods=["GET"],
            response_model=config.response_model,
            tags=[config.tag],
            summary=config.summary,
            description=config.description,
        )


def _endpoint(handler: Callable[[], Any]) -> Callable[[], Any]:
    # FastAPI runs a synchronous function on another thread; handlers here run on the event loop.
    async def endpoint() -> Any:
        return handler()

    return endpoint
