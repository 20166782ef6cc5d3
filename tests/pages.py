"""Pages whose examples are run, and what they say is printed: `#> text`, or `# > text` as the formatter writes it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def examples(page: str, language: str = "python") -> str:
    """The blocks of a page in one language, as one program."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks, f"{page} has no example in {language}"
    return "\n".join(blocks)


def assert_printed(program: str, printed: str) -> None:
    """What the program promises was printed, in that order."""
    promises = re.findall(r"# ?> (.*)", program)
    assert promises, "the page promises nothing"
    said = printed
    for promise in promises:
        _, found, said = said.partition(promise)
        assert found, (promise, printed)
