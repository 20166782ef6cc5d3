"""Who is who in a cluster: certificates that one authority signs, and kubeconfigs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

__all__ = ["Authority", "kubeconfig"]

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Authority:
    """A certificate authority with its files in a folder.

    Attributes:
        certificate: Its own certificate.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.certificate = folder / "ca.crt"
        self._key = folder / "ca.key"
        _openssl("req", "-x509", *_KEY, "-subj", "/CN=tests", "-keyout", self._key, "-out", self.certificate)

    def sign(self, name: str, subject: str, addresses: str = "") -> tuple[Path, Path]:
        """A certificate and its key.

        Args:
            name: Name of the files.
            subject: Whose it is, as openssl has it; O are groups of Kubernetes, CN is the user.
            addresses: Where its owner serves, as a subjectAltName; "" for one that only asks.
        """
        key, request, certificate = (self._folder / f"{name}.{ending}" for ending in ("key", "csr", "crt"))
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(
            "extendedKeyUsage=clientAuth,serverAuth\n" + (f"subjectAltName={addresses}\n" if addresses else "")
        )
        _openssl("req", *_KEY, "-subj", subject, "-keyout", key, "-out", request)
        by = ["-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-extfile", extensions]
        _openssl("x509", "-req", "-in", request, *by, "-out", certificate)
        return certificate, key

    def signing_key(self, name: str) -> tuple[Path, Path]:
        """A key that tokens are signed with, and its public part."""
        key, public = self._folder / f"{name}.key", self._folder / f"{name}.pub"
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
        _openssl("ec", "-in", key, "-pubout", "-out", public)
        return key, public


def kubeconfig(file: Path, server: str, authority: Path, user: dict[str, str], namespace: str = "default") -> Path:
    """Writes where a cluster is and who is asking; the file."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "real", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": "user", "namespace": namespace}}],
        "current-context": "real",
    }
    # Whoever reads it meanwhile finds the old one or the new one.
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(content))
    return beside.replace(file)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
