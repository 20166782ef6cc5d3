"""What the documents say must be so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .cli.process import serving
from .pages import assert_printed, examples

ROOT = Path(__file__).parent.parent


def test_the_settings_page_is_what_the_code_says():
    script = ROOT / "scripts" / "settings_table.py"
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "settings.md").read_text() == printed


def test_the_tour_of_the_readme_runs(tmp_path):
    """The Python blocks of the README are one program, which prints what the README says."""
    program = examples("README.md")
    (tmp_path / "tour.py").write_text(program)
    done = subprocess.run([sys.executable, "tour.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_printed(program, done.stdout)


@pytest.mark.real
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_examples_of_the_http_page_run():
    """The shell blocks are one script, which prints what the page says, in that order."""
    script = examples("docs/http.md", "sh")
    with serving("echo") as server:
        environment = {**os.environ, "URL": server.url, "no_proxy": "*"}
        done = subprocess.run(
            ["bash", "-eu", "-c", script], capture_output=True, text=True, env=environment, timeout=30, check=True
        )
    assert_printed(script, done.stdout)


@pytest.mark.real
def test_the_examples_of_the_contract_page_run(tmp_path):
    """Each shell or Python block prints what it says, in that order; the shell blocks are one script."""
    script, program = examples("docs/contract.md", "sh"), examples("docs/contract.md")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for source, command in ((script, ["bash", "-eu", "-c", script]), (program, [sys.executable, "-c", program])):
        environment = {**os.environ, "PATH": path}
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert_printed(source, done.stdout)


def test_the_example_of_the_page_about_names_runs(tmp_path):
    program = examples("docs/auto.md")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_printed(program, done.stdout)
