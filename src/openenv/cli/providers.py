"""`openenv providers`: lists the servers that providers have started, and removes those without a living owner."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..providers.base import Leftover
    from ..providers.catalog import LeftoverScan
    from ..providers.owner import OwnerProcess

# Rounds of removing: controllers may start replacements in the meantime.
ROUNDS = 3


@click.group(name="providers")
def providers() -> None:
    """Lists and removes servers that providers started, on this machine and on every other backend that can be
    reached. Each process, container or job is labelled with its deployment and with the process that owns it.

    \b
    Examples:
      openenv providers list
      openenv providers gc --dry-run
    """


_of_places = click.option(
    "--provider",
    "names",
    multiple=True,
    metavar="NAME",
    help="Provider to search; may be repeated: local, uv, docker, swarm, kubernetes, ray, slurm, "
    "hf. [default: all that can be reached]",
)


@providers.command(name="list", short_help="List the servers that providers started.")
@_of_places
def list_(names: tuple[str, ...]) -> None:
    """Lists each labelled process, container or job with its deployment, and whether its owner still runs.

    An owner is `lives`, `dead` or `unknown`; processes of another machine or container are `unknown`.

    \b
    Examples:
      openenv providers list
      openenv providers list --provider docker
    """
    count = 0
    for place in asyncio.run(_looked(names)):
        for leftover in place.found:
            count += 1
            click.echo(_line(place, leftover))
    click.echo(f"{count} found")


@providers.command(short_help="Remove servers whose owner process is dead.")
@_of_places
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also remove servers of living processes, and servers that were started on other machines.",
)
@click.argument("deployments", nargs=-1)
def gc(names: tuple[str, ...], dry_run: bool, everything: bool, deployments: tuple[str, ...]) -> None:
    """Removes servers whose owner process is certainly dead, such as a killed trainer that could not stop them. If
    DEPLOYMENTS are named, only theirs.

    Servers of a living process stay. So do servers that were started on another machine, since their owner cannot be
    checked here: run this command there, or name the deployment and add --all. Exit code 1: a removal failed.

    \b
    Examples:
      openenv providers gc --dry-run
      openenv providers gc --provider docker --provider local
      openenv providers gc --all openenv-echo-1a2b3c4d
    """

    def wanted(leftover: Leftover) -> bool:
        named = not deployments or leftover.deployment in deployments
        return named and (everything or _state(leftover.owner) == "dead")

    if not dry_run:
        sys.exit(1 if asyncio.run(_collect(names, wanted, deployments)) else 0)
    places = asyncio.run(_looked(names))
    _explain(places, wanted, deployments)
    found = [(place, each) for place in places for each in place.found if wanted(each)]
    for place, leftover in found:
        click.echo(f"would remove {_line(place, leftover)}")
    click.echo(f"{len(found)} would be removed")


async def _collect(names: tuple[str, ...], wanted: Callable[[Leftover], bool], deployments: Collection[str]) -> int:
    removed: dict[tuple[str, str, str], str] = {}
    failed: dict[tuple[str, str, str], str] = {}
    rooms = await _looked(names, leave=False)
    _explain(rooms, wanted, deployments)
    for _ in range(ROUNDS):
        outcomes = [(place, *outcome) for place in rooms for outcome in await place.remove(wanted)]
        failed.clear()
        for place, leftover, reason in outcomes:
            key = (place.entry.name, leftover.kind, leftover.name)
            (removed if reason is None else failed)[key] = _line(place, leftover) + (f": {reason}" if reason else "")
        if not outcomes:
            break
        await asyncio.gather(*(place.look() for place in rooms))
    for line in removed.values():
        click.echo(f"removed {line}")
    for line in failed.values():
        click.echo(f"could not remove {line}", err=True)
    click.echo(f"{len(removed)} removed" + (f", {len(failed)} left" if failed else ""))
    await asyncio.gather(*(place.leave() for place in rooms))
    return len(failed)


def _explain(places: list[LeftoverScan], wanted: Callable[[Leftover], bool], deployments: Collection[str]) -> None:
    """Prints why each named deployment is not removed."""
    for name in deployments:
        there = [each for place in places for each in place.found if each.deployment == name]
        if not there:
            click.echo(f"{name}: nothing was found with this deployment name", err=True)
        elif not any(map(wanted, there)):
            states = " or ".join(sorted({_state(each.owner) for each in there}))
            click.echo(f"{name} stays, since its owner is not dead ({states}): --all removes it", err=True)


async def _looked(names: tuple[str, ...], leave: bool = True) -> list[LeftoverScan]:
    """The providers that can be reached. Prints those that cannot."""

    from ..providers import catalog

    found = await catalog.places([catalog.catalog_entry(name) for name in names or catalog.CATALOG])
    if leave:
        await asyncio.gather(*(place.leave() for place in found))
    for place in found:
        if place.closed is not None:
            click.echo(f"{place.entry.name}: {place.closed}", err=True)
    if names and all(place.closed is not None for place in found):
        raise click.ClickException(f"{', '.join(names)} cannot be reached")
    return [place for place in found if place.closed is None]


def _line(place: LeftoverScan, leftover: Leftover) -> str:
    owner = "no owner" if leftover.owner is None else f"owner {leftover.owner.host} {leftover.owner.pid}"
    return (
        f"{place.entry.name} {leftover.kind} {leftover.name} of {leftover.deployment or 'no deployment'} "
        f"({owner}, {_state(leftover.owner)})"
    )


def _state(owner: OwnerProcess | None) -> str:
    return {True: "lives", False: "dead", None: "unknown"}[None if owner is None else owner.alive]
