"""Images without a registry: the pause program, and an empty one, whose Pods mount this machine's Python."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import openenv

__all__ = ["EMPTY", "PAUSE", "mounted", "write_archive"]

PAUSE = "openenv.test/pause:1"
EMPTY = "openenv.test/empty:1"
_SOURCES = str(Path(openenv.__file__).parents[1])
_FOLDERS = ("tmp", "etc", "proc", "dev", "sys")
_TYPE = "application/vnd.oci.image"


def mounted(**variables: str) -> dict[str, Any]:
    """What a `LaunchSpec` of the empty image has besides its command: this machine's Python and this checkout."""
    wanted = ["/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix, _SOURCES]
    places = [place for place in dict.fromkeys(wanted) if Path(place).exists()]
    volumes = [{"name": f"place-{number}", "hostPath": {"path": place}} for number, place in enumerate(places)]
    mounts = [
        {"name": f"place-{number}", "mountPath": place, "readOnly": True} for number, place in enumerate(places)
    ]
    return {
        "image": EMPTY,
        "env_vars": {"PYTHONPATH": _SOURCES, "PYTHONDONTWRITEBYTECODE": "1", **variables},
        "options": {"pod": {"volumes": volumes}, "container": {"volumeMounts": mounts}, "pull_policy": "Never"},
    }


def write_archive(file: Path, pause: Path) -> None:
    """Writes both images to an OCI archive."""
    blobs: dict[str, bytes] = {}

    def put(blob: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(blob).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = blob
        return {"digest": f"sha256:{digest}", "size": len(blob)}

    def image(name: str, layer: bytes, config: dict[str, Any]) -> dict[str, Any]:
        there = put(layer)
        described = {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [there["digest"]]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": {"mediaType": f"{_TYPE}.config.v1+json", **put(json.dumps(described).encode())},
            "layers": [{"mediaType": f"{_TYPE}.layer.v1.tar", **there}],
        }
        named = {"io.containerd.image.name": name}
        return {"mediaType": f"{_TYPE}.manifest.v1+json", **put(json.dumps(manifest).encode()), "annotations": named}

    images = [
        image(PAUSE, _layer({"pause": pause.read_bytes()}), {"Entrypoint": ["/pause"]}),
        image(EMPTY, _layer({}), {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "WorkingDir": "/tmp"}),
    ]
    content = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', **blobs}
    content["index.json"] = json.dumps({"schemaVersion": 2, "manifests": images}).encode()
    file.write_bytes(_tar(content))


def _layer(files: dict[str, bytes]) -> bytes:
    return _tar(files, _FOLDERS)


def _tar(files: dict[str, bytes], folders: tuple[str, ...] = ()) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o777
            tar.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
