"""What lies in a folder of records, and what it is called."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from time import gmtime, strftime, time

__all__ = ["ARRAYS", "JSONL", "PARQUET", "PART", "array_path", "file_name", "new_stem", "written_in"]

JSONL = ".jsonl"
"""A file that is being written, or was never rotated."""
PARQUET = ".parquet"
"""The same file after rotation. Where both are there, this one is whole and the other one about to go."""
PART = ".part"
"""What is not whole yet, behind the name that it will have."""
ARRAYS = "arrays"
"""The folder of large arrays and bytes."""
_OURS = re.compile(r"\d{8}T\d+-[0-9a-f]{6}-\d{6}\.jsonl")


def new_stem() -> str:
    """What the files of one recorder begin with: names sort by when it began, and no two are alike."""
    now = time()
    return f"{strftime('%Y%m%dT%H%M%S', gmtime(now))}{int(now % 1 * 1000):03d}-{secrets.token_hex(3)}"


def file_name(stem: str, number: int) -> str:
    """The name of a recorder's file of that number, from 1."""
    return f"{stem}-{number:06d}{JSONL}"


def written_in(folder: Path) -> list[Path]:
    """The files of lines that recorders made, by name. Others that lie there (exports, downloads) are the user's."""
    return sorted(path for path in folder.glob(f"*{JSONL}") if _OURS.fullmatch(path.name))


def array_path(folder: Path, digest: str, suffix: str) -> Path:
    """Where a large array (`.npy`) or large bytes (`.bin`) lie.

    Args:
        folder: Of the records.
        digest: SHA-256 of the file, in hex.
        suffix: One of the two.
    """
    return folder / ARRAYS / digest[:2] / f"{digest}{suffix}"
