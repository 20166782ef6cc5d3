"""A report in one HTML file: nothing in it is fetched from anywhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Report", "Table"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 72rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.2rem; }
h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #ddd; padding-bottom: 0.2rem; }
p.note { color: #555; max-width: 50rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.86rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.6rem; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap; }
th { border-bottom: 2px solid #bbb; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
td.text { text-align: left; white-space: normal; }
img { max-width: 100%; height: auto; margin: 0.6rem 0; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0.1rem 1rem; }
dt { color: #555; } dd { margin: 0; }
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report. Strings that are no numbers are set left."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(slots=True)
class Report:
    """What a measurement has to say.

    Attributes:
        title: Its headline.
        lead: One or two sentences: the result.
        facts: How it was measured, by name.
        tables: In their order.
        pictures: PNG files by caption.
    """

    title: str
    lead: str
    facts: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    pictures: Mapping[str, bytes] = field(default_factory=dict)

    def html(self) -> str:
        """The whole file."""
        facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in self.facts.items())
        parts = [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(self.title)}</h1><p>{escape(self.lead)}</p>",
            *(_table(table) for table in self.tables if table.rows),
            *(_picture(caption, png) for caption, png in self.pictures.items()),
            f"<h2>How it was measured</h2><dl>{facts}</dl>" if facts else "",
            "</body></html>",
        ]
        return "\n".join(parts) + "\n"


def _table(table: Table) -> str:
    header = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    lines = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h2>{escape(table.title)}</h2>{note}<div class="wide"><table><thead><tr>{header}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    words = any(letter.isalpha() for letter in text) and not text[:1].isdigit()
    return f'<td class="text">{escape(text)}</td>' if words else f"<td>{escape(text)}</td>"


def _picture(caption: str, png: bytes) -> str:
    data = base64.b64encode(png).decode()
    return f'<h2>{escape(caption)}</h2><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
