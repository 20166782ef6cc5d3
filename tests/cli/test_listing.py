from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import openenv
from openenv.cli.main import app
from tests.auto.distributions import files_of, install
from tests.modules import forget

# A package that is waited for would take longer.
END_S = 30.0


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that distributions are installed in."""
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    importlib.invalidate_caches()
    yield place
    forget(tmp_path)


def listed(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["list", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def by_name() -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(listed("--json"))["environments"]}


def test_the_table_says_name_version_what_where_and_what_is_wrong(site: Path) -> None:
    install(site, "openenv-fog", "fog_env", files_of("fog_env", client="import unheard_of\n"))
    text = listed()
    folder = Path(openenv.__file__).parent / "envs" / "echo"
    for word in (
        "echo",
        "Repeats every message",
        str(folder),
        "comes with openenv",
        "openenv-fog",
        "0.1.0",
        "A maze",
    ):
        assert word in text
    assert text.count("cannot be used:") == 1
    assert "unheard_of" in text
    assert "Traceback" not in text


def test_the_json_says_whether_each_can_be_imported_and_why_not(site: Path) -> None:
    install(site)
    install(site, "openenv-fog", "fog_env", files_of("fog_env", client="import unheard_of\n"))
    install(site, "openenv-mud", "mud_env", files_of("mud_env", manifest="port: many\n"))
    install(site, "openenv-exit", "exit_env", files_of("exit_env", __init__="import os; print('{'); os._exit(7)\n"))
    install(site, "openenv-bare", "bare_env", files_of("bare_env", manifest=None))
    found = by_name()
    assert (found["echo"]["bundled"], found["echo"]["problem"]) == (True, None)
    assert Path(found["echo"]["folder"], "openenv.yaml") == Path(found["echo"]["manifest"])
    assert {name for name in found if found[name]["importable"]} >= {"maze", "bare", "echo", "benchmark"}
    assert (found["maze"]["distribution"], found["maze"]["version"]) == ("openenv-maze_env", "0.1.0")
    assert found["maze"]["description"] == "A maze"
    assert "unheard_of" in found["fog"]["problem"]
    assert "line 1, column 7" in found["mud"]["problem"]
    assert "exit code 7" in found["exit"]["problem"]
    assert not any(found[name]["importable"] for name in ("fog", "mud", "exit"))
    assert all("\n" not in (each["problem"] or "") for each in found.values())


DEAF = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
held = open({reached!r}, "wb")
time.sleep(100)
"""


@pytest.mark.real
def test_ctrl_c_ends_a_package_that_does_not_heed_it(site: Path) -> None:
    reached = site.parent / "reached"
    os.mkfifo(reached)  # opened by the package when it is deaf, and by the test for as long
    install(site, "openenv-fog", "fog_env", files_of("fog_env", client=DEAF.format(reached=str(reached))))
    process = subprocess.Popen(
        [sys.executable, "-m", "openenv", "list"],
        env={**os.environ, "PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with reached.open("rb") as pipe:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=END_S)
            assert pipe.read() == b""  # the package's process is gone
    finally:
        process.kill()
    assert (process.returncode, out, err.strip()) == (130, "", "")
