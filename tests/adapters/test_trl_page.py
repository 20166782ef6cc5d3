"""What the page about trainers says must be so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.process import serving
from tests.pages import assert_printed, examples


@pytest.mark.real
def test_the_example_of_the_page_prints_what_it_says() -> None:
    program = examples("docs/trainers.md")
    with serving("echo") as server:
        told = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env={**os.environ, "URL": server.url, "no_proxy": "*"},
            timeout=30,
            check=True,
        ).stdout
    assert_printed(program, told)
