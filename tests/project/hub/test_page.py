"""The page about publishing, played by a reader who has a Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...docs.page import Page
from ...docs.playing import play_page
from .server import TOKEN, Hub

pytestmark = pytest.mark.slow


@pytest.mark.real
def test_the_blocks_of_the_page_run(hub: Hub, tmp_path: Path) -> None:
    hub.add("openenv/echo_env", {"openenv.yaml": b"name: echo_env\n", "Dockerfile": b"FROM a\n", "__init__.py": b""})
    given = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    play_page(Page("docs/publish.md"), tmp_path, frozenset({"hub"}), **given)
    assert hub.repos.keys() == {"openenv/echo_env", "tester/word_hunt", "tester/my-echo", "tester/echo-again"}
    assert hub.repos["tester/my-echo"].variables == {"LEVEL": "3"}
    assert hub.repos["tester/word_hunt"].sdk == "docker"
