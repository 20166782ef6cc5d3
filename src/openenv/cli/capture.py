"""`openenv capture`: the proxy between agents and a model as a program, and a check of the model's endpoint."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

import click

from .._processes import raise_file_limit
from ..errors import UsageError
from ..settings import CaptureSettings, is_loopback


@click.group()
def capture() -> None:
    """Records the tokens that agents sample, through a proxy in front of the model.

    \b
    Examples:
      openenv capture serve http://localhost:8000/v1 --folder runs
      openenv capture validate http://localhost:8000/v1 --model policy
    """


@capture.command()
@click.argument("url")
@click.option("--model", help="Name of the model at URL; by default the one that the agent names.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", "-p", default=8100, show_default=True, help="Port; 0 takes a free one.")
@click.option("--folder", type=Path, help="Folder of the records, with which a later process goes on.")
@click.option("--workers", default=1, show_default=True, help="Processes; they share the folder.")
@click.option(
    "--capture-level", type=click.Choice(["tokens", "logprobs", "text"]), default="tokens", show_default=True
)
@click.option("--max-output-tokens", default=0, help="Most tokens of one answer; 0 for no limit.")
@click.option("--max-model-calls", default=0, help="Most calls of a session; 0 for no limit.")
@click.option("--memory-mb", default=512.0, show_default=True, help="Sessions beyond that are read from their files.")
@click.option("--retry-window", "retry_window_s", default=10.0, show_default=True, help="Seconds for equal requests.")
@click.option("--open", "is_open", is_flag=True, help="Any key opens a session; on loopback only.")
def serve(url: str, host: str, port: int, is_open: bool, **options: Any) -> None:
    """Serves the proxy in front of the engine at URL.

    OPENENV_CAPTURE_ADMIN_KEY is the key of those who open and read sessions; without it, a random one is printed.
    OPENENV_LLM_API_KEY is the key of the engine.

    \b
    Examples:
      openenv capture serve http://localhost:8000/v1 --folder runs
      openenv capture serve http://localhost:8000/v1 --workers 4 --folder runs
    """
    from ..capture.server import run
    from ..capture.service import CaptureOptions

    settings = CaptureSettings.read()
    if not is_loopback(host):
        if settings.admin_key is None:
            raise UsageError(f"set OPENENV_CAPTURE_ADMIN_KEY: clients on other machines reach {host}")
        if is_open:
            raise UsageError(
                "--open is for loopback: open each session with POST /sessions, or choose --host 127.0.0.1"
            )
    raise_file_limit()
    given = CaptureOptions(
        llm_url=url,
        api_key=settings.api_key,
        admin_key=settings.admin_key or secrets.token_urlsafe(24),
        require_registered=not is_open,
        **options,
    )

    def ready(address: str) -> None:
        shown = "" if settings.admin_key else f'; admin key "{given.admin_key}"'
        click.echo(f"capture on {address}{shown}; records into {options['folder'] or 'memory'}", err=True)

    sys.exit(run(given, host, port, ready))


@capture.command()
@click.argument("url")
@click.option("--model", required=True, help="Name of the model at URL.")
@click.option("--timeout", "timeout_s", default=120.0, show_default=True, help="Seconds for each request.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def validate(url: str, model: str, timeout_s: float, as_json: bool) -> None:
    """Says whether what the engine at URL returns can be trained on. Exits with 1 if it cannot.

    It sends a few real requests. OPENENV_LLM_API_KEY is the key of the engine.

    \b
    Examples:
      openenv capture validate http://localhost:8000/v1 --model policy
    """
    import dataclasses
    import json

    from ..capture.probe import validate_llm

    report = validate_llm(url, model, timeout=timeout_s, api_key=CaptureSettings.read().api_key)
    click.echo(json.dumps(dataclasses.asdict(report), indent=2) if as_json else report.summary())
    sys.exit(0 if report.trainable else 1)
