"""All commands under one name."""

from __future__ import annotations

import sys
import traceback

import click

from .. import __version__
from ..errors import ImportFailed, OpenEnvError
from .bench import app as bench
from .contract import contract
from .deploy import deploy
from .gateway import gateway
from .providers import providers
from .serve import serve
from .top import top
from .worker import worker

__all__ = ["app", "main"]


@click.group(name="openenv", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="openenv", message="%(prog)s %(version)s")
def app() -> None:
    """Serve typed reinforcement-learning environments, and measure them."""


app.add_command(serve)
app.add_command(top)
app.add_command(worker)
app.add_command(bench)
app.add_command(contract)
app.add_command(deploy)
app.add_command(gateway)
app.add_command(providers)


def main() -> None:
    """Runs a command; an error that we know is one line and exit code 1, Ctrl-C is exit code 130."""
    try:
        # Not standalone, click returns the exit code of a command that ends early.
        sys.exit(app(prog_name="openenv", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OpenEnvError as error:
        cause = error.__cause__
        if isinstance(error, ImportFailed) and not isinstance(cause, ImportError):
            traceback.print_exception(cause)  # of the user's own module
        click.echo(f"{click.style('error:', fg='red')} {error.message}", err=True)
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
