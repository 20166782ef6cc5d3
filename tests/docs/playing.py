"""The blocks of a page played in turn, as a reader would who has nothing but this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..ports import held_port
from ..warm import WarmProcess, WarmPython
from .page import RUN, Block, Page

__all__ = ["play_page", "plays"]

LIMIT_S = 120.0
PLAYER = Path(__file__).parent / "play.py"
_PORT = re.compile(r"\b8000\b")


def plays(block: Block, have: frozenset[str] = frozenset()) -> bool:
    """Whether a block is run, or written to a file, where all this is there."""
    return block.needs <= have and (block.title is not None or block.language in RUN)


def play_page(
    page: Page,
    folder: Path,
    have: frozenset[str] = frozenset(),
    python: Path = Path(sys.executable),
    warm: WarmPython | None = None,
    **variables: str,
) -> None:
    """Runs what can be run.

    Port 8000 is another one, since somebody may have it.

    Args:
        folder: An empty one.
        have: What is there of that which blocks need.
        python: Of the virtual environment in which they run.
        warm: A process of `python` to fork, in place of one that starts.
        variables: Of the environment, besides those of this process.

    Raises:
        AssertionError: A block failed, or did not print what it promises; says which.
    """
    with held_port() as number:
        _play(page, folder, str(number), have, python, warm, variables)


def _play(
    page: Page,
    folder: Path,
    port: str,
    have: frozenset[str],
    python: Path,
    warm: WarmPython | None,
    variables: dict[str, str],
) -> None:
    blocks, home = folder / "blocks.json", folder / "home"
    blocks.write_text(json.dumps([_told(block, port) for block in page.blocks if plays(block, have)]))
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "OPENENV_"))}
    environment |= {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "PORT": port,
        "no_proxy": "*",
        **variables,
    }
    with (folder / "said").open("w+b") as said:
        if warm is None:
            process: subprocess.Popen[bytes] | WarmProcess = subprocess.Popen(
                [python, "-P", PLAYER, blocks], cwd=home, env=environment, stdout=said, stderr=said
            )
        else:
            out = dict.fromkeys((1, 2), said.fileno())
            process = warm.run(str(PLAYER), str(blocks), descriptors=out, environment=environment, folder=home)
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        assert code == 0, (folder / "said").read_text(errors="replace")


def _told(block: Block, port: str) -> dict[str, Any]:
    return {
        "place": block.place,
        "language": block.language,
        "source": block.source if block.title else _PORT.sub(port, block.source),
        "title": block.title,
        "background": block.background,
        "promises": [] if block.title else [_PORT.sub(port, promise) for promise in block.promises],
    }
