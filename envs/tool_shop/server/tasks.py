"""The tasks: a database to begin with, what a customer wants, and how the database shall be at the end."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from openenv.errors import InvalidArgument

from .shop import Shop, address

__all__ = ["KINDS", "SIZES", "Task", "changes", "checked", "score", "split_named", "task"]

SIZES = {"train": 300, "test": 100}


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    Attributes:
        split: Where it belongs.
        index: Which one it is there.
        kind: What it is about.
        text: What the agent is told.
        image: The database to begin with.
        wanted: What shall be true at the end, and was not at the beginning.
    """

    split: str
    index: int
    kind: str
    text: str
    image: bytes
    wanted: Counter[str]

    def public(self) -> dict[str, Any]:
        """What everybody may know."""
        return {"split": self.split, "index": self.index, "kind": self.kind, "task": self.text}


def split_named(name: Any) -> str:
    """The name of a split.

    Raises:
        InvalidArgument: There is none.
    """
    if not isinstance(name, str) or name not in SIZES:
        raise InvalidArgument(f"no split {name!r:.40}: there are {', '.join(SIZES)}")
    return name


def checked(split: str, index: Any) -> int:
    """The place of a task in its split.

    Raises:
        InvalidArgument: There is none.
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
    """A task of a split: always the same.

    Raises:
        IndexError: There is no such task.
        KeyError: There is no such split.
    """
    if not 0 <= index < SIZES[split]:
        raise IndexError(f"split {split} has tasks 0 to {SIZES[split] - 1}, not {index}")
    rng = Random(f"{split} {index}")  # noqa: S311 - no secret is made of it
    kind = list(KINDS)[index % len(KINDS)]
    shop = Shop.drawn(rng)
    try:
        image, before = shop.image(), shop.facts()
        text = KINDS[kind](shop, rng)
        return Task(split, index, kind, text, image, shop.facts() - before)
    finally:
        shop.close()


def score(task: Task, shop: Shop) -> float:
    """What the end of an episode is worth: the share of what was wanted, less as much for each thing that was not."""
    made = changes(task, shop)
    right = (made & task.wanted).total()
    wrong = (made - task.wanted).total()
    return max(0.0, (right - wrong) / task.wanted.total())


def changes(task: Task, shop: Shop) -> Counter[str]:
    """What is true now and was not at the beginning."""
    return shop.facts() - _before(task.split, task.index)


@functools.lru_cache(maxsize=512)
def _before(split: str, index: int) -> Counter[str]:
    shop = Shop(task(split, index).image)
    try:
        return shop.facts()
    finally:
        shop.close()


# Each does what is wanted, and says it in words.


def _buy(shop: Shop, rng: Random) -> str:
    customer, quantity = _someone(shop, rng), rng.randint(1, 3)
    category = rng.choice(["tea", "mugs", "books", "tools"])
    cheap = rng.random() < 0.5
    goods = sorted(shop.products(category), key=lambda product: product["cents"])
    goods = [each for each in goods if each["category"] == category]
    shop.place(customer["id"], goods[0 if cheap else -1]["id"], quantity)
    which = "cheapest" if cheap else "most expensive"
    return f"{_called(customer)} wants {quantity} of the {which} product in the category {category}. Order it."


def _again(shop: Shop, rng: Random) -> str:
    customer = _someone(shop, rng)
    item = shop.orders(customer["id"])[-1]["items"][0]
    shop.place(customer["id"], item["product_id"], item["quantity"])
    return f"{_called(customer)} wants what the last order has once more, as many of it. Order it."


def _give_back(shop: Shop, rng: Random) -> str:
    customer = _someone(shop, rng, "delivered")
    last = [order for order in shop.orders(customer["id"]) if order["status"] == "delivered"][-1]
    shop.refund(last["id"])
    return f"{_called(customer)} is not content with the last order that was delivered. Refund it, and no other."


def _stop(shop: Shop, rng: Random) -> str:
    customer = _someone(shop, rng, "placed")
    for order in shop.orders(customer["id"]):
        if order["status"] == "placed":
            shop.cancel(order["id"])
    return f"{_called(customer)} wants nothing any more. Cancel all orders that can be cancelled."


def _relocate(shop: Shop, rng: Random) -> str:
    customer, new = _someone(shop, rng), address(rng)
    while new == customer["address"]:
        new = address(rng)
    shop.move(customer["id"], new)
    return f"{_called(customer)} has moved to {new}. Change the address."


KINDS: dict[str, Callable[[Shop, Random], str]] = {
    "buy": _buy,
    "again": _again,
    "refund": _give_back,
    "cancel": _stop,
    "move": _relocate,
}


def _someone(shop: Shop, rng: Random, status: str = "") -> dict[str, Any]:
    """A customer, who has an order in that status."""
    everybody = shop.customers("")
    rng.shuffle(everybody)
    for customer in everybody:
        if not status or any(order["status"] == status for order in shop.orders(customer["id"])):
            return customer
    raise AssertionError("no customer has such an order")


def _called(customer: dict[str, Any]) -> str:
    return f"{customer['name']} ({customer['email']})"
