"""The tasks: each has an initial database, the request of a customer, and the facts that must be true at the end."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from openenv.errors import InvalidArgument

from .shop import Shop, address

__all__ = ["KINDS", "SIZES", "Task", "changes", "check_index", "check_split", "score", "task"]

SIZES = {"train": 300, "test": 100}


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    Attributes:
        split: Name of its split.
        index: Its index in the split.
        kind: Its kind, a key of `KINDS`.
        text: The request of the customer, for the agent.
        image: The initial database.
        wanted: The facts that must be true at the end and are false at the beginning.
        solution: Tool calls that make them true: names of tools with their arguments.
    """

    split: str
    index: int
    kind: str
    text: str
    image: bytes
    wanted: Counter[str]
    solution: list[tuple[str, dict[str, Any]]]

    def public(self) -> dict[str, Any]:
        """The data of the task for the agent: without the database and the goal."""
        return {"split": self.split, "index": self.index, "kind": self.kind, "task": self.text}


def check_split(name: Any) -> str:
    """Returns the name of a split, after a check.

    Raises:
        InvalidArgument: The split does not exist.
    """
    if not isinstance(name, str) or name not in SIZES:
        raise InvalidArgument(f"no split {name!r:.40}: there are {', '.join(SIZES)}")
    return name


def check_index(split: str, index: Any) -> int:
    """Returns the index of a task, after a check.

    Raises:
        InvalidArgument: The task does not exist.
    """
    count = SIZES[split]
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
        raise InvalidArgument(
            f"split {split!r} has no task {index!r:.40}: there are {count}, from 0 to {count - 1}",
            data={"num_tasks": count},
        )
    return index


@functools.lru_cache(maxsize=512)
def task(split: str, index: int) -> Task:
    """A task of a split. The same split and index always give the same task.

    Raises:
        IndexError: The task does not exist.
        KeyError: The split does not exist.
    """
    if not 0 <= index < SIZES[split]:
        raise IndexError(f"split {split} has tasks 0 to {SIZES[split] - 1}, not {index}")
    rng = Random(f"{split} {index}")  # noqa: S311 - not a secret
    kind = list(KINDS)[index % len(KINDS)]
    shop = _SolutionShop.generate(rng)
    try:
        image, before = shop.image(), shop.facts()
        text = KINDS[kind](shop, rng)
        return Task(split, index, kind, text, image, shop.facts() - before, shop.calls)
    finally:
        shop.close()


class _SolutionShop(Shop):
    """A shop that notes the tool calls with the effects of its changes."""

    def __init__(self, image: bytes | None = None) -> None:
        super().__init__(image)
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def place(self, customer_id: int, product_id: int, quantity: int) -> dict[str, Any]:
        arguments = {"customer_id": customer_id, "product_id": product_id, "quantity": quantity}
        self.calls.append(("place_order", arguments))
        return super().place(customer_id, product_id, quantity)

    def cancel(self, order_id: int) -> dict[str, Any]:
        self.calls.append(("cancel_order", {"order_id": order_id}))
        return super().cancel(order_id)

    def refund(self, order_id: int) -> dict[str, Any]:
        self.calls.append(("refund", {"order_id": order_id}))
        return super().refund(order_id)

    def update_address(self, customer_id: int, new_address: str) -> dict[str, Any]:
        self.calls.append(("update_address", {"customer_id": customer_id, "address": new_address}))
        return super().update_address(customer_id, new_address)


def score(task: Task, shop: Shop) -> float:
    """The reward of `finish`, from 0 to 1.

    It is the number of goal facts that became true, minus the number of other facts that became true, divided by the
    number of goal facts.
    """
    made = changes(task, shop)
    right = (made & task.wanted).total()
    wrong = (made - task.wanted).total()
    return max(0.0, (right - wrong) / task.wanted.total())


def changes(task: Task, shop: Shop) -> Counter[str]:
    """The facts that are true now and were false at the beginning."""
    return shop.facts() - _before(task.split, task.index)


@functools.lru_cache(maxsize=512)
def _before(split: str, index: int) -> Counter[str]:
    shop = Shop(task(split, index).image)
    try:
        return shop.facts()
    finally:
        shop.close()


# Each function makes the change that the customer wants, and returns the request as text.


def _buy(shop: Shop, rng: Random) -> str:
    customer, quantity = _choose_customer(shop, rng), rng.randint(1, 3)
    category = rng.choice(["tea", "mugs", "books", "tools"])
    cheap = rng.random() < 0.5
    goods = sorted(shop.products(category), key=lambda product: product["cents"])
    goods = [each for each in goods if each["category"] == category]
    shop.place(customer["id"], goods[0 if cheap else -1]["id"], quantity)
    which = "cheapest" if cheap else "most expensive"
    return f"{_name(customer)} wants {quantity} of the {which} product in the category {category}. Order it."


def _again(shop: Shop, rng: Random) -> str:
    customer = _choose_customer(shop, rng)
    item = shop.orders(customer["id"])[-1]["items"][0]
    shop.place(customer["id"], item["product_id"], item["quantity"])
    return f"{_name(customer)} wants what the last order has once more, as many of it. Order it."


def _refund(shop: Shop, rng: Random) -> str:
    customer = _choose_customer(shop, rng, "delivered")
    last = [order for order in shop.orders(customer["id"]) if order["status"] == "delivered"][-1]
    shop.refund(last["id"])
    return f"{_name(customer)} is not content with the last order that was delivered. Refund it, and no other."


def _cancel(shop: Shop, rng: Random) -> str:
    customer = _choose_customer(shop, rng, "placed")
    for order in shop.orders(customer["id"]):
        if order["status"] == "placed":
            shop.cancel(order["id"])
    return f"{_name(customer)} wants nothing any more. Cancel all orders that can be cancelled."


def _move(shop: Shop, rng: Random) -> str:
    customer, new = _choose_customer(shop, rng), address(rng)
    while new == customer["address"]:
        new = address(rng)
    shop.update_address(customer["id"], new)
    return f"{_name(customer)} has moved to {new}. Change the address."


KINDS: dict[str, Callable[[Shop, Random], str]] = {
    "buy": _buy,
    "again": _again,
    "refund": _refund,
    "cancel": _cancel,
    "move": _move,
}


def _choose_customer(shop: Shop, rng: Random, status: str = "") -> dict[str, Any]:
    """A random customer, who has an order with the status if one is given."""
    customers = shop.customers("")
    rng.shuffle(customers)
    for customer in customers:
        if not status or any(order["status"] == status for order in shop.orders(customer["id"])):
            return customer
    raise AssertionError(f"no customer has an order with the status {status}")


def _name(customer: dict[str, Any]) -> str:
    return f"{customer['name']} ({customer['email']})"
