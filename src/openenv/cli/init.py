"""`openenv init`: a new project."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ..project.scaffold import Scaffold, Template
from .terminal import print_json

_INSTALL = "pip install -e ."
_NEXT = {
    _INSTALL: "install its dependencies other than openenv",
    "openenv serve .": "try it in a browser: http://localhost:8000/web",
    "openenv validate .": "check it; `pytest` runs its own tests",
    "openenv build .": "build its image",
    "openenv push .": "publish it on the Hub, or with --registry at a container registry",
}

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
@click.option(
    "--output-dir",
    "-o",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Parent folder of the project; created if missing. [default: the current folder]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the created project as JSON.")
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
