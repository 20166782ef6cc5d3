"""Installs PufferLib into the environment of this interpreter, from its source distribution on PyPI, for the tests.

    .venv-trainers/bin/python scripts/install_pufferlib.py

`pip install pufferlib` does not suffice: its `setup.py` downloads raylib for browsers and Box2D from GitHub, which
the tests must not need, and it requires releases of Gymnasium and numpy that are older than those it works with.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

VERSION = "3.0.0"
TESTED = ("cartpole", "squared")  # environments in C; each of the others takes some seconds to compile
DOWNLOADS = ("raylib-5.5_webassembly", "box2d-web", "box2d-linux-amd64")  # folders that setup.py downloads if absent


def main() -> None:
    """Downloads, builds and installs it."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(source())) as archive:
            archive.extractall(folder, filter="data")
        project = Path(folder, f"pufferlib-{VERSION}")
        for name in DOWNLOADS:
            (project / name).mkdir()
        for binding in project.glob("pufferlib/ocean/*/binding.c"):
            if binding.parent.name not in TESTED:
                binding.unlink()
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        environ = {**os.environ, "NO_TRAIN": "1"}  # without its trainer's extension for torch
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", str(project)], env=environ, check=True)  # noqa: S603


def source() -> bytes:
    """The source distribution."""
    with urllib.request.urlopen("https://pypi.org/pypi/pufferlib/json") as reply:
        (release,) = [each for each in json.load(reply)["releases"][VERSION] if each["packagetype"] == "sdist"]
    with urllib.request.urlopen(release["url"]) as reply:  # noqa: S310 - as PyPI gave it
        content: bytes = reply.read()
    if hashlib.sha256(content).hexdigest() != release["digests"]["sha256"]:
        raise SystemExit(f"{release['url']} has another SHA-256 than PyPI says: try again")
    return content


if __name__ == "__main__":
    main()
