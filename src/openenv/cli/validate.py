"""`openenv validate`: find the errors of an environment, or of a running server."""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import NoReturn

import click

from ..errors import NotAProject
from ..project.checks import Finding, Level, Outcome
from ..project.checks.examination import CALL_S, EPISODES, SESSIONS, examine
from ..project.checks.findings import InternalFault
from .terminal import FILE, columns, complete_target, cut, is_address, print_error

NOT_A_PROJECT = 2
INTERNAL = 3
_MARKS = {
    Outcome.PASS: ("pass", "green"),
    Outcome.WARNING: ("warn", "yellow"),
    Outcome.FAIL: ("FAIL", "red"),
    Outcome.SKIPPED: ("skip", "bright_black"),
}
_WORDS = {Outcome.PASS: "passed", Outcome.WARNING: "warned", Outcome.FAIL: "failed", Outcome.SKIPPED: "skipped"}
_NAME_WIDTH = 20
_WIDEST = 140


@click.command()
@click.argument("target", required=False, shell_complete=complete_target)
@click.option("--url", help="Check the running server at this URL, of any implementation.")
@click.option(
    "--level",
    type=click.Choice([*map(str, (Level.STATIC, Level.RUNTIME, Level.LOAD, Level.SEMANTIC))]),
    default=str(Level.LOAD),
    show_default=True,
    help="Checks to make: files and imports; also episodes; also many sessions and episodes; or, apart from those, "
    "whether scores are honest.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and nothing else.")
@click.option("-o", "--output", type=FILE, help="Also write the report to this file, as JSON.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1),
    default=CALL_S,
    show_default=True,
    help="Time limit of one call of the environment or one request to the server, in seconds.",
)
@click.option("--api-key", help="API key for the server at --url. [OPENENV_API_KEY]")
@click.option(
    "--sessions",
    type=click.IntRange(2),
    default=SESSIONS,
    show_default=True,
    help="Concurrent sessions, at level load.",
)
@click.option(
    "--episodes",
    type=click.IntRange(20),
    default=EPISODES,
    show_default=True,
    help="Episodes to play to see whether memory grows, at level load.",
)
# Options of the released package's command, accepted without effect so that existing scripts work.
@click.option("--policy", hidden=True, expose_value=False)
@click.option("--local", is_flag=True, hidden=True, expose_value=False)
@click.option("--skip-build", is_flag=True, hidden=True, expose_value=False)
def validate(
    target: str | None,
    url: str | None,
    level: str,
    as_json: bool,
    output: Path | None,
    timeout_s: float,
    api_key: str | None,
    sessions: int,
    episodes: int,
) -> None:
    """Checks TARGET: a folder with openenv.yaml (default: this one), module:attribute, a bundled environment, or the
    URL of a server. Each check reports what it found; a failed one also says how to fix it. docs/validate.md lists
    all.

    The environment's code runs in a separate process, since it may hang or crash. A check that is not possible is
    skipped with its reason.

    Exit code 0: no check failed; 1: a check failed; 2: TARGET is not an environment; 3: an internal error of openenv
    in a check.

    \b
    Examples:
      openenv validate
      openenv validate echo --level runtime
      openenv validate my_env --level semantic
      openenv validate my_env.server.app:app --json
      openenv validate --url http://127.0.0.1:8000
    """
    if target is not None and is_address(target):
        target, url = None, target
    if url is not None and target is not None:
        raise click.UsageError("give either TARGET or --url, not both")
    begun, heard = ((lambda _: None), (lambda _: None)) if as_json else (_begin, _show)
    try:
        if url is not None:
            from ..project.checks.url import check_url
            from ..settings import ClientSettings

            api_key = api_key or ClientSettings.read().api_key
            report = check_url(url, api_key=api_key, timeout_s=timeout_s, heard=heard)
        else:
            report = examine(
                target or ".",
                Level(level),
                timeout_s,
                sessions=sessions,
                episodes=episodes,
                begun=begun,
                heard=heard,
            )
    except NotAProject as error:
        _stop(NOT_A_PROJECT, target or ".", error.message, as_json)
    except InternalFault as error:
        _stop(INTERNAL, target or url or ".", str(error), as_json)
    text = report.model_dump_json(indent=2)
    if output is not None:
        try:
            output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{output} cannot be written: {error.strerror}") from None
    if as_json:
        click.echo(text)
    else:
        counts = Counter(finding.outcome for finding in report.findings)
        said = ", ".join(f"{counts[outcome]} {word}" for outcome, word in _WORDS.items() if counts[outcome])
        mark, color = _MARKS[Outcome.PASS if report.passed else Outcome.FAIL]
        verdict = click.style(mark, fg=color, bold=True)
        seconds = sum(finding.seconds for finding in report.findings)
        click.echo(f"\n{verdict}  {report.target}: {said}, in {seconds:.1f} s")
    if not report.passed:
        raise click.exceptions.Exit(1)


def _begin(check: str) -> None:
    """Shows the running check on a terminal; its finding replaces that line."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{click.style('....', fg='cyan')}  {check}", nl=False, err=True)


def _show(finding: Finding) -> None:
    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)
    mark, color = _MARKS[finding.outcome]
    head = f"{click.style(mark, fg=color)}  {finding.check:<{_NAME_WIDTH}} "
    room = columns(_WIDEST) - _NAME_WIDTH - 7
    if finding.outcome in (Outcome.FAIL, Outcome.WARNING):
        lines = textwrap.wrap(f"saw:  {finding.saw}", room, subsequent_indent="      ")
        lines += textwrap.wrap(f"fix:  {finding.mend}", room, subsequent_indent="      ") if finding.mend else []
    elif finding.outcome is Outcome.SKIPPED:
        lines = textwrap.wrap(finding.saw, room)
    else:
        lines = [cut(finding.saw, room)]
    indent = " " * (_NAME_WIDTH + 7)
    click.echo(head + f"\n{indent}".join(lines))


def _stop(code: int, target: str, message: str, as_json: bool) -> NoReturn:
    if as_json:
        click.echo(json.dumps({"target": target, "error": message}))
    print_error(message)
    raise click.exceptions.Exit(code)
