"""`openenv push`: an environment for others, on the Hub or at a registry of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

__all__ = ["push"]

# What only one of the two goals knows, by the names of the parameters below.
_OF_THE_HUB = {
    "repo_id": "--repo-id",
    "private": "--private",
    "create_pr": "--create-pr",
    "exclude": "--exclude",
    "delete": "--delete",
    "hardware": "--hardware",
    "count": "--count",
    "env_vars": "--env-var",
    "secrets": "--secret",
    "no_check": "--no-check",
}
_OF_A_REGISTRY = {"tag": "--tag", "image": "--image", "build_args": "--build-arg", "platform": "--platform"}


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
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=1, help="Spaces to push, NAME-1 to NAME-N. [default: 1]"
)
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
    _check(context, registry)
    if registry is None:
        from .push_space import to_spaces

        to_spaces(directory, given)
    else:
        from .push_image import to_registry

        to_registry(directory, registry, given)


def _check(context: click.Context, registry: str | None) -> None:
    """Options that make no sense together."""
    unfit, where = (_OF_THE_HUB, "is of Spaces") if registry is not None else (_OF_A_REGISTRY, "needs --registry")
    for name, option in unfit.items():
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"{option} {where}{'' if registry is None else ': leave out it or --registry'}")
    for option, image in (("--base-image", "base_image"), ("--build-arg", "build_args"), ("--platform", "platform")):
        if context.params.get("image") is not None and context.params.get(image):
            raise click.UsageError(f"--image is built already: leave out it or {option}")
    if context.params["create_pr"] and context.params["count"] > 1:
        raise click.UsageError("--create-pr is of one Space: leave out it or --count")
