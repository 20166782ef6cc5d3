"""`openenv push --registry`: an image at a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .build import StepLines, arguments, project_of
from .progress import Progress

if TYPE_CHECKING:
    from ..project import Project
    from ..project.image import PushProgress

__all__ = ["to_registry"]

INTERFACE = "ENABLE_WEB_INTERFACE"


def to_registry(directory: Path, registry: str, given: Mapping[str, Any]) -> None:
    """Builds the image of a project, or takes one, pushes it, and says what it is called now."""
    from ..project.image import push_image
    from ..project.image.names import local_name
    from ..project.image.registry import remote_name

    project = project_of(directory)
    name = remote_name(registry, project, given["tag"])
    image = given["image"] or local_name(project)
    if given["dry_run"]:
        made = f"build {project.folder}, and push it" if given["image"] is None else f"push {image}"
        _tell({"image": name, "pushed": False}, given["as_json"], f"would {made} as {name}")
        return
    with Progress() as progress:
        if given["image"] is None:
            image = _built(project, name, given, progress)
        pushed = push_image(image, name, lambda shown: _show(progress, name, shown))
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


def _built(project: Project, name: str, given: Mapping[str, Any], progress: Progress) -> str:
    from ..project.image import BuildRequest, build

    request = BuildRequest(
        tags=(name,),
        base_image=given["base_image"],
        arguments=arguments(given["build_args"]),
        platform=given["platform"],
        variables={INTERFACE: "true" if given["interface"] else "false"},
    )
    return build(project, request, StepLines(progress)).id


def _show(progress: Progress, name: str, shown: PushProgress) -> None:
    sizes = f"{shown.sent / 1e6:.1f} of {shown.total / 1e6:.1f} MB"
    progress.show(f"pushing {name}", shown.sent, shown.total, f"{shown.done} of {shown.layers} layers, {sizes}")


def _tell(document: Mapping[str, Any], as_json: bool, words: str) -> None:
    click.echo(json.dumps(document, indent=2) if as_json else words)
