"""`openenv list`: the installed and the bundled environments."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from ..errors import UsageError
from ..project.catalog import EnvironmentEntry, entries
from .terminal import ProgressBar, print_json, table_lines

# Packages may import slow modules.
IMPORT_S = 60.0
AT_ONCE = 4
# The package's code may print, hang, and end the process that runs it.
_CHILD = """
import json, sys
package, sys.path[:] = sys.argv[1], json.loads(sys.argv[2])
from openenv.errors import OpenEnvError
from openenv.project import import_module
try:
    import_module(package, package)
except OpenEnvError as error:
    sys.exit("\\n" + " ".join(error.message.split()))
"""


class ListedEnvironment(NamedTuple):
    """An environment, and whether it can be used.

    Attributes:
        entry: The catalog entry.
        description: One line about it.
        problem: Why its package cannot be imported or its manifest cannot be read; None if it can be used.
    """

    entry: EnvironmentEntry
    description: str
    problem: str | None

    def facts(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        entry = self.entry
        return {
            "name": entry.key,
            "package": entry.package,
            "distribution": entry.distribution,
            "version": entry.version,
            "description": self.description,
            "folder": str(entry.folder),
            "manifest": None if entry.manifest_path is None else str(entry.manifest_path),
            "bundled": entry.distribution is None,
            "importable": self.problem is None,
            "problem": self.problem,
        }


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document instead of a table.")
def list_(as_json: bool) -> None:
    """Lists the installed environments and those that come with openenv: name (as for AutoEnv.from_env), version,
    description and folder. Each package is imported once, and an import that fails is shown with its reason. The
    exit code is 0 in both cases.

    \b
    Examples:
      openenv list
      openenv list --json
    """
    found = asyncio.run(_listed(entries()))
    if as_json:
        print_json({"environments": [each.facts() for each in found]})
        return
    if not found:
        click.echo("no environments: install one (pip install openenv-NAME), or create one with `openenv init NAME`")
        return
    entry_rows = [
        (each.entry.key, each.entry.version or "-", each.entry.distribution or "comes with openenv", each.description)
        for each in found
    ]
    indent = " " * max(len(key) for key, *_ in entry_rows)
    for line, listed in zip(table_lines(entry_rows), found, strict=True):
        click.echo(line)
        click.echo(f"{indent}  {listed.entry.folder}")
        if listed.problem is not None:
            click.echo(f"{indent}  {click.style('cannot be used:', fg='red')} {listed.problem}")


async def _listed(there: Sequence[EnvironmentEntry]) -> list[ListedEnvironment]:
    """Imports each package once, some at the same time."""
    gate = asyncio.Semaphore(AT_ONCE)
    found: list[ListedEnvironment] = []
    with ProgressBar() as progress:
        async with asyncio.TaskGroup() as group:
            for task in [group.create_task(_check(entry, gate)) for entry in there]:
                found.append(await task)
                if progress.live:
                    progress.show("importing", len(found), len(there), found[-1].entry.key)
    return found


async def _check(entry: EnvironmentEntry, gate: asyncio.Semaphore) -> ListedEnvironment:
    """Checks in a separate process whether an environment can be imported."""
    try:
        manifest = entry.manifest
    except UsageError as error:
        return ListedEnvironment(entry, entry.summary, error.message)
    description = (manifest.description if manifest else None) or entry.summary
    async with gate:
        problem = await _import_problem(entry.package)
    return ListedEnvironment(entry, " ".join(description.split()), problem)


async def _import_problem(package: str) -> str | None:
    """Why a package cannot be imported; None if it can."""
    command = [sys.executable, "-P", "-c", _CHILD, package, json.dumps(sys.path)]
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
    try:
        async with asyncio.timeout(IMPORT_S):
            _, said = await process.communicate()
    except TimeoutError:
        return f"importing {package} takes more than {IMPORT_S:g} s"
    finally:
        if process.returncode is None:  # also after Ctrl-C, which cancels this
            process.kill()
            await process.wait()
    code = await process.wait()
    if code == 0:
        return None
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"importing {package} ended the process {how}"
