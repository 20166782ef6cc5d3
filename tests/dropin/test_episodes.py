"""Episodes of packages as authors write them, played by their own clients: equal, whoever serves and whoever drives.

`logbook_env` uses the Context of FastMCP, `snippet_env` code mode, `duel_env` trajectory and asynchronous rubrics,
`harbor_env` rubrics, a transform and states of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .installation import DRIVERS, MORE, Installation
from .server import Server

pytestmark = [pytest.mark.real, pytest.mark.slow]

PACKAGES = (*MORE, "harbor_env")


def played(name: str, client: Installation, url: str) -> Any:
    """What came of the episodes of a package."""
    ended = client.run(DRIVERS / "episodes.py", url, name)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.rpartition("\n")[2])


@pytest.mark.parametrize("name", PACKAGES)
def test_episodes_are_equal_in_all_four_pairings(
    ours: Installation, peer: Installation, tmp_path: Path, name: str
) -> None:
    with Server(peer, name, "uvicorn", tmp_path) as served:
        as_released = played(name, peer, served.url)
        assert len(as_released) > 8
        assert played(name, ours, served.url) == as_released
    with Server(ours, name, "uvicorn", tmp_path) as served:
        assert played(name, peer, served.url) == as_released
        assert played(name, ours, served.url) == as_released
