"""`openenv push`: Spaces of the Hub."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import OpenEnvError, UsageError
from ..providers.secrecy import KEYS, masked
from ..settings import variable_here
from .build import project_of
from .interruption import told_when_interrupted
from .progress import Progress

if TYPE_CHECKING:
    from ..project import Project
    from ..project.hub import Published, SpaceRequest, Stage

__all__ = ["pairs", "to_spaces", "warn_of_secrets"]


def to_spaces(directory: Path, given: Mapping[str, Any]) -> None:
    """Pushes a project to one Space or several, and says where they are."""
    from ..project.hub import Hub, SpaceRequest

    project = project_of(directory)
    request = SpaceRequest(
        repo_id=given["repo_id"],
        base_image=given["base_image"],
        interface=given["interface"] is not False,
        private=given["private"],
        create_pr=given["create_pr"],
        exclude=given["exclude"],
        delete=tuple(given["delete"]),
        hardware=given["hardware"],
        count=given["count"],
        variables=pairs("--env-var", given["env_vars"]),
        secrets=pairs("--secret", given["secrets"]),
        check=not given["no_check"],
    )
    with told_when_interrupted(_INTERRUPTED), Progress() as progress:
        warn_of_secrets(given["secrets"], progress)
        if not given["dry_run"]:
            Hub().check_token()  # before what takes long
        if request.check:
            _check(project, progress)
        if given["dry_run"]:
            _rehearse(project, request, given["as_json"], progress)
            return
        published, stage = _push(project, request, progress, given["as_json"])
    _tell(published, stage, request, given["as_json"])
    if any(each.error is not None for each in published):
        sys.exit(1)


_INTERRUPTED = (
    "interrupted: each Space has all files of this push or, as before, none; the same command may be run again"
)


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Names with their values, as they are given on a command line; a name alone has the value that it has here.

    Raises:
        UsageError: It is not set here; or it is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, given, value = text.partition("=")
        here = value if given else variable_here(name)
        if not name or here is None:
            raise UsageError(f"{option} {masked(name, ())}: it is not set here; set it, or write {option} NAME=VALUE")
        if found.setdefault(name, here) != here:
            raise UsageError(f"{option} {name} is given twice, with two values: leave out one")
    return found


def warn_of_secrets(texts: Sequence[str], progress: Progress) -> None:
    """Says what is wrong with secrets whose values are on the command line."""
    if any("=" in text for text in texts):
        progress.say("others on this machine can read a command line: --secret NAME takes the variable from here")


def _check(project: Project, progress: Progress) -> None:
    """The static checks: only what fails keeps from publishing."""
    from ..project.checks import Level, Outcome
    from ..project.checks.examination import examine
    from ..project.checks.run import InternalFault

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
            f"nothing was pushed, for {', '.join(failed)} failed: mend it (openenv validate --level static), or push "
            "with --no-check"
        )


def _push(
    project: Project, request: SpaceRequest, progress: Progress, as_json: bool
) -> tuple[list[Published], Stage]:
    from ..project.hub import Stage, push

    done = 0

    def heard(each: Published) -> None:
        nonlocal done
        done += 1
        if request.count > 1:
            progress.show("pushing", done, request.count, f"{each.name}{': failed' if each.error else ''}")

    progress.show("staging", 0, 0)
    stage = Stage.of(project, request)
    progress.show("pushing", 0, request.count)
    try:
        return push(project, request, say=progress.say, heard=heard, stage=stage), stage
    except OpenEnvError as error:
        if as_json:
            click.echo(json.dumps({"pushed": False, "spaces": [], "error": error.facts()}, indent=2))
        raise


def _rehearse(project: Project, request: SpaceRequest, as_json: bool, progress: Progress) -> None:
    """Says what would be pushed; the Hub is not asked."""
    from ..project.hub import Stage
    from ..project.hub.push import names_of, variables_of

    stage = Stage.of(project, request)
    for note in stage.notes:
        progress.say(note)
    names = [str(name) for name in names_of(project, request, "YOU")]
    variables = sorted(variables_of(project.manifest).keys() | request.variables.keys())
    if as_json:
        document = {
            "pushed": False,
            "spaces": [{"name": name} for name in names],
            "files": sorted(stage.files),
            "bytes": stage.size,
            "variables": variables,
            "secrets": sorted(request.secrets),
        }
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"would push {len(stage.files)} files ({stage.size / 1000:,.0f} kB) to {', '.join(names)}:")
    for path, source in stage.files.items():
        click.echo(f"  {path}{'' if isinstance(source, Path) else '  (made or changed for the Space)'}")


def _tell(published: Sequence[Published], stage: Stage, request: SpaceRequest, as_json: bool) -> None:
    if as_json:
        good = all(each.error is None for each in published)
        spaces = [_document(each) for each in published]
        document = {"pushed": good, "files": len(stage.files), "bytes": stage.size, "spaces": spaces}
        click.echo(json.dumps(document, indent=2))
    for each in published:
        if each.error is not None:
            click.echo(f"{click.style('error:', fg='red')} {each.name}: {each.error.message}", err=True)
        elif not as_json:
            click.echo("\n".join(_lines(each, request)))
    failed = [each for each in published if each.error is not None]
    if failed:
        click.echo(f"{len(published) - len(failed)} of {len(published)} Spaces were pushed", err=True)


def _document(each: Published) -> dict[str, Any]:
    return {
        "name": str(each.name),
        "page": each.page,
        "url": each.url,
        "created": each.created,
        "changed": each.changed,
        "commit": each.commit,
        "pull_request": each.pull_request,
        "error": each.error.facts() if each.error is not None else None,
        "next": [] if each.error else [f"openenv validate --url {each.url}", f'EnvClient("{each.url}")'],
    }


def _lines(each: Published, request: SpaceRequest) -> list[str]:
    if each.pull_request is not None:
        return [f"opened a pull request at {each.name}: {each.pull_request}"]
    what = "made" if each.created else "pushed to" if each.changed else "nothing has changed at"
    token = ", api_key=TOKEN" if request.private else ""
    return [
        f"{what} {each.name}: {each.page}",
        f"  served at {each.url} when the Hub has built it, which takes some minutes",
        f"  check it:  openenv validate --url {each.url}",
        f'  use it:    EnvClient("{each.url}"{token})'
        + ("  with a token of the Hub that may read it" if token else ""),
        *([] if request.private or KEYS in request.secrets else [_OPEN]),
    ]


_OPEN = f"  anybody can use it, unless it asks for a key: --secret {KEYS}"
