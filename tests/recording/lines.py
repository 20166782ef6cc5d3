"""What was recorded, as a test looks at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openenv.recording.storage import Blob

__all__ = ["Page", "lines_in"]


class Page:
    """Takes lines as a recorder does, and keeps them."""

    def __init__(self) -> None:
        self.epoch = 0.0
        self.texts: list[bytes] = []
        self.blobs: list[Blob] = []

    def append(self, line: bytes, blobs: list[Blob] | None = None) -> None:
        self.texts.append(line)
        self.blobs += blobs or []

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.texts]


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """All lines of all files of lines, in order. A torn one fails."""
    texts = [path.read_text() for path in sorted(folder.glob("*.jsonl"))]
    assert all(not text or text.endswith("\n") for text in texts)
    return [json.loads(line) for text in texts for line in text.splitlines()]
