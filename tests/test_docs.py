"""What the documents say must be so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_settings_page_is_what_the_code_says():
    script = ROOT / "scripts" / "settings_table.py"
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "settings.md").read_text() == printed


def test_the_tour_of_the_readme_runs(tmp_path):
    """The Python blocks of the README are one program, which prints what the README says."""
    text = (ROOT / "README.md").read_text()
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    (tmp_path / "tour.py").write_text(program)
    done = subprocess.run([sys.executable, "tour.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line in re.findall(r"#> (.*)", program):
        assert line in done.stdout
