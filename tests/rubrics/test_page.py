"""`docs/rubrics.md` is one program, which prints what the page says."""

from __future__ import annotations

import subprocess
import sys

from tests.pages import assert_printed, examples


def test_the_examples_of_the_page_run(tmp_path):
    program = examples("docs/rubrics.md")
    (tmp_path / "page.py").write_text(program)
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_printed(program, done.stdout)
