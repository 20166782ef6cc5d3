"""`openenv providers` over places that have this and that, and places that cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from openenv.cli.main import app
from openenv.errors import ProviderFailed
from openenv.providers import Leftover, catalog
from openenv.providers import catalog as collection_module
from openenv.providers.catalog import ProviderEntry
from openenv.providers.owner import OwnerProcess

from ..providers.shelf import Shelf

LIVING = OwnerProcess.this()
DEAD = replace(LIVING, born="1")
ELSEWHERE = replace(LIVING, host="elsewhere-00000000")


class Store(Shelf):
    """Has what it is told to have, and remembers in which order it was removed."""

    def __init__(self, *things: Leftover):
        super().__init__()
        self.things = list(things)
        self.gone: list[str] = []
        self.clings: set[str] = set()
        self.closed = 0
        self.breeds: list[Leftover] = []
        self.speechless = False

    async def find_leftovers(self) -> list[Leftover]:
        if self.speechless:
            await asyncio.Event().wait()
        return list(self.things)

    async def remove_leftover(self, leftover: Leftover) -> None:
        if leftover.name in self.clings:
            raise ProviderFailed("it clings")
        self.gone.append(leftover.name)
        self.things.remove(leftover)
        if self.breeds:
            self.things.append(self.breeds.pop())

    def close(self) -> None:
        self.closed += 1


def thing(name: str, owner: OwnerProcess | None = DEAD, kind: str = "box", deployment: str = "openenv-a") -> Leftover:
    return Leftover(kind, name, deployment, owner)


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The kinds of places there are, by name; what is no store cannot be made."""
    there: dict[str, Any] = {}

    class Made(ProviderEntry):
        def make(self, **options: Any) -> Any:
            store = there[self.name]
            if isinstance(store, Exception):
                raise store
            return store

    class Entries(dict[str, ProviderEntry]):
        def __missing__(self, name: str) -> ProviderEntry:
            if name not in there:
                raise KeyError(name)
            return Made(name, "Store", None, "")

        def get(self, name: str, default: Any = None) -> Any:
            return self[name] if name in there else None

        def __iter__(self) -> Iterator[str]:
            return iter(there)

    monkeypatch.setattr(catalog, "CATALOG", Entries())
    monkeypatch.setattr(collection_module, "ANSWER_S", 0.5)
    return there


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["providers", *arguments])


def test_all_that_there_is_and_whose(stores: dict[str, Any]) -> None:
    stores["shop"] = Store(thing("a"), thing("b", LIVING), thing("c", ELSEWHERE), thing("d", None, deployment=""))
    stores["barn"] = Store()
    said = run("list")
    assert said.exit_code == 0
    host = LIVING.host
    assert said.output.splitlines() == [
        f"shop box a of openenv-a (owner {host} {LIVING.pid}, dead)",
        f"shop box b of openenv-a (owner {host} {LIVING.pid}, lives)",
        f"shop box c of openenv-a (owner elsewhere-00000000 {LIVING.pid}, unknown)",
        "shop box d of no deployment (no owner, unknown)",
        "4 found",
    ]
    assert stores["shop"].closed == 1


def test_only_what_the_dead_left_is_removed(stores: dict[str, Any]) -> None:
    shop = stores["shop"] = Store(thing("a"), thing("b", LIVING), thing("c", ELSEWHERE), thing("d", None))
    said = run("gc")
    assert (said.exit_code, shop.gone) == (0, ["a"])
    assert said.output.splitlines()[-1] == "1 removed"
    assert "removed shop box a of openenv-a" in said.output
    assert shop.closed == 1


def test_a_rehearsal_removes_nothing(stores: dict[str, Any]) -> None:
    shop = stores["shop"] = Store(thing("a"), thing("b", LIVING))
    said = run("gc", "--dry-run")
    assert (said.exit_code, shop.gone) == (0, [])
    assert "would remove shop box a of openenv-a" in said.output
    assert said.output.splitlines()[-1] == "1 would be removed"


def test_all_is_all_and_a_deployment_is_one(stores: dict[str, Any]) -> None:
    things = [thing("a"), thing("b", LIVING, deployment="openenv-b"), thing("c", ELSEWHERE), thing("d", None)]
    shop = stores["shop"] = Store(*things)
    assert "1 removed" in run("gc", "--all", "openenv-b").output
    assert shop.gone == ["b"]
    assert "3 removed" in run("gc", "--all").output
    assert shop.things == []


def test_one_that_is_named_and_stays_says_why(stores: dict[str, Any]) -> None:
    shop = stores["shop"] = Store(thing("a", LIVING), thing("b", ELSEWHERE, deployment="openenv-b"))
    for more in ([], ["--dry-run"]):
        said = run("gc", "openenv-a", "openenv-b", "openenv-c", *more)
        assert (said.exit_code, shop.gone) == (0, [])
        assert "openenv-a stays, since its owner is not dead (lives): --all removes it" in said.output
        assert "openenv-b stays, since its owner is not dead (unknown): --all removes it" in said.output
        assert "openenv-c: nothing was found with this deployment name" in said.output


def test_only_the_place_that_is_named(stores: dict[str, Any]) -> None:
    shop, barn = stores["shop"], stores["barn"] = Store(thing("a")), Store(thing("b"))
    assert "1 removed" in run("gc", "--provider", "barn").output
    assert (shop.gone, barn.gone) == ([], ["b"])
    said = run("gc", "--provider", "cellar")
    assert said.exit_code == 1
    assert "there is no provider 'cellar'" in str(said.exception)


def test_one_kind_goes_after_the_other(stores: dict[str, Any]) -> None:
    shop = stores["shop"] = Store(
        thing("a"), thing("b", LIVING), thing("c"), thing("net", kind="network"), thing("x", kind="volume")
    )
    run("gc")
    assert (set(shop.gone[:2]), shop.gone[2:]) == ({"a", "c"}, ["net", "x"])


def test_what_comes_after_what_was_removed_is_removed_too(stores: dict[str, Any]) -> None:
    shop = stores["shop"] = Store(thing("a"))
    shop.breeds = [thing("a2")]
    assert "2 removed" in run("gc").output
    assert shop.things == []


def test_what_clings_is_told_and_keeps_nothing_else(stores: dict[str, Any]) -> None:
    shop, barn = stores["shop"], stores["barn"] = Store(thing("a"), thing("b")), Store(thing("c"))
    shop.clings = {"a"}
    said = run("gc")
    assert said.exit_code == 1
    assert (shop.gone, barn.gone) == (["b"], ["c"])
    assert "could not remove shop box a of openenv-a" in said.output
    assert "it clings" in said.output
    assert "2 removed, 1 left" in said.output
    assert (shop.closed, barn.closed) == (1, 1)


def test_places_that_do_not_answer_keep_nobody(stores: dict[str, Any]) -> None:
    stores["down"] = ProviderFailed("no engine answers")
    stores["odd"] = ZeroDivisionError("who knows")
    stores["mute"] = Store()
    stores["mute"].speechless = True
    shop = stores["shop"] = Store(thing("a"))
    said = run("gc")
    assert (said.exit_code, shop.gone) == (0, ["a"])
    assert "down: no engine answers" in said.output
    assert "odd: ZeroDivisionError: who knows" in said.output
    assert "mute: no answer within 0.5 s" in said.output
    said = run("gc", "--provider", "down")
    assert said.exit_code == 1
    assert "down cannot be reached" in said.output


def test_the_help_says_what_is_kept() -> None:
    said = run("gc", "--help").output
    assert "Servers of a living process stay" in said
    assert "--dry-run" in said


def test_every_provider_there_is_is_looked_at() -> None:
    assert set(catalog.CATALOG) >= {"local", "uv", "docker", "swarm", "kubernetes", "ray", "slurm", "hf"}
