"""`openenv worker`: a process of `openenv serve --workers N`, which starts it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from .. import logs
from ..errors import OpenEnvError, UsageError
from ..project import target as targets
from ..settings import ServerSettings

__all__ = ["command", "worker", "worker_app"]


@click.command(hidden=True, help="Serves what OPENENV_TARGET names, on connections from `openenv serve`.")
@click.option("--pipe", type=int, required=True, help="Descriptor of the road to the parent.")
@click.option("--table", type=int, required=True, help="Descriptor of the shared table.")
@click.option("--ledger", type=int, required=True, help="Descriptor of the shared ledger.")
@click.option("--row", type=int, required=True, help="Row of both that is this worker's.")
def worker(pipe: int, table: int, ledger: int, row: int) -> None:
    from ..server.tuning import tune_process
    from ..supervisor.arrival import WorkerConfig
    from ..supervisor.worker import Membership, Worker
    from .serve import server_options

    membership = Membership(pipe, table, ledger, row)
    settings = ServerSettings.read()
    logs.set_up(settings.log_format, settings.log_level)
    try:
        app = worker_app()
    except OpenEnvError as error:
        membership.fail(error.message)
        sys.exit(1)
    config = WorkerConfig(app, membership.load, **server_options(settings))
    tune_process()
    beat_s = settings.worker_silence_s / 4
    Worker(config, membership, str(settings.target), beat_s, settings.handshake_timeout_s).run()


def worker_app() -> Any:
    """Makes the app inside a worker process, from the settings that `openenv serve` exported."""
    settings = ServerSettings.read()
    if settings.target is None:
        raise UsageError("OPENENV_TARGET is not set: start workers with `openenv serve`")
    return targets.load(settings.target)


def command(pipe: int, table: int, ledger: int, row: int) -> list[str]:
    """The command line of a worker process."""
    # A console script does not look for modules in the working directory; nor shall its workers.
    alike = [] if str(Path.cwd()) in sys.path or "" in sys.path else ["-P"]
    numbers = ["--pipe", str(pipe), "--table", str(table), "--ledger", str(ledger), "--row", str(row)]
    return [sys.executable, *alike, "-m", "openenv", "worker", *numbers]
