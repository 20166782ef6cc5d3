"""The page of settings is what the code says."""

from __future__ import annotations

import subprocess
import sys

from .page import ROOT


def test_the_settings_page_is_what_the_code_says() -> None:
    script = ROOT / "scripts" / "settings_table.py"
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "settings.md").read_text() == printed
