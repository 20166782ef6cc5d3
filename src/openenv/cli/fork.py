"""`openenv fork`: a Space of somebody's becomes one of yours."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from .interruption import told_when_interrupted
from .progress import Progress
from .push_space import pairs, warn_of_secrets

__all__ = ["fork"]


@click.command(short_help="Copy a Space of the Hub to an account of yours.")
@click.argument("space", metavar="OWNER/SPACE")
@click.option("-r", "--repo-id", metavar="[OWNER/]NAME", help="Name of the copy. [default: yours, of the same name]")
@click.option("--private", is_flag=True, help="Make the copy private. [default: as the original]")
@click.option(
    "-e",
    "--set-env",
    "variables",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Variable of the copy, for all to read.",
)
@click.option(
    "-s",
    "--set-secret",
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Secret of the copy; NAME takes it from here.",
)
@click.option("-H", "--hardware", metavar="NAME", help="Hardware of the copy, as cpu-basic or t4-medium.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the copy.")
def fork(
    space: str,
    repo_id: str | None,
    private: bool,
    variables: Sequence[str],
    secrets: Sequence[str],
    hardware: str | None,
    as_json: bool,
) -> None:
    """Copies a Space of the Hugging Face Hub, with its history and its variables, on the Hub itself: nothing is
    downloaded. Secrets are not copied. (Extra `hub`.)

    \b
    Examples:
      openenv fork openenv/echo_env
      openenv fork openenv/echo_env -r my-org/echo --private -e LEVEL=3 -s MODEL_KEY -H cpu-upgrade
    """
    from ..project.hub import fork as fork_space

    with told_when_interrupted(f"interrupted: look whether the copy of {space} is there"), Progress() as progress:
        warn_of_secrets(secrets, progress)
        progress.show(f"copying {space}", 0, 0)
        copy = fork_space(
            space,
            repo_id,
            private=private,
            hardware=hardware,
            variables=pairs("--set-env", variables),
            secrets=pairs("--secret", secrets),
            say=progress.say,
        )
        for note in copy.notes:
            progress.say(note)
    if as_json:
        document = {
            "source": space,
            "name": str(copy.name),
            "page": copy.page,
            "url": copy.url,
            "next": [f"openenv validate --url {copy.url}", f"openenv pull {copy.name}"],
        }
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"copied {space} to {copy.name}: {copy.page}")
    click.echo(f"  served at {copy.url} when the Hub has built it, which takes some minutes")
    click.echo(f"  check it:   openenv validate --url {copy.url}")
    click.echo(f"  change it:  openenv pull {copy.name}")
