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


@click.group(name="providers", short_help="What was started where, and the removal of what is left.")
def providers() -> None:
    """Servers that providers have started, on this machine and wherever else they can be reached from here. All that
    belongs to one is labelled with its deployment and with the process that owns it.

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
    help="Look at this kind of place only; may be repeated: local, uv, docker, swarm, kubernetes, ray, slurm, "
    "hf. None: at all that can be reached.",
)


@providers.command(name="list", short_help="List what providers have started.")
@_of_places
def list_(names: tuple[str, ...]) -> None:
    """Lists all that carries our labels: what it is, its deployment, and whether its owner still runs.

    An owner is `lives`, `dead`, or `unknown`: a process of another machine or container cannot be seen from here.

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


@providers.command(short_help="Remove what processes left that are dead.")
@_of_places
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also remove what living processes use, and what was started on other machines.",
)
@click.argument("deployments", nargs=-1)
def gc(names: tuple[str, ...], dry_run: bool, everything: bool, deployments: tuple[str, ...]) -> None:
    """Removes what was left by processes that are surely dead: killed before they could stop what they had started.
    Of DEPLOYMENTS only, if any are named.

    What belongs to a living process stays, and so does what was started on another machine, where this cannot be
    known; run it there, or name the deployment and add --all. Exit code 1: something could not be removed.

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
    """Says of each deployment that was named, and stays, why."""
    for name in deployments:
        there = [each for place in places for each in place.found if each.deployment == name]
        if not there:
            click.echo(f"{name}: nothing of it was found", err=True)
        elif not any(map(wanted, there)):
            states = " or ".join(sorted({_state(each.owner) for each in there}))
            click.echo(f"{name} stays, for its owner is not dead ({states}): --all removes it", err=True)


async def _looked(names: tuple[str, ...], leave: bool = True) -> list[LeftoverScan]:
    """The places that can be reached; says which cannot."""

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
