"""All commands under one name."""

from __future__ import annotations

import sys

import click

from .. import __version__
from ..errors import OpenEnvError
from .complaint import complain, tell
from .lazy_group import LazyCommand, LazyGroup

__all__ = ["app", "main"]

# The text is the command's own `short_help`, which is not read before the command runs.
_SECTIONS = {
    "Begin": [
        LazyCommand("init", "init:init", "Begin a project: all files of an environment that works."),
        LazyCommand("serve", "serve:serve", "Serve an environment over WebSocket and HTTP."),
        LazyCommand("validate", "validate:validate", "Check an environment, or a server that runs."),
        LazyCommand("list", "listing:list_", "List the environments that are installed."),
    ],
    "Publish": [
        LazyCommand(
            "contract", "contract:contract", "What an environment takes and gives, as a file to compare with."
        ),
        LazyCommand("build", "build:build", "Build the image of an environment."),
        LazyCommand("push", "push:push", "Publish an environment on the Hub, or as an image."),
        LazyCommand("fork", "fork:fork", "Copy a Space of the Hub to an account of yours."),
        LazyCommand("pull", "pull:pull", "Fetch the project of a Space of the Hub."),
    ],
    "Record": [
        LazyCommand("episodes", "episodes:episodes", "Look into recorded episodes."),
        LazyCommand("replay", "replay:replay", "Play recorded episodes again, and compare."),
    ],
    "Measure": [
        LazyCommand("eval", "eval:eval_", "Play a policy in an environment, and say how good it is."),
        LazyCommand("bench", "bench:app", "Measure an environment server."),
        LazyCommand("top", "top:top", "What a server does, live."),
    ],
    "Operate": [
        LazyCommand("deploy", "deploy:deploy", "Put servers on a cluster, to stay."),
        LazyCommand("gateway", "gateway:gateway", "One address before many servers."),
        LazyCommand("providers", "providers:providers", "What was started where, and the removal of what is left."),
        LazyCommand("worker", "worker:worker", "A process of `openenv serve --workers`.", hidden=True),
        LazyCommand("completion", "completion:completion", "Print what makes your shell complete these commands."),
    ],
}


@click.group(
    name="openenv",
    cls=LazyGroup,
    sections=_SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="openenv", message="%(prog)s %(version)s")
def app() -> None:
    """Serve typed reinforcement-learning environments to trainers; write, check, publish and measure them.

    \b
    Examples:
      openenv init my_env      begin a project; the rest is for its folder
      openenv serve --reload   serve it, and anew after each change
      openenv validate         check it
      openenv push             publish it
    """


def main() -> None:
    """Runs a command; an error that we know is one line and exit code 1, Ctrl-C is exit code 130."""
    try:
        # Not standalone, click returns the exit code of a command that ends early.
        sys.exit(app(prog_name="openenv", standalone_mode=False) or 0)
    except click.ClickException as error:
        _show(error)
        sys.exit(error.exit_code)
    except OpenEnvError as error:
        tell(error)
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)


def _show(error: click.ClickException) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    text = error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        end = "" if text.endswith((".", "?")) else "."
        text = f"{text}{end} See `{error.ctx.command_path} --help`"
    complain(text)
