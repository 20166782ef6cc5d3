"""`openenv completion`: what a shell needs to complete these commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]

_VARIABLE = "_OPENENV_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print what makes your shell complete these commands.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Prints a script for SHELL, after which commands, options, templates and targets are completed by TAB.

    \b
    Examples:
      eval "$(openenv completion bash)"                    in ~/.bashrc
      eval "$(openenv completion zsh)"                     in ~/.zshrc, after compinit
      openenv completion fish > ~/.config/fish/completions/openenv.fish
    """
    root = context.find_root()
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root.command, {}, "openenv", _VARIABLE).source())
