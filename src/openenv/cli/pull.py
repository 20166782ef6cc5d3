"""`openenv pull`: the project of a Space, here."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from .interruption import told_when_interrupted
from .progress import Progress

__all__ = ["pull"]


@click.command(short_help="Fetch the project of a Space of the Hub.")
@click.argument("space", metavar="OWNER/SPACE")
@click.option(
    "-o",
    "--output-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The project's folder, which must not exist yet. [default: one here of the Space's name]",
)
@click.option("--revision", metavar="NAME", help="Branch, tag, commit or refs/pr/NUMBER. [default: the newest]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the project.")
def pull(space: str, output_dir: Path | None, revision: str | None, as_json: bool) -> None:
    """Fetches the files of a Space of the Hugging Face Hub into a new folder, as a project. Nothing of them is
    executed: read them before you serve them. Public Spaces need no token. (Extra `hub`.)

    \b
    Examples:
      openenv pull openenv/echo_env
      openenv pull my-org/echo --output-dir envs/echo --revision refs/pr/2
    """
    from ..project.hub import pull as pull_space

    with told_when_interrupted("interrupted: nothing was kept"), Progress() as progress:
        progress.show(f"fetching {space}", 0, 0)
        pulled = pull_space(space, output_dir, revision=revision, say=progress.say)
    folder = _shown(pulled.folder)
    commands = [f"pip install -e {folder}", f"openenv serve {folder}", f"openenv validate {folder}"]
    if as_json:
        document = {
            "name": str(pulled.name),
            "folder": str(pulled.folder),
            "commit": pulled.commit,
            "files": pulled.files,
            "next": commands,
        }
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"fetched {pulled.name} into {folder}: {pulled.files} files of commit {pulled.commit[:8]}. Next:")
    for command in commands:
        click.echo(f"  {command}")


def _shown(folder: Path) -> str:
    """A folder as a command takes it, from here."""
    here = Path.cwd()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    return shlex.quote(str(shown))
