"""The shop: the database of an episode, and its permitted changes. This module does not depend on tools and tasks."""

from __future__ import annotations

import sqlite3
from collections import Counter
from random import Random
from typing import Any, Self

__all__ = ["MOST_ROWS", "Shop"]

MOST_ROWS = 20

_SCHEMA = """
create table customers (
    id integer primary key, name text not null, email text not null unique, address text not null
);
create table products (
    id integer primary key, name text not null, category text not null, cents integer not null, stock integer not null
);
create table orders (
    id integer primary key, customer_id integer not null references customers (id), status text not null,
    address text not null
);
create table items (
    order_id integer not null references orders (id), product_id integer not null references products (id),
    quantity integer not null
);
"""
_NAMES = ["Ada Brown", "Ben Clark", "Cleo Diaz", "Dan Evans", "Eve Frost", "Finn Gray", "Gus Hill", "Ida Jones"]
_GOODS = {
    "tea": ["green tea", "black tea", "mint tea", "white tea"],
    "mugs": ["blue mug", "red mug", "tall mug", "travel mug"],
    "books": ["tea book", "cook book", "garden book", "star book"],
    "tools": ["small spoon", "kettle", "sieve", "scale"],
}
STREETS = ["Oak Road", "Mill Lane", "High Street", "Park Row", "Elm Way", "Lake View"]


class Shop:
    """Customers, products and orders, in an SQLite database in memory.

    Each method is one transaction: a method that fails changes nothing. Values reach the database as parameters, so a
    text never becomes part of a statement. Calls may come from any thread, but only one at a time.

    Args:
        image: A database that `image()` returned. None creates an empty database.
    """

    def __init__(self, image: bytes | None = None) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        if image is None:
            self._connection.executescript(_SCHEMA)
        else:
            self._connection.deserialize(image)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("pragma foreign_keys = on")

    @classmethod
    def generate(cls, rng: Random) -> Self:
        """A random shop with customers (two of which have the same name), products and orders."""
        shop = cls()
        names = [*_NAMES, rng.choice(_NAMES)]
        rng.shuffle(names)
        with shop._connection:
            shop._connection.execute("begin")
            for name in names:
                email = f"{name.split()[0].lower()}{rng.randint(10, 99)}@{rng.choice(('post', 'mail'))}.example"
                while shop._rows("select 1 from customers where email = ?", email):
                    email = f"{name.split()[0].lower()}{rng.randint(100, 999)}@post.example"
                shop._run("insert into customers (name, email, address) values (?, ?, ?)", name, email, address(rng))
            for category, goods in _GOODS.items():
                prices = rng.sample(range(150, 3000, 50), len(goods))
                for name, cents in zip(rng.sample(goods, len(goods)), prices, strict=True):
                    shop._run(
                        "insert into products (name, category, cents, stock) values (?, ?, ?, ?)",
                        name, category, cents, rng.randint(5, 30),
                    )  # fmt: skip
            for customer in range(1, len(names) + 1):
                for status in rng.sample(
                    ["placed", "placed", "shipped", "delivered", "delivered"], rng.randint(3, 5)
                ):
                    shop._insert_order(customer, status, {rng.randint(1, 16): rng.randint(1, 3)})
        return shop

    def image(self) -> bytes:
        """The serialized database."""
        return self._connection.serialize()

    def close(self) -> None:
        self._connection.close()

    # Reading.

    def customers(self, text: str) -> list[dict[str, Any]]:
        """The customers whose name or e-mail address contains the text, at most 20."""
        return self._rows(
            "select * from customers where instr(lower(name), lower(?1)) or instr(lower(email), lower(?1)) "
            "order by id limit ?2",
            text,
            MOST_ROWS,
        )

    def customer(self, customer_id: int) -> dict[str, Any]:
        return self._one("customer", "select * from customers where id = ?", customer_id)

    def products(self, text: str) -> list[dict[str, Any]]:
        """The products whose name or category contains the text, at most 20."""
        return self._rows(
            "select * from products where instr(lower(name), lower(?1)) or instr(lower(category), lower(?1)) "
            "order by id limit ?2",
            text,
            MOST_ROWS,
        )

    def orders(self, customer_id: int) -> list[dict[str, Any]]:
        """The orders of a customer, the oldest first, at most 20."""
        self.customer(customer_id)
        found = self._rows("select id from orders where customer_id = ? order by id limit ?", customer_id, MOST_ROWS)
        return [self.order(each["id"]) for each in found]

    def order(self, order_id: int) -> dict[str, Any]:
        found = self._one("order", "select * from orders where id = ?", order_id)
        items = self._rows(
            "select product_id, name, quantity, cents from items join products on products.id = product_id "
            "where order_id = ? order by product_id",
            order_id,
        )
        return {**found, "items": items}

    # Writing.

    def place(self, customer_id: int, product_id: int, quantity: int) -> dict[str, Any]:
        """Places an order of one product, to the customer's address."""
        self.customer(customer_id)
        product = self._one("product", "select * from products where id = ?", product_id)
        if not 1 <= quantity <= product["stock"]:
            raise ValueError(f"quantity is {quantity}: there are {product['stock']} of product {product_id}")
        with self._connection:
            self._connection.execute("begin")
            self._run("update products set stock = stock - ? where id = ?", quantity, product_id)
            order_id = self._insert_order(customer_id, "placed", {product_id: quantity})
        return self.order(order_id)

    def cancel(self, order_id: int) -> dict[str, Any]:
        """Cancels an order that has not been shipped; its goods are in stock again."""
        order = self._require_status(order_id, "placed")
        with self._connection:
            self._connection.execute("begin")
            for item in order["items"]:
                self._run("update products set stock = stock + ? where id = ?", item["quantity"], item["product_id"])
            self._run("update orders set status = 'cancelled' where id = ?", order_id)
        return self.order(order_id)

    def refund(self, order_id: int) -> dict[str, Any]:
        """Refunds an order that was delivered."""
        self._require_status(order_id, "delivered")
        self._run("update orders set status = 'refunded' where id = ?", order_id)
        return self.order(order_id)

    def update_address(self, customer_id: int, new_address: str) -> dict[str, Any]:
        """Changes the address of a customer. Existing orders keep their address."""
        self.customer(customer_id)
        self._run("update customers set address = ? where id = ?", new_address, customer_id)
        return self.customer(customer_id)

    def facts(self) -> Counter[str]:
        """The facts about customers and orders, as sentences.

        A sentence about an order has no order id, so that the goal of a task fits a new order with any id.
        """
        facts = [
            f"customer {each['id']} lives at {each['address']}" for each in self._rows("select * from customers")
        ]
        for each in self._rows("select id from orders"):
            order = self.order(each["id"])
            items = ", ".join(f"{item['quantity']} of product {item['product_id']}" for item in order["items"])
            facts.append(f"customer {order['customer_id']} has {items} {order['status']} to {order['address']}")
        return Counter(facts)

    def _insert_order(self, customer_id: int, status: str, goods: dict[int, int]) -> int:
        order_id = self._run(
            "insert into orders (customer_id, status, address) select id, ?, address from customers where id = ?",
            status,
            customer_id,
        )
        for product_id, quantity in goods.items():
            self._run("insert into items values (?, ?, ?)", order_id, product_id, quantity)
        return order_id

    def _require_status(self, order_id: int, status: str) -> dict[str, Any]:
        order = self.order(order_id)
        if order["status"] != status:
            raise ValueError(f"order {order_id} is {order['status']}: this change requires the status {status}")
        return order

    def _one(self, kind: str, statement: str, key: int) -> dict[str, Any]:
        found = self._rows(statement, key)
        if not found:
            raise ValueError(f"there is no {kind} {key}")
        return found[0]

    def _rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in self._connection.execute(statement, values)]

    def _run(self, statement: str, *values: Any) -> int:
        return self._connection.execute(statement, values).lastrowid or 0


def address(rng: Random) -> str:
    """A random address."""
    return f"{rng.randint(1, 199)} {rng.choice(STREETS)}"
