"""The shop: a database of an episode, and what may be done with it. Knows nothing of tools and tasks."""

from __future__ import annotations

import sqlite3
from collections import Counter
from random import Random
from typing import Any

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
    """Customers, products, orders, in memory.

    Each method is one transaction: what fails has changed nothing. Values reach the database as parameters: no text
    is ever part of a statement. It is used by one call at a time, on whichever thread that comes.

    Args:
        image: A database that `image` gave; an empty one without it.
    """

    def __init__(self, image: bytes | None = None) -> None:
        self._base = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        if image is None:
            self._base.executescript(_SCHEMA)
        else:
            self._base.deserialize(image)
        self._base.row_factory = sqlite3.Row
        self._base.execute("pragma foreign_keys = on")

    @classmethod
    def drawn(cls, rng: Random) -> Shop:
        """One with customers (two of which have the same name), products and orders."""
        shop = cls()
        names = [*_NAMES, rng.choice(_NAMES)]
        rng.shuffle(names)
        with shop._base:
            shop._base.execute("begin")
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
        """The whole database."""
        return self._base.serialize()

    def close(self) -> None:
        self._base.close()

    # Reading.

    def customers(self, text: str) -> list[dict[str, Any]]:
        """Those whose name or e-mail address has a text in it."""
        return self._rows(
            "select * from customers where instr(lower(name), lower(?1)) or instr(lower(email), lower(?1)) "
            "order by id limit ?2",
            text,
            MOST_ROWS,
        )

    def customer(self, customer_id: int) -> dict[str, Any]:
        return self._one("customer", "select * from customers where id = ?", customer_id)

    def products(self, text: str) -> list[dict[str, Any]]:
        """Those whose name or category has a text in it."""
        return self._rows(
            "select * from products where instr(lower(name), lower(?1)) or instr(lower(category), lower(?1)) "
            "order by id limit ?2",
            text,
            MOST_ROWS,
        )

    def orders(self, customer_id: int) -> list[dict[str, Any]]:
        """Of a customer, the oldest first."""
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
        """Orders something, to the customer's address."""
        self.customer(customer_id)
        product = self._one("product", "select * from products where id = ?", product_id)
        if not 1 <= quantity <= product["stock"]:
            raise ValueError(f"quantity is {quantity}: there are {product['stock']} of product {product_id}")
        with self._base:
            self._base.execute("begin")
            self._run("update products set stock = stock - ? where id = ?", quantity, product_id)
            order_id = self._insert_order(customer_id, "placed", {product_id: quantity})
        return self.order(order_id)

    def cancel(self, order_id: int) -> dict[str, Any]:
        """Cancels an order that has not been shipped; its goods are in stock again."""
        order = self._in_status(order_id, "placed")
        with self._base:
            self._base.execute("begin")
            for item in order["items"]:
                self._run("update products set stock = stock + ? where id = ?", item["quantity"], item["product_id"])
            self._run("update orders set status = 'cancelled' where id = ?", order_id)
        return self.order(order_id)

    def refund(self, order_id: int) -> dict[str, Any]:
        """Gives back the money for an order that was delivered."""
        self._in_status(order_id, "delivered")
        self._run("update orders set status = 'refunded' where id = ?", order_id)
        return self.order(order_id)

    def move(self, customer_id: int, new_address: str) -> dict[str, Any]:
        """Changes a customer's address; orders that were placed keep theirs."""
        self.customer(customer_id)
        self._run("update customers set address = ? where id = ?", new_address, customer_id)
        return self.customer(customer_id)

    def facts(self) -> Counter[str]:
        """What can be said of customers and orders, in sentences. New orders are told by what they have."""
        told = [f"customer {each['id']} lives at {each['address']}" for each in self._rows("select * from customers")]
        for each in self._rows("select id from orders"):
            order = self.order(each["id"])
            what = ", ".join(f"{item['quantity']} of product {item['product_id']}" for item in order["items"])
            told.append(f"customer {order['customer_id']} has {what} {order['status']} to {order['address']}")
        return Counter(told)

    def _insert_order(self, customer_id: int, status: str, goods: dict[int, int]) -> int:
        order_id = self._run(
            "insert into orders (customer_id, status, address) select id, ?, address from customers where id = ?",
            status,
            customer_id,
        )
        for product_id, quantity in goods.items():
            self._run("insert into items values (?, ?, ?)", order_id, product_id, quantity)
        return order_id

    def _in_status(self, order_id: int, status: str) -> dict[str, Any]:
        order = self.order(order_id)
        if order["status"] != status:
            raise ValueError(f"order {order_id} is {order['status']}: only one that is {status} can be changed so")
        return order

    def _one(self, what: str, statement: str, key: int) -> dict[str, Any]:
        found = self._rows(statement, key)
        if not found:
            raise ValueError(f"there is no {what} {key}")
        return found[0]

    def _rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in self._base.execute(statement, values)]

    def _run(self, statement: str, *values: Any) -> int:
        return self._base.execute(statement, values).lastrowid or 0


def address(rng: Random) -> str:
    """Somewhere to live."""
    return f"{rng.randint(1, 199)} {rng.choice(STREETS)}"
