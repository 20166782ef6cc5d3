"""The tools of the shop. A model gets their names, argument types and docstrings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastmcp import FastMCP
from pydantic import Field

from .shop import Shop

__all__ = ["create_tools"]

Id = Annotated[int, Field(ge=1, le=2**31)]
Text = Annotated[str, Field(max_length=200)]
Rows = list[dict[str, Any]]


def create_tools(shop: Callable[[], Shop], finish_episode: Callable[[], None]) -> FastMCP:
    """The MCP server with the tools.

    Args:
        shop: Returns the shop of the episode, for each call.
        finish_episode: Called when the agent calls `finish`.
    """
    mcp: FastMCP = FastMCP("tool_shop")

    @mcp.tool
    def search_customers(query: Text) -> Rows:
        """Finds customers by a part of their name or e-mail address. Names are not unique."""
        return shop().customers(query)

    @mcp.tool
    def search_products(query: Text) -> Rows:
        """Finds products by a part of their name or category, with price in cents and stock."""
        return shop().products(query)

    @mcp.tool
    def list_orders(customer_id: Id) -> Rows:
        """The orders of a customer, the oldest first; each is placed, shipped, delivered, cancelled or refunded."""
        return shop().orders(customer_id)

    @mcp.tool
    def get_order(order_id: Id) -> dict[str, Any]:
        """One order."""
        return shop().order(order_id)

    @mcp.tool
    def place_order(customer_id: Id, product_id: Id, quantity: Annotated[int, Field(ge=1, le=100)]) -> dict[str, Any]:
        """Orders a product for a customer."""
        return shop().place(customer_id, product_id, quantity)

    @mcp.tool
    def cancel_order(order_id: Id) -> dict[str, Any]:
        """Cancels an order that is placed."""
        return shop().cancel(order_id)

    @mcp.tool
    def refund(order_id: Id) -> dict[str, Any]:
        """Refunds an order that is delivered."""
        return shop().refund(order_id)

    @mcp.tool
    def update_address(
        customer_id: Id, address: Annotated[str, Field(min_length=1, max_length=200)]
    ) -> dict[str, Any]:
        """Changes the address of a customer."""
        return shop().update_address(customer_id, address)

    @mcp.tool
    def finish() -> str:
        """Says that the task is done, which ends the episode."""
        finish_episode()
        return "the end"

    return mcp
