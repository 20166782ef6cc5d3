"""A group whose commands are imported when they are run: `openenv --help` need not wait for all of them."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

__all__ = ["LazyCommand", "LazyGroup"]


class LazyCommand(NamedTuple):
    """Where a command is.

    Attributes:
        name: What is typed.
        place: `module:attribute`, as seen from this package.
        summary: What the overview says of it: its `short_help`.
        hidden: Whether it is left out of the overview.
    """

    name: str
    place: str
    summary: str
    hidden: bool = False

    def load(self) -> click.Command:
        """The command itself."""
        module, _, attribute = self.place.partition(":")
        command = getattr(importlib.import_module(f".{module}", __package__), attribute)
        assert isinstance(command, click.Command)
        return command


class LazyGroup(click.Group):
    """Commands under headings.

    Args:
        sections: The commands of each heading, in the order in which the overview has them.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[LazyCommand]], **options: Any):
        super().__init__(*args, **options)
        self.sections = sections
        self._lazy = {command.name: command for commands in sections.values() for command in commands}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(cmd_name)
        return None if lazy is None else lazy.load()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = self._visible()
        if name not in self._lazy and not name.startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean `{ctx.command_path} {close[0]}`?" if close else f"there are {', '.join(known)}"
            ctx.fail(f"no command {name!r}: {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._visible()))
        for heading, commands in self.sections.items():
            rows = [(command.name.ljust(width), command.summary) for command in commands if not command.hidden]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self._visible() if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self._lazy[name].summary) for name in names]
        # Of click's own what is no command: options.
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def _visible(self) -> list[str]:
        return [command.name for command in self._lazy.values() if not command.hidden]
