from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"


def test_the_examples_of_the_page_run(tmp_path):
    """The Python blocks are one program, which prints what the page says."""
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    (tmp_path / "page.py").write_text(program)
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"#> (.*)", program) == done.stdout.splitlines()
