"""`openenv push`, `fork` and `pull`: Spaces of the Hub, and images at registries."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import OpenEnvError, UsageError
from ..providers.redaction import KEYS
from .build import project_of, show_step
from .terminal import COUNT, PATH, ProgressBar, message_on_interrupt, pairs, print_error, print_json

if TYPE_CHECKING:
    from ..project import Project
    from ..project.hub import Published, SpaceRequest, Stage
    from ..project.image import PushProgress


def to_spaces(directory: Path, given: Mapping[str, Any]) -> None:
    """Pushes a project to one or more Spaces, and prints their addresses."""

    from ..project import hub
    from ..project.hub import Hub, SpaceRequest, Stage

    project = project_of(directory)
    request = SpaceRequest(
        interface=given["interface"] is not False,
        variables=pairs("--env-var", given["env_vars"]),
        secrets=pairs("--secret", given["secrets"]),
        **{each.name: given[each.name] for each in fields(SpaceRequest) if each.name in given.keys() - _CHANGED},
    )
    done = 0

    def heard(each: Published) -> None:
        nonlocal done
        done += 1
        if request.count > 1:
            progress.show("pushing", done, request.count, f"{each.name}{': failed' if each.error else ''}")

    with message_on_interrupt(_INTERRUPTED), ProgressBar() as progress:
        warn_of_secrets(given["secrets"], progress)
        if not given["dry_run"]:
            Hub().check_token()  # before the slow parts
        if not given["no_check"]:
            _check(project, progress)
        if not given["dry_run"]:
            progress.show("staging", 0, 0)
        stage = Stage.of(project, request)
        if given["dry_run"]:
            _rehearse(project, request, stage, given["as_json"], progress)
            return
        progress.show("pushing", 0, request.count)
        try:
            published = hub.push(project, request, say=progress.say, heard=heard, stage=stage)
        except OpenEnvError as error:
            if given["as_json"]:
                print_json({"pushed": False, "spaces": [], "error": error.facts()})
            raise
    _tell(published, stage, request, given["as_json"])
    if any(each.error is not None for each in published):
        sys.exit(1)


_INTERRUPTED = (
    "interrupted: each Space has either all files of this push or none of them; run the same command again to finish"
)


# Options of a push that are parsed before they become fields of a SpaceRequest.
_CHANGED = {"interface", "secrets"}


def warn_of_secrets(texts: Sequence[str], progress: ProgressBar) -> None:
    """Warns about secrets that are on the command line."""
    if any("=" in text for text in texts):
        progress.say(
            "other users of this machine can read a command line: --secret NAME takes the value from the environment"
        )


def _check(project: Project, progress: ProgressBar) -> None:
    """Makes the static checks. Only a failed check prevents publishing."""

    from ..project.checks import Level, Outcome
    from ..project.checks.examination import examine
    from ..project.checks.findings import InternalFault

    progress.show("checking", 0, 0)
    try:
        report = examine(str(project.folder), Level.STATIC, begun=lambda name: progress.show("checking", 0, 0, name))
    except InternalFault as fault:
        progress.say(f"not checked: {fault}")
        return
    seen = [each for each in report.findings if each.outcome in {Outcome.FAIL, Outcome.WARNING}]
    for each in seen:
        progress.say(f"{each.outcome.value}: {each.check}: {each.saw}" + (f"; {each.mend}" if each.mend else ""))
    failed = [each.check for each in seen if each.outcome is Outcome.FAIL]
    if failed:
        raise UsageError(
            f"nothing was pushed, since {', '.join(failed)} failed: fix it "
            "(openenv validate --level static), or push "
            "with --no-check"
        )


def _rehearse(project: Project, request: SpaceRequest, stage: Stage, as_json: bool, progress: ProgressBar) -> None:
    """Lists the files of a push without contacting the Hub."""

    from ..project.hub.publish import names_of, variables_of

    for note in stage.notes:
        progress.say(note)
    names = [str(name) for name in names_of(project, request, "YOU")]
    variables = sorted(variables_of(project.manifest).keys() | request.variables.keys())
    if as_json:
        print_json(
            {
                "pushed": False,
                "spaces": [{"name": name} for name in names],
                "files": sorted(stage.files),
                "bytes": stage.size,
                "variables": variables,
                "secrets": sorted(request.secrets),
            }
        )
        return
    click.echo(f"would push {len(stage.files)} files ({stage.size / 1000:,.0f} kB) to {', '.join(names)}:")
    for path, source in stage.files.items():
        click.echo(f"  {path}{'' if isinstance(source, Path) else '  (made or changed for the Space)'}")


def _tell(published: Sequence[Published], stage: Stage, request: SpaceRequest, as_json: bool) -> None:
    if as_json:
        good = all(each.error is None for each in published)
        spaces = [
            {
                **vars(each),
                "name": str(each.name),
                "error": each.error.facts() if each.error is not None else None,
                "next": [] if each.error else [f"openenv validate --url {each.url}", f'EnvClient("{each.url}")'],
            }
            for each in published
        ]
        document = {"pushed": good, "files": len(stage.files), "bytes": stage.size, "spaces": spaces}
        print_json(document)
    for each in published:
        if each.error is not None:
            print_error(f"{each.name}: {each.error.message}")
        elif not as_json:
            if each.pull_request is not None:
                click.echo(f"opened a pull request at {each.name}: {each.pull_request}")
                continue
            what = "made" if each.created else "pushed to" if each.changed else "nothing has changed at"
            click.echo(f"{what} {each.name}: {each.page}")
            click.echo(f"  served at {each.url} once the Hub has built it, which takes some minutes")
            click.echo(f"  check it:  openenv validate --url {each.url}")
            if request.private:
                use = f'EnvClient("{each.url}", api_key=TOKEN)  with a token of the Hub that may read it'
            else:
                use = f'EnvClient("{each.url}")'
            click.echo(f"  use it:    {use}")
            if not request.private and KEYS not in request.secrets:
                click.echo(f"  every client can use the Space unless it requires an API key: --secret {KEYS}")
    failed = [each for each in published if each.error is not None]
    if failed:
        click.echo(f"{len(published) - len(failed)} of {len(published)} Spaces were pushed", err=True)


@click.command()
@click.argument("space", metavar="OWNER/SPACE")
@click.option(
    "-r", "--repo-id", metavar="[OWNER/]NAME", help="Name of the copy. [default: the same name, in your account]"
)
@click.option("--private", is_flag=True, help="Make the copy private. [default: as the original]")
@click.option(
    "-e",
    "--set-env",
    "variables",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Variable of the copy, publicly readable.",
)
@click.option(
    "-s",
    "--set-secret",
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Secret of the copy; NAME alone takes the value of this shell.",
)
@click.option("-H", "--hardware", metavar="NAME", help="Hardware of the copy, e.g. cpu-basic or t4-medium.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the copy.")
def fork(
    space: str, repo_id: str | None, variables: Sequence[str], secrets: Sequence[str], as_json: bool, **given: Any
) -> None:
    """Copies a Space of the Hugging Face Hub, with its history and its variables, on the Hub itself: nothing is
    downloaded. Secrets are not copied. (Extra `hub`.)

    \b
    Examples:
      openenv fork openenv/echo_env
      openenv fork openenv/echo_env -r my-org/echo -e LEVEL=3 -s MODEL_KEY
    """

    from ..project import hub

    with message_on_interrupt(f"interrupted: check whether the copy of {space} exists"), ProgressBar() as progress:
        warn_of_secrets(secrets, progress)
        progress.show(f"copying {space}", 0, 0)
        copy = hub.fork(
            space,
            repo_id,
            variables=pairs("--set-env", variables),
            secrets=pairs("--secret", secrets),
            say=progress.say,
            **given,
        )
        for note in copy.notes:
            progress.say(note)
    if as_json:
        print_json(
            {
                "source": space,
                "name": str(copy.name),
                "page": copy.page,
                "url": copy.url,
                "next": [f"openenv validate --url {copy.url}", f"openenv pull {copy.name}"],
            }
        )
        return
    click.echo(f"copied {space} to {copy.name}: {copy.page}")
    click.echo(f"  served at {copy.url} once the Hub has built it, which takes some minutes")
    click.echo(f"  check it:   openenv validate --url {copy.url}")
    click.echo(f"  change it:  openenv pull {copy.name}")


@click.command()
@click.argument("space", metavar="OWNER/SPACE")
@click.option(
    "-o",
    "--output-dir",
    type=PATH,
    metavar="FOLDER",
    help="Folder of the project, which must not exist yet. [default: the Space's name, in this folder]",
)
@click.option("--revision", metavar="NAME", help="Branch, tag, commit or refs/pr/NUMBER. [default: the newest]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the project.")
def pull(space: str, output_dir: Path | None, revision: str | None, as_json: bool) -> None:
    """Downloads the files of a Space of the Hugging Face Hub into a new folder, as a project. None of them is
    executed, so read them before you serve them. Public Spaces need no token. (Extra `hub`.)

    \b
    Examples:
      openenv pull openenv/echo_env
      openenv pull my-org/echo --output-dir envs/echo --revision refs/pr/2
    """

    from ..project import hub

    with message_on_interrupt("interrupted: no files were kept"), ProgressBar() as progress:
        progress.show(f"fetching {space}", 0, 0)
        pulled = hub.pull(space, output_dir, revision=revision, say=progress.say)
    here = Path.cwd()
    inside = pulled.folder.is_relative_to(here)
    folder = shlex.quote(str(pulled.folder.relative_to(here) if inside else pulled.folder))
    commands = [f"pip install -e {folder}", f"openenv serve {folder}", f"openenv validate {folder}"]
    if as_json:
        print_json({**vars(pulled), "name": str(pulled.name), "folder": str(pulled.folder), "next": commands})
        return
    click.echo(f"fetched {pulled.name} into {folder}: {pulled.files} files of commit {pulled.commit[:8]}. Next:")
    for command in commands:
        click.echo(f"  {command}")


INTERFACE = "ENABLE_WEB_INTERFACE"


def to_registry(directory: Path, registry: str, given: Mapping[str, Any]) -> None:
    """Builds the image of a project, or takes an existing one, pushes it, and prints its name."""

    from ..project.image import BuildRequest, build, push_image
    from ..project.image.registry import local_name, remote_name

    project = project_of(directory)
    name = remote_name(registry, project, given["tag"])
    image = given["image"] or local_name(project)
    if given["dry_run"]:
        made = f"build {project.folder}, and push it" if given["image"] is None else f"push {image}"
        _print_one({"image": name, "pushed": False}, given["as_json"], f"would {made} as {name}")
        return
    with ProgressBar() as progress:

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
            image = build(project, request, partial(show_step, progress)).id
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
        f"pushed {pushed.name}: {pushed.layers} layers, {pushed.there} of them existed already",
        f"  digest:  {pushed.digest}",
        f"  run it:  {run}",
        f"  or:      {spec}",
    ]
    _print_one(document, given["as_json"], "\n".join(words))


def _print_one(document: Mapping[str, Any], as_json: bool, words: str) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(words)


# Options for only one of the two destinations, by parameter name of the command below.
_OF_THE_HUB = ["repo_id", "private", "create_pr", "exclude", "delete", "hardware", "count"]
_OF_THE_HUB += ["env_vars", "secrets", "no_check"]
_OF_A_REGISTRY = ["tag", "image", "build_args", "platform"]


@click.command()
@click.argument("directory", type=PATH, default=".")
@click.option(
    "-r", "--repo-id", metavar="[OWNER/]NAME", help="Space to push to. [default: the project's name, in your account]"
)
@click.option("-b", "--base-image", metavar="IMAGE", help="Image to build on, instead of the Dockerfile's own.")
@click.option(
    "--interface/--no-interface",
    default=None,
    help="Whether it serves the web UI. [default: yes for a Space, no for a registry]",
)
@click.option(
    "--registry", metavar="HOST/NAMESPACE", help="Push an image to this registry instead, e.g. docker.io/me."
)
@click.option(
    "-t", "--tag", metavar="TAG", help="With --registry: tag of the image. [default: the version, or latest]"
)
@click.option("--image", metavar="IMAGE", help="With --registry: push this local image without building one.")
@click.option(
    "--build-arg", "build_args", multiple=True, metavar="NAME[=VALUE]", help="With --registry: see `openenv build`."
)
@click.option("--platform", metavar="OS/ARCH", help="With --registry: platform to build for, e.g. linux/amd64.")
@click.option("--private", is_flag=True, help="Make the Space private.")
@click.option("--create-pr", is_flag=True, help="Open a pull request at the Space instead of changing it.")
@click.option(
    "--exclude",
    type=PATH,
    metavar="FILE",
    help="File with one glob per line; matching files are not uploaded to the Space.",
)
@click.option(
    "--delete",
    multiple=True,
    metavar="GLOB",
    help="Files to delete from the Space; '*': all that this push does not upload.",
)
@click.option("-H", "--hardware", metavar="NAME", help="Hardware of the Space, e.g. cpu-basic or t4-medium.")
@click.option("-n", "--count", type=COUNT, default=1, help="Number of Spaces to push, NAME-1 to NAME-N. [default: 1]")
@click.option(
    "-e",
    "--env-var",
    "env_vars",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Variable of the Space, publicly readable.",
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Secret of the Space; NAME alone takes the value of this shell.",
)
@click.option("--no-check", is_flag=True, help="Push to the Space without the static checks of `openenv validate`.")
@click.option("--dry-run", is_flag=True, help="Print what would be pushed, and push nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the push.")
@click.pass_context
def push(context: click.Context, /, directory: Path, registry: str | None, **given: Any) -> None:
    """Publishes the environment in DIRECTORY (by default the current folder) as a Space of the Hugging Face Hub, or
    with --registry as an image at a container registry.

    \b
    Examples:
      openenv push
      openenv push my_env -r my-org/my-env --private --secret MODEL_KEY
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
