"""`openenv list`: the installed and the bundled environments."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

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

    @classmethod
    def of(cls, entry: EnvironmentEntry, imports: _Imports) -> ListedEnvironment:
        """Checks in a separate process whether it can be imported."""
        try:
            manifest = entry.manifest
        except UsageError as error:
            return cls(entry, entry.summary, error.message)
        description = (manifest.description if manifest else None) or entry.summary
        return cls(entry, " ".join(description.split()), imports.problem(entry.package))

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


@click.command(name="list", short_help="List the installed environments.")
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
    there = entries()
    found: list[ListedEnvironment] = []
    # Exited in reverse order: the pool waits for its threads, which wait for the processes.
    with ProgressBar() as progress, ThreadPoolExecutor(AT_ONCE) as pool, _Imports() as imports:
        for listed in pool.map(lambda entry: ListedEnvironment.of(entry, imports), there):
            found.append(listed)
            if progress.live:
                progress.show("importing", len(found), len(there), listed.entry.key)
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


class _Imports:
    """Processes that import packages. Leaving the block, for example by Ctrl-C, kills those that still run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._over = True
            for process in self._running:
                process.kill()

    def problem(self, package: str) -> str | None:
        """Why a package cannot be imported; None if it can."""
        command = [sys.executable, "-P", "-c", _CHILD, package, json.dumps(sys.path)]
        with self._lock:
            if self._over:
                return "interrupted"
            process = subprocess.Popen(  # noqa: S603 - this interpreter
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            self._running.add(process)
        with process:
            try:
                said = process.communicate(timeout=IMPORT_S)[1].decode(errors="replace")
            except subprocess.TimeoutExpired:
                process.kill()
                return f"importing {package} takes more than {IMPORT_S:g} s"
            finally:
                with self._lock:
                    self._running.discard(process)
        code = process.returncode
        if code == 0:
            return None
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        lines = said.strip().splitlines()
        return lines[-1] if lines else f"importing {package} ended the process {how}"
