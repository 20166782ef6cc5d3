"""`openenv skills`: what a coding assistant must know to use and to write environments, as a skill file."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import click

from .. import __version__
from ..errors import UsageError
from .terminal import FOLDER

NAME = "openenv-cli"
# The folders in which assistants look, in the project and at home.
_ASSISTANTS = {
    "claude": (".claude/skills", ".claude/skills"),
    "codex": (".codex/skills", ".codex/skills"),
    "cursor": (".cursor/skills", ".cursor/skills"),
    "opencode": (".opencode/skills", ".config/opencode/skills"),
}
_COMMON = ".agents/skills"


@click.group()
def skills() -> None:
    """Shows or installs the skill file, from which coding assistants learn to use and to write environments.

    \b
    Examples:
      openenv skills preview
      openenv skills add --claude
    """


@skills.command(short_help="Print the skill file.")
def preview() -> None:
    """Prints the skill file.

    \b
    Examples:
      openenv skills preview
    """
    click.echo(skill_text(), nl=False)


@skills.command(short_help="Install the skill file.")
@click.option("--claude", is_flag=True, help="Link it where Claude Code looks.")
@click.option("--codex", is_flag=True, help="Link it where Codex looks.")
@click.option("--cursor", is_flag=True, help="Link it where Cursor looks.")
@click.option("--opencode", is_flag=True, help="Link it where OpenCode looks.")
@click.option("--global", "-g", "for_user", is_flag=True, help="In the home folder, instead of this folder.")
@click.option("--dest", type=FOLDER, help="Only in this folder of skills.")
@click.option("--force", is_flag=True, help="Replace what is there.")
def add(*, for_user: bool, dest: Path | None, force: bool, **chosen: bool) -> None:
    """Writes the skill file into .agents/skills, and links it for the assistants that are named. Nothing is written
    if something is there already, unless --force is given.

    \b
    Examples:
      openenv skills add --claude
      openenv skills add --global --codex --force
    """
    assistants = [name for name, is_chosen in chosen.items() if is_chosen]
    if dest is not None and (assistants or for_user):
        raise UsageError("--dest is the only place: leave --global and the assistants out, or leave --dest out")
    base = Path.home() if for_user else Path()
    folder = (base / _COMMON if dest is None else dest) / NAME
    links = [base / _ASSISTANTS[name][for_user] / NAME for name in assistants]
    there = [place for place in (folder / "SKILL.md", *links) if place.is_symlink() or place.exists()]
    if there and not force:
        raise UsageError(f"{there[0]} is there already: replace it with --force")
    blocked = [link for link in links if link.exists() and not link.is_symlink()]
    if blocked:
        raise UsageError(f"{blocked[0]} is no link of `openenv skills add`: move it away first")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "SKILL.md").write_text(skill_text(), encoding="utf-8")
        for link in links:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(folder, link.parent), target_is_directory=True)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}; choose another --dest") from None
    for place in (folder / "SKILL.md", *links):
        click.echo(place)


def skill_text() -> str:
    """The skill file, with the commands of this version."""
    from .main import SECTIONS

    lines = []
    for heading, commands in SECTIONS.items():
        shown = [each for each in commands if not each.hidden]
        lines += [f"\n{heading}:\n", *(f"- `openenv {each.name}`: {each.summary}" for each in shown)]
    text = (files(__package__) / "SKILL.md").read_text(encoding="utf-8")
    return text.replace("{version}", __version__).replace("{commands}", "\n".join(lines))
