"""`openenv push`: publish an environment on the Hub or at an image registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .build import StepLines, project_of
from .hub import to_spaces
from .options import COUNT
from .terminal import Progress
from .variables import pairs

if TYPE_CHECKING:
    from ..project.image import PushProgress

INTERFACE = "ENABLE_WEB_INTERFACE"


def to_registry(directory: Path, registry: str, given: Mapping[str, Any]) -> None:
    """Builds the image of a project, or takes one, pushes it, and says what it is called now."""
    from ..project.image import BuildRequest, build, push_image
    from ..project.image.registry import local_name, remote_name

    project = project_of(directory)
    name = remote_name(registry, project, given["tag"])
    image = given["image"] or local_name(project)
    if given["dry_run"]:
        made = f"build {project.folder}, and push it" if given["image"] is None else f"push {image}"
        _tell({"image": name, "pushed": False}, given["as_json"], f"would {made} as {name}")
        return
    with Progress() as progress:

        def show(shown: PushProgress) -> None:
            sizes = f"{shown.sent / 1e6:.1f} of {shown.total / 1e6:.1f} MB"
            note = f"{shown.done} of {shown.layers} layers, {sizes}"
            progress.show(f"pushing {name}", shown.sent, shown.total, note)

        if given["image"] is None:
            request = BuildRequest(
                tags=(name,),
                base_image=given["base_image"],
                arguments=pairs("--build-arg", given["build_args"]),
                platform=given["platform"],
                variables={INTERFACE: "true" if given["interface"] else "false"},
            )
            image = build(project, request, StepLines(progress)).id
        pushed = push_image(image, name, show)
    run = f"docker run --rm -p 8000:{project.manifest.port or 8000} {name}"
    spec = f'LaunchSpec(image="{pushed.reference}")'
    document = {
        "image": pushed.name,
        "pushed": True,
        "digest": pushed.digest,
        "reference": pushed.reference,
        "layers": pushed.layers,
        "run": run,
        "launch_spec": spec,
    }
    words = [
        f"pushed {pushed.name}: {pushed.layers} layers, {pushed.there} of them were there",
        f"  digest:  {pushed.digest}",
        f"  run it:  {run}",
        f"  or:      {spec}",
    ]
    _tell(document, given["as_json"], "\n".join(words))


def _tell(document: Mapping[str, Any], as_json: bool, words: str) -> None:
    click.echo(json.dumps(document, indent=2) if as_json else words)


# What only one of the two goals knows, by the names of the parameters below.
_OF_THE_HUB = ["repo_id", "private", "create_pr", "exclude", "delete", "hardware", "count"]
_OF_THE_HUB += ["env_vars", "secrets", "no_check"]
_OF_A_REGISTRY = ["tag", "image", "build_args", "platform"]


@click.command(short_help="Publish an environment on the Hub, or as an image.")
@click.argument("directory", type=click.Path(path_type=Path), default=".")
@click.option(
    "-r", "--repo-id", metavar="[OWNER/]NAME", help="Space to push to. [default: yours, of the project's name]"
)
@click.option("-b", "--base-image", metavar="IMAGE", help="Image to build on, instead of the Dockerfile's own.")
@click.option(
    "--interface/--no-interface", default=None, help="The web UI in it. [default: yes for a Space, no for a registry]"
)
@click.option("--registry", metavar="HOST/NAMESPACE", help="Push an image there instead, as docker.io/me.")
@click.option("-t", "--tag", metavar="TAG", help="With --registry: its tag. [default: the version, or latest]")
@click.option("--image", metavar="IMAGE", help="With --registry: push this image of the engine's, and build nothing.")
@click.option(
    "--build-arg", "build_args", multiple=True, metavar="NAME[=VALUE]", help="With --registry: see `openenv build`."
)
@click.option("--platform", metavar="OS/ARCH", help="With --registry: build for it, as linux/amd64.")
@click.option("--private", is_flag=True, help="Make the Space private.")
@click.option("--create-pr", is_flag=True, help="Open a pull request at the Space instead of changing it.")
@click.option(
    "--exclude",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with a glob a line of what is not uploaded to the Space.",
)
@click.option(
    "--delete",
    multiple=True,
    metavar="GLOB",
    help="Files of the Space to delete; '*': all that come not again.",
)
@click.option("-H", "--hardware", metavar="NAME", help="Hardware of the Space, as cpu-basic or t4-medium.")
@click.option("-n", "--count", type=COUNT, default=1, help="Spaces to push, NAME-1 to NAME-N. [default: 1]")
@click.option(
    "-e",
    "--env-var",
    "env_vars",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Variable of the Space, for all to read.",
)
@click.option(
    "--secret", "secrets", multiple=True, metavar="NAME[=VALUE]", help="Secret of the Space; NAME takes it from here."
)
@click.option("--no-check", is_flag=True, help="Push to the Space without the static checks of `openenv validate`.")
@click.option("--dry-run", is_flag=True, help="Only say what would be pushed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document of what was pushed.")
@click.pass_context
def push(context: click.Context, /, directory: Path, registry: str | None, **given: Any) -> None:
    """Publishes the environment in DIRECTORY (by default this one) as a Space of the Hugging Face Hub, or with
    --registry as an image at any registry.

    \b
    Examples:
      openenv push
      openenv push my_env -r my-org/my-env --private -H cpu-upgrade --secret MODEL_KEY
      openenv push --registry docker.io/my-org -t 1.2
      openenv push --registry 127.0.0.1:5000/team --image my-env:1
    """
    options = {str(each.name): max(each.opts, key=len) for each in context.command.params}
    unfit, where = (_OF_THE_HUB, "is of Spaces") if registry is not None else (_OF_A_REGISTRY, "needs --registry")
    for name in unfit:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            hint = "" if registry is None else ": leave out it or --registry"
            raise click.UsageError(f"{options[name]} {where}{hint}")
    for name in ("base_image", "build_args", "platform"):
        if given["image"] is not None and given[name]:
            raise click.UsageError(f"--image is built already: leave out it or {options[name]}")
    if given["create_pr"] and given["count"] > 1:
        raise click.UsageError("--create-pr is of one Space: leave out it or --count")
    if registry is None:
        to_spaces(directory, given)
    else:
        to_registry(directory, registry, given)
