"""A page and the blocks of code in it.

A comment of HTML in the line before a block says how a test takes it:

- `<!-- needs: docker -->`: it needs something that is not everywhere, and is checked instead of run;
- `<!-- types: wrong -->`: type checkers do not check it, since it shows a mistake;
- `<!-- background -->`: a server for the blocks after it, as in a second terminal; the next such block ends it.

A block with a title (```` ```python title="models.py" ````) is a file, which is written and not run. `#> text`, or
`# > text` as the formatter writes it, promises that the block prints this.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NEEDS", "PAGES", "PLAYED_ELSEWHERE", "ROOT", "RUN", "WRITTEN", "Block", "Page"]

ROOT = Path(__file__).parent.parent.parent

# Languages that run, those that are read by a parser, and those that nothing but a person reads.
RUN = {"python", "sh"}
READ = {"yaml", "json", "toml", "html", "promql", "dockerfile", "ini"}
WRITTEN = {"mermaid", "text", "ts"}  # tests/web/test_typescript.py runs the last

# What a block may need.
NEEDS = {
    "checkout",  # this repository, and make
    "cluster",  # Kubernetes
    "docker",
    "envoy",
    "hub",
    "network",
    "ray",
    "slurm",
    "swarm",
    "time",
    "yours",  # servers, files or names of the reader
}
# Pages whose blocks that need this are run by another test, which has it.
PLAYED_ELSEWHERE = {
    ("docs/gateway.md", "envoy"): "tests/infra/test_gateway.py",
    ("docs/how-to/ray.md", "ray"): "tests/infra/test_ray.py",
    ("docs/providers.md", "docker"): "tests/infra/test_docker.py",
    ("docs/publish.md", "hub"): "tests/project/hub/test_page.py",
    ("docs/sandbox.md", "hub"): "tests/real/test_sandbox.py",
}

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[a-z]*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<source>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(
    r"<!-- (?:needs: (?P<needs>[a-z ,]+)|(?P<background>background)|(?P<wrong>types: wrong)) -->\s*$"
)
_PROMISE = re.compile(r"# ?> (.*)")


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        place: Page and line of its first line of code.
        needs: What must be there to run it.
        types_checked: Whether type checkers accept it.
    """

    place: str
    language: str
    source: str
    title: str | None
    needs: frozenset[str]
    background: bool
    types_checked: bool = True

    @property
    def promises(self) -> list[str]:
        """What it says that it prints, in that order."""
        return _PROMISE.findall(self.source)


class Page:
    """A page of the documents."""

    def __init__(self, name: str, text: str | None = None):
        self.name = name
        self.text = (ROOT / name).read_text(encoding="utf-8") if text is None else text
        self.blocks = [self._block(found) for found in _FENCE.finditer(self.text)]

    def __repr__(self) -> str:
        return self.name

    def _block(self, found: re.Match[str]) -> Block:
        comment = _COMMENT.search(self.text[: found.start()])
        needs = comment["needs"] if comment else None
        line = self.text.count("\n", 0, found.start("source")) + 1
        return Block(
            place=f"{self.name}:{line}",
            language=found["language"],
            source=textwrap.dedent(found["source"]),
            title=found["title"],
            needs=frozenset(re.split(r", *", needs) if needs else ()),
            background=bool(comment and comment["background"]),
            types_checked=not (comment and comment["wrong"]),
        )

    @property
    def fences(self) -> int:
        """Lines that open or close a block."""
        return len(re.findall(r"^ *```", self.text, re.MULTILINE))

    @property
    def prose(self) -> str:
        """The page without its blocks."""
        return _FENCE.sub("", self.text)


PAGES = [
    Page(str(path.relative_to(ROOT)))
    for path in (
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "deploy").rglob("*.md")),
    )
]
