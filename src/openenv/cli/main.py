"""The command `openenv`: subcommands load when they run, and a known error is one line."""

from __future__ import annotations

import difflib
import gc
import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem, get_completion_class

from .. import __version__
from ..errors import ImportFailed, OpenEnvError
from ..project import target
from .terminal import print_error


def report_error(error: OpenEnvError) -> None:
    """Prints a known error in one line, after the traceback if the error comes from the user's own module."""
    cause = error.__cause__
    if isinstance(error, ImportFailed) and not isinstance(cause, ImportError):
        ours = {importlib.__file__, target.__file__}
        trace = cause.__traceback__ if cause else None
        while trace is not None:  # the frames between this command and the user's module are not shown
            file = trace.tb_frame.f_code.co_filename
            if file not in ours and not file.startswith("<frozen importlib"):
                break
            trace = trace.tb_next
        traceback.print_exception(cause.with_traceback(trace) if cause else None)
    print_error(error.message)


class LazyCommand(NamedTuple):
    """The place of a command, which is imported when the command runs.

    Attributes:
        name: The name on the command line.
        place: `module:attribute`, relative to this package.
        summary: Its line in the overview. A copy: to read it from the command would import the command.
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
        command.short_help = self.summary
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
            meant = f"did you mean `{ctx.command_path} {close[0]}`?" if close else f"choose one of {', '.join(known)}"
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
        # The rest of click's own completion: options.
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def _visible(self) -> list[str]:
        return [command.name for command in self._lazy.values() if not command.hidden]


_VARIABLE = "_OPENENV_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Prints a script for SHELL, with which TAB completes commands, options, templates and targets.

    \b
    Examples:
      eval "$(openenv completion bash)"     in ~/.bashrc
      eval "$(openenv completion zsh)"      in ~/.zshrc, after compinit
      openenv completion fish > ~/.config/fish/completions/openenv.fish
    """
    root = context.find_root()
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root.command, {}, "openenv", _VARIABLE).source())


SECTIONS = {
    "Begin": [
        LazyCommand("init", "init:init", "Create a project with a working environment."),
        LazyCommand("import", "init:import_", "Create a project of another library's environment."),
        LazyCommand("serve", "serve:serve", "Serve an environment over WebSocket and HTTP."),
        LazyCommand("validate", "validate:validate", "Check an environment, or a running server."),
        LazyCommand("list", "discovery:list_", "List the installed environments."),
        LazyCommand("discover", "discovery:discover", "Find an environment by what it is for."),
        LazyCommand("skills", "skills:skills", "Teach a coding assistant to use openenv."),
    ],
    "Publish": [
        LazyCommand(
            "contract", "contract:contract", "Save the types of an environment, or compare them with a file."
        ),
        LazyCommand("build", "build:build", "Build the image of an environment."),
        LazyCommand("push", "hub:push", "Publish an environment on the Hub, or as an image."),
        LazyCommand("fork", "hub:fork", "Copy a Space of the Hub to your account."),
        LazyCommand("pull", "hub:pull", "Download the project of a Space of the Hub."),
        LazyCommand("catalog", "discovery:catalog", "Build a catalog of a repository, for `discover`."),
    ],
    "Record": [
        LazyCommand("rollout", "rollout:rollout", "Play episodes with a model, and make datasets of them."),
        LazyCommand("capture", "capture:capture", "Record the tokens of agents through a proxy in front of a model."),
        LazyCommand("collect", "collect:collect", "Record episodes of a model as a dataset of conversations."),
        LazyCommand("episodes", "episodes:episodes", "List, show, plot and export recorded episodes."),
        LazyCommand("replay", "replay:replay", "Play recorded episodes again, and compare."),
    ],
    "Measure": [
        LazyCommand("eval", "eval:eval_", "Play a policy in an environment, and score it."),
        LazyCommand("harbor", "harbor:harbor", "Run tasks in Harbor's format in sandboxes."),
        LazyCommand("bench", "bench:app", "Measure an environment server."),
        LazyCommand("top", "top:top", "Show what a server does, live."),
    ],
    "Operate": [
        LazyCommand("deploy", "deploy:deploy", "Deploy servers to a cluster."),
        LazyCommand("gateway", "gateway:gateway", "Serve many servers under one address."),
        LazyCommand("providers", "providers:providers", "List started servers, and remove those left behind."),
        LazyCommand("completion", "main:completion", "Print a completion script for your shell."),
    ],
}


@click.group(
    name="openenv",
    cls=LazyGroup,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="openenv", message="%(prog)s %(version)s")
def app() -> None:
    """Serve typed reinforcement-learning environments to trainers; write, check, publish and measure them.

    \b
    Examples:
      openenv init my_env      create a project; run the others in its folder
      openenv serve --reload   serve it, and restart after each change
      openenv validate         check it
      openenv push             publish it
    """


# New objects before a collection. What a command imports stays: with Python's 700, collections take an eighth of the
# CPU time of importing the server. Servers set thresholds of their own when they serve.
_IMPORT_THRESHOLD = 50_000


def main() -> None:
    """Runs a command. A known error prints one line and gives exit code 1; Ctrl-C gives exit code 130."""
    gc.set_threshold(_IMPORT_THRESHOLD)
    try:
        # Without `standalone_mode`, click returns the exit code of a command that ends early.
        sys.exit(app(prog_name="openenv", standalone_mode=False) or 0)
    except click.ClickException as error:
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            error.show()
            sys.exit(error.exit_code)
        text = error.format_message()
        if isinstance(error, click.UsageError) and error.ctx is not None:
            end = "" if text.endswith((".", "?")) else "."
            text = f"{text}{end} See `{error.ctx.command_path} --help`"
        print_error(text)
        sys.exit(error.exit_code)
    except OpenEnvError as error:
        report_error(error)
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
