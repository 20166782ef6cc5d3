"""`openenv build`: the image of an environment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..project import Project, target
from .terminal import PATH, ProgressBar, complete_target, cut, pairs, print_json

if TYPE_CHECKING:
    from ..project.image import BuildProgress

# Maximum length of a displayed instruction, in characters.
WIDTH = 90
# Without a bar, an instruction that takes this long gets a line before it ends.
_SLOW = ("RUN ", "FROM ")


@click.command()
@click.argument("path", type=PATH, default=".", shell_complete=complete_target)
@click.option(
    "-t",
    "--tag",
    "tags",
    multiple=True,
    metavar="NAME[:TAG]",
    help="Name of the image; may be repeated. [default: openenv-<name>]",
)
@click.option("-c", "--context", type=PATH, help="Folder that the Dockerfile copies from. [default: PATH]")
@click.option("-f", "--dockerfile", type=PATH, help="Dockerfile. [default: server/Dockerfile, or Dockerfile]")
@click.option("-b", "--base-image", metavar="IMAGE", help="Image to build on, instead of the Dockerfile's own.")
@click.option("--no-cache", is_flag=True, help="Execute every step, without the cache of earlier builds.")
@click.option(
    "--build-arg",
    "build_args",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Build argument (ARG); without a value, that of the variable in this shell.",
)
@click.option(
    "--platform", metavar="OS/ARCH", help="Platform to build for, e.g. linux/amd64. [default: the engine's]"
)
@click.option("-v", "--verbose", is_flag=True, help="Show the output of the steps.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the image.")
def build(path: Path, no_cache: bool, build_args: Sequence[str], verbose: bool, as_json: bool, **given: Any) -> None:
    """Builds the image of the environment in PATH (by default this folder) by its Dockerfile, on the Docker engine of
    this machine or the one that DOCKER_HOST names. (Extra `docker`.)

    Files that .dockerignore matches are not sent. If your openenv was not installed from a package index, the image
    gets it as a wheel, so that both have the same version.

    \b
    Examples:
      openenv build
      openenv build my_env -t my-env:1.0 -t my-env:latest
      openenv build my_env --base-image python:3.13-slim --build-arg PIP_INDEX_URL
      openenv build my_env --context .. --dockerfile my_env/server/Dockerfile
    """

    from ..project.image import BuildRequest
    from ..project.image import build as build_image

    project = project_of(path)

    request = BuildRequest(cache=not no_cache, arguments=pairs("--build-arg", build_args), **given)
    with ProgressBar() as progress:
        built = build_image(project, request, partial(show_step, progress, verbose=verbose))
    if as_json:
        document = {
            "id": built.id,
            "tags": list(built.names),
            "size": built.size,
            "seconds": round(built.seconds, 3),
            "base_image": built.base,
            "wheel": built.wheel,
            "warnings": list(built.warnings),
            "steps": [
                {"number": s.number, "line": s.line, "instruction": s.text, "cached": s.cached, "seconds": s.seconds}
                for s in built.steps
            ],
        }
        print_json(document)
        return
    said = f"built {', '.join(built.names)}: {built.size / 1e6:.0f} MB in {built.seconds:.1f} s"
    click.echo(f"{said}, {built.executed} of {len(built.steps)} steps executed")
    click.echo(f"  run it:  docker run --rm -p 8000:{project.manifest.port or 8000} {built.names[0]}")


def project_of(path: Path) -> Project:
    """The project in a folder, or the bundled environment of that name."""
    if not path.exists() and str(path) in target.bundled():
        path = Path(target.__file__).parents[1] / "envs" / path
    return Project.find(path)


def show_step(progress: ProgressBar, shown: BuildProgress | str, verbose: bool = False) -> None:
    """Shows the steps of a build, one line each, and the running one at the bottom; `verbose`: also their output."""
    if isinstance(shown, str):
        progress.say(shown)
        return
    step, total = shown.step, shown.total
    label = f"step {step.number}/{total}"
    text = cut(step.text, WIDTH)
    if shown.ended:
        took = "cached" if step.cached else f"{step.seconds:.1f} s"
        progress.say(f"{label} {text}  [{took}]")
    elif shown.line and verbose:
        progress.say(f"  {shown.line}")
    elif progress.live or (shown.running and text.startswith(_SLOW)):
        progress.show(label, step.number - 1, total, shown.line or text)
