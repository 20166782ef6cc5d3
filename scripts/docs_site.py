"""Hooks of mkdocs: add the pages of the site that are not in `docs/`, and adapt links and diagrams.

mkdocs.yml names this file. The added pages are files from elsewhere in the repository, and the reference of the
command lines. Links in the sources work in the repository, and these hooks rewrite them for the site. `make docs`
installs Mermaid with npm, and the site serves it itself: the theme would load it from another host. Without npm, the
diagrams stay text.
"""

from __future__ import annotations

import os
import posixpath
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from pymdownx.superfences import fence_code_format

from openenv.cli.main import app

ROOT = Path(__file__).parent.parent
OTHERS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")
COMMANDS = "reference/commands.md"
MERMAID = ROOT / "docs/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js"
MERMAID_URL = "javascripts/mermaid.js"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Turns blocks of Mermaid into diagrams, if Mermaid is installed."""
    if MERMAID.exists():
        fence = {"name": "mermaid", "class": "mermaid", "format": fence_code_format}
        config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files that are outside `docs/`, and Mermaid."""
    recipes = (path.relative_to(ROOT) for path in sorted((ROOT / "deploy").rglob("*")) if path.is_file())
    for path in (*OTHERS, *map(str, recipes)):
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
    if MERMAID.exists():
        files.append(File.generated(config, MERMAID_URL, abs_src_path=str(MERMAID)))
    files.append(File.generated(config, COMMANDS, content="\n".join(_commands())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces links to files of the repository with links to their pages in the site."""
    source = page.file.abs_src_path
    if source is None or page.file.src_uri == COMMANDS:
        return markdown
    known = {file.abs_src_path: file.src_uri for file in files if file.abs_src_path}
    known[str(ROOT / "README.md")] = "index.md"
    here = posixpath.dirname(page.file.src_uri)

    def place(link: re.Match[str]) -> str:
        target = os.path.normpath(Path(source).parent / link[1])
        if Path(target).is_dir():
            target = str(Path(target, "README.md"))
        found = known.get(target)
        return link[0] if found is None else posixpath.relpath(found, here or ".") + (link[2] or "")

    return _LINK.sub(place, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces the `::` with which docstrings introduce examples, and hides the code of diagrams from the search."""
    html = html.replace("::</p>", ":</p>")
    return html.replace('<pre class="mermaid"', '<pre class="mermaid" data-search-exclude')


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Adds Mermaid, which is large, to pages with a diagram only. The theme finds it, and does not load its own."""
    if 'class="mermaid"' not in output:
        return output
    script = f'<script src="{get_relative_url(MERMAID_URL, page.url)}"></script>'
    return output.replace("</body>", f"{script}</body>")


def _commands() -> Iterator[str]:
    yield "# Commands"
    yield "\nEvery command prints its part with `--help`. Exit codes: 0 done, 1 an error or a check that failed,"
    yield "2 an invalid command line, 130 ended by Ctrl-C. A command with further codes lists them."
    yield from _command(app, click.Context(app, info_name="openenv"), 1)


def _command(command: click.Command, context: click.Context, depth: int) -> Iterator[str]:
    if depth > 1:
        yield f"\n{'#' * min(depth, 3)} {context.command_path}\n"
    yield from _help(command.help or "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _command(inner, click.Context(inner, info_name=name, parent=context), depth + 1)
        return
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"\n```text\n{context.command_path} {usage}\n```\n"
    rows = [row for row in (_row(parameter, context) for parameter in command.params) if row]
    if rows:
        yield from ("| option | what it does |", "|---|---|", *rows)


def _help(text: str) -> Iterator[str]:
    """Paragraphs of a help text. Those that click must not wrap become blocks of code."""
    for paragraph in re.split(r"\n\s*\n", text.partition("\f")[0].strip()):
        lines = [line.rstrip() for line in paragraph.splitlines()]
        if lines and lines[0].strip() == "\b":
            title, *body = textwrap.dedent("\n".join(lines[1:])).splitlines()
            if not body or not body[0].startswith(" "):
                title, body = "", [title, *body]
            yield from (f"\n{title}", "\n```text", textwrap.dedent("\n".join(body)), "```")
        else:
            yield "\n" + "\n".join(line.strip() for line in lines)


def _row(parameter: click.Parameter, context: click.Context) -> str | None:
    record: Any = parameter.get_help_record(context)
    if record is None or not record[1]:  # the help text explains arguments
        return None
    names, text = (part.replace("|", "\\|").replace("\n", " ") for part in record)
    return f"| `{names}` | {text} |"
