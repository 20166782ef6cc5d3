"""`openenv init` and `openenv import`: a new project."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ..project.scaffold import Scaffold, Template
from .terminal import print_json, together

_INSTALL = "pip install -e ."
_NEXT = {
    _INSTALL: "install its dependencies other than openenv",
    "openenv serve .": "try it in a browser: http://localhost:8000/web",
    "openenv validate .": "check it; `pytest` runs its own tests",
    "openenv build .": "build its image",
    "openenv push .": "publish it on the Hub, or with --registry at a container registry",
}

_options_of_both = together(
    click.option(
        "--output-dir",
        "-o",
        type=click.Path(path_type=Path),
        default=Path(),
        help="Parent folder of the project; created if missing. [default: the current folder]",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the created project as JSON."),
)
_KINDS = "\n".join(f"      {template.value:<10} {template.summary}" for template in Template)


@click.command(
    help=f"""Creates the folder NAME with a project: a working environment, its client, tests and Dockerfile.

    NAME is also the name of the Python package: letters, digits and underscores.

    \b
    Templates:
{_KINDS}

    \b
    Examples:
      openenv init word_hunt
      openenv init shop_env --template tools
      openenv init pole --template gymnasium --output-dir envs
    """,
)
@click.argument("name")
@click.option(
    "--template",
    "-t",
    type=click.Choice([template.value for template in Template]),
    default=Template.BASIC.value,
    show_default=True,
    help="Template of the project.",
)
@_options_of_both
def init(name: str, template: str, output_dir: Path, as_json: bool) -> None:
    scaffold = Scaffold.of(name, Template(template), output_dir)
    files = scaffold.make()
    where = output_dir / name
    steps = {f"cd {shlex.quote(str(where))}": "README.md describes each file", **_NEXT}
    if not (scaffold.template.extra or scaffold.template.package):
        del steps[_INSTALL]
    if as_json:
        made = {
            "name": name,
            "template": template,
            "folder": str(scaffold.folder),
            "files": files,
            "next": list(steps),
        }
        print_json(made)
        return
    click.echo(f"Created {click.style(str(where), bold=True)} ({template}, {len(files)} files). Next:")
    for command, what in steps.items():
        click.echo(f"  {command:<{max(map(len, steps))}}  {what}")


@click.command()
@click.argument("source")
@click.option("--name", "-n", help="Name of the project. [default: from that of the environment]")
@_options_of_both
def import_(source: str, name: str | None, output_dir: Path, as_json: bool) -> None:
    """Creates a project of SOURCE, an environment of another library, which then runs unchanged behind openenv.

    The project names the environment, pins the versions that it runs with, and passes `openenv validate`. SOURCE is
    verifiers:NAME, ors:URL, inspect:TASK, harbor:FOLDER or gymnasium:ENV_ID; ?key=value&key=value adds arguments.

    Exit code 1: SOURCE cannot be imported, and no folder is left; 2: wrong usage.

    \b
    Examples:
      openenv import gymnasium:CartPole-v1
      openenv import verifiers:my_taskset?split=test --name my_tasks
      openenv import inspect:evals/sums.py@sums --output-dir envs
      openenv import ors:http://127.0.0.1:8080
      openenv import harbor:tasks --name my_tasks
    """
    from ..project.importing import FORMS, SOURCES, import_project

    kind, colon, _ = source.partition(":")
    if not colon or kind not in SOURCES:
        raise click.UsageError(f"{source!r} cannot be imported: use {FORMS}")
    found = SOURCES[kind](source)
    folder, files = import_project(found, name, output_dir)
    where = output_dir / folder.name
    steps = [f"cd {shlex.quote(str(where))}", _INSTALL, "openenv validate .", "openenv serve ."]
    if as_json:
        made = {"name": folder.name, "source": source, "folder": str(folder), "files": files, "next": steps}
        print_json({**made, "left_out": [*found.left_out]})
        return
    for each in found.left_out:
        click.echo(f"left out  {each}", err=True)
    click.echo(f"Created {click.style(str(where), bold=True)} of {source} ({len(files)} files). Next:")
    for step in steps:
        click.echo(f"  {step}")
