"""Draw docs/images/terminal.svg: the first commands of a newcomer and their output.

    python scripts/terminal_picture.py

The commands run in an empty folder, and the picture shows their real output.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURE = Path(__file__).parent.parent / "docs/images/terminal.svg"
COLUMNS = 90
PROGRAM = """\
from my_env import MyAction, MyEnv

with MyEnv(base_url="http://127.0.0.1:8000").sync() as env:
    env.reset(seed=7)
    for guess in (50, 25, 37, 42):
        result = env.step(MyAction(guess=guess))
        print(guess, result.observation.hint, result.reward, result.done)
"""
THEME = TerminalTheme(
    (16, 32, 28), (226, 236, 232), [(16, 32, 28), (255, 120, 110), (94, 214, 165)], [(150, 172, 164)] * 3
)
# The fonts of the page: the template of rich loads fonts from another host.
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="openenv in a terminal">
<style>
.{unique_id}-matrix {{ font: {char_height}px "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
<rect width="{width}" height="{height}" rx="10" fill="#10201c"/>
<g transform="translate({terminal_x}, 24)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


class TerminalPicture:
    """A terminal that runs commands and records its screen."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)

    def show(self, line: str, *, prompt: str = "") -> None:
        text = Text.assemble((prompt, "bold green"), (line, "bold" if prompt else ""))
        text.highlight_regex(r"^pass\b", "green")
        self._console.print(text, no_wrap=True, overflow="ellipsis")

    def run(self, *command: str, shown: slice = slice(None)) -> None:
        """Runs a command, and shows it with these lines of its output."""
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=True)  # noqa: S603
        self.show(" ".join(command), prompt="$ ")
        for line in done.stdout.rstrip().splitlines()[shown]:
            self.show(line)
        self.show("")

    def save(self, picture: Path) -> None:
        svg = self._console.export_svg(theme=THEME, code_format=FORMAT, unique_id="t")
        picture.write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE), encoding="utf-8")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        terminal = TerminalPicture(folder)
        terminal.run("openenv", "init", "my_env", shown=slice(3))
        terminal.run("openenv", "validate", "my_env", "--level", "runtime", shown=slice(-7, None))
        serve = ["openenv", "serve", "my_env"]
        with subprocess.Popen(serve, cwd=folder, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603
            assert server.stderr is not None
            terminal.show(f"{' '.join(serve)} &", prompt="$ ")
            terminal.show(server.stderr.readline().rstrip())
            terminal.show("")
            (folder / "play.py").write_text(PROGRAM)
            terminal.run("cat", "play.py")
            terminal.run("python", "play.py")
            server.terminate()
        terminal.save(Path(sys.argv[1]) if sys.argv[1:] else PICTURE)


if __name__ == "__main__":
    main()
