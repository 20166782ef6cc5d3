"""Certificates for tests: for 127.0.0.1 and a name, signed by themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

__all__ = ["Certificate", "certificate"]


class Certificate(NamedTuple):
    chain: Path
    key: Path


def certificate(folder: Path, password: str | None = None, host: str = "localhost") -> Certificate:
    """Makes one in a folder; without openssl the test is skipped."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl for a certificate")
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    names = ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host},IP:127.0.0.1"]
    protection = ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
    files = ["-keyout", str(made.key), "-out", str(made.chain)]
    kind = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run([openssl, *kind, *protection, *names, *files], check=True, capture_output=True)
    return made
