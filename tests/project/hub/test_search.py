"""`openenv discover --hub` against the stand-in: Spaces with the tag, by their cards."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from openenv.cli.main import app

from .server import Fault, Hub

CARD = b"---\ntitle: Word hunt\nlicense: mit\ntags:\n- openenv\n- words\n---\n"


def test_the_spaces_with_the_tag_are_found_once(hub: Hub, tmp_path: Path) -> None:
    hub.add("acme/word_hunt", {"README.md": CARD})
    hub.add("acme/word_demo", {"README.md": b"---\ntags:\n- demo\n---\n"})
    hub.add("acme/word_hidden", {"README.md": CARD}, private=True)
    options = ["--hub", "--local", str(tmp_path), "--filter", "source=hub", "--json"]
    found = CliRunner().invoke(app, ["discover", "word hunt", *options])
    assert [
        (each["name"], each["use"], each["license"], each["score"]) for each in json.loads(found.stdout)["results"]
    ] == [("acme/word_hunt", "openenv pull acme/word_hunt", "mit", 100)]


def test_a_hub_that_refuses_is_an_error_in_one_line(hub: Hub, tmp_path: Path) -> None:
    hub.faults.append(Fault("GET /api/spaces", 403))
    done = CliRunner().invoke(app, ["discover", "--hub", "--local", str(tmp_path)])
    assert done.exit_code == 1
    assert "searching the Spaces of the Hub" in str(done.exception)
