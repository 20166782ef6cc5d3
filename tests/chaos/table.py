"""The table that a run of the suite ends with."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .trial import Fault, Finding

__all__ = ["as_markdown", "show"]

WIDTH = 200
LONGEST = 400


def show(rows: Sequence[tuple[Fault, Finding, Finding | str]]) -> None:
    """Prints what was put to both, what had to hold, and what came of it."""
    table = Table(box=box.SIMPLE_HEAD, show_lines=True, title="make chaos")
    for name, ratio in (("fault", 3), ("sessions", None), ("what must hold", 3), ("ours", 5), ("peer (0.10.0)", 5)):
        table.add_column(name, ratio=ratio, overflow="fold", justify="right" if ratio is None else "left")
    for fault, ours, peer in rows:
        table.add_row(fault.name, str(fault.sessions), fault.must, _told(ours), _told(peer))
    Console(width=WIDTH, highlight=False).print(table)


def _told(finding: Finding | str) -> Text:
    if isinstance(finding, str):
        return Text(finding, style="dim")
    text = Text("holds: " if finding.ok else "FAILS: ", style="bold green" if finding.ok else "bold red")
    for failure in finding.failed:
        text.append(_cut(failure) + "; ", style="red")
    text.append("; ".join(finding.survived), style="")
    return text


def as_markdown(rows: Sequence[tuple[Fault, Finding, Finding | str]]) -> str:
    """The same for a page."""
    lines = ["| fault | sessions | what must hold | ours | peer (0.10.0) |", "|---|---|---|---|---|"]
    for fault, ours, peer in rows:
        told = (_told(finding).plain.replace("|", "/") for finding in (ours, peer))
        lines.append(f"| {fault.name} | {fault.sessions:,} | {fault.must} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def _cut(said: str) -> str:
    """Without the example."""
    said = said.partition(", as ")[0]
    return said if len(said) <= LONGEST else said[:LONGEST] + " ..."
