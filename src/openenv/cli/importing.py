"""`openenv import`: a project of an environment of another library."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ..project.importing import FORMS, SOURCES, import_project
from .terminal import print_json


@click.command()
@click.argument("source")
@click.option("--name", "-n", help="Name of the project. [default: from that of the environment]")
@click.option(
    "--output-dir",
    "-o",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Parent folder of the project; created if missing. [default: the current folder]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the created project as JSON.")
def import_(source: str, name: str | None, output_dir: Path, as_json: bool) -> None:
    """Creates a project of SOURCE, an environment of another library, which then runs unchanged behind openenv.

    The project names the environment, pins the versions that it runs with, and passes `openenv validate`. SOURCE is
    verifiers:NAME, ors:URL, inspect:TASK or gymnasium:ENV_ID, each with arguments as ?key=value&key=value.

    Exit code 1: SOURCE cannot be imported, and no folder is left; 2: wrong usage.

    \b
    Examples:
      openenv import gymnasium:CartPole-v1
      openenv import verifiers:my_taskset?split=test --name my_tasks
      openenv import inspect:evals/sums.py@sums --output-dir envs
      openenv import ors:http://127.0.0.1:8080
    """
    kind, colon, _ = source.partition(":")
    if not colon or kind not in SOURCES:
        raise click.UsageError(f"{source!r} cannot be imported: use {FORMS}")
    found = SOURCES[kind](source)
    folder, files = import_project(found, name, output_dir)
    where = output_dir / folder.name
    steps = [f"cd {shlex.quote(str(where))}", "pip install -e .", "openenv validate .", "openenv serve ."]
    if as_json:
        made = {"name": folder.name, "source": source, "folder": str(folder), "files": files, "next": steps}
        print_json({**made, "left_out": [*found.left_out]})
        return
    for each in found.left_out:
        click.echo(f"left out  {each}", err=True)
    click.echo(f"Created {click.style(str(where), bold=True)} of {source} ({len(files)} files). Next:")
    for step in steps:
        click.echo(f"  {step}")
