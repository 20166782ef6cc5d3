"""What these tests need besides Python: Chromium, Playwright, and the page as npm builds it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["AXE", "OUT", "ROOT", "browser_path", "build"]

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out" / "web"
WEB = ROOT / "web"
STATIC = ROOT / "src/openenv/server/page/static"
AXE = WEB / "node_modules/axe-core/axe.min.js"
_SOURCES = ("src", "build", "index.html", "rollouts.html", "package-lock.json", "vite.config.ts", "../typescript/src")
LIMIT_S = 300


def browser_path() -> str:
    """Chromium without windows (half the CPU time) or with them, or what CHROMIUM names; else the test is skipped."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"no {names[0]} in PATH: install Debian's package of that name")
    return found


def build() -> None:
    """Builds the page if its sources are newer than it; without npm what is there must do."""
    index = STATIC / "index.html"
    if index.is_file() and AXE.is_file() and index.stat().st_mtime >= _newest():
        return
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("the page is not built, and there is no npm in PATH to build it")
    if not AXE.is_file():
        subprocess.run([npm, "ci", "--silent"], cwd=WEB, check=True, timeout=LIMIT_S)
    subprocess.run([npm, "run", "build", "--silent"], cwd=WEB, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)


def _newest() -> float:
    files = [
        file for name in _SOURCES for file in ((WEB / name).rglob("*") if (WEB / name).is_dir() else [WEB / name])
    ]
    return max(file.stat().st_mtime for file in files if file.is_file())
