"""Build a wheel of the running openenv, for images that must have the same version."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from ...errors import UsageError
from ..catalog import origin_of

NAME = "openenv"
MADE_S = 300.0
"""Maximum of seconds to build a wheel of a checkout."""
# The same contents make the same file, so that its image layer is cached.
_EPOCH = (2020, 2, 2, 0, 0, 0)
# Files that installers write and wheels do not contain.
_OF_INSTALLERS = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json", "uv_build.json"}


def from_index() -> bool:
    """Whether the running openenv came from a package index, from which an image can also install it."""
    return not origin_of(importlib.metadata.distribution(NAME))


def own_wheel(folder: Path) -> Path | None:
    """Builds a wheel of the running openenv.

    Args:
        folder: Where to write it.

    Returns:
        The wheel. None if the running openenv came from a package index.

    Raises:
        UsageError: The build failed.
    """
    distribution = importlib.metadata.distribution(NAME)
    origin = origin_of(distribution)
    if not origin:
        return None
    if (origin.get("dir_info") or {}).get("editable"):
        return _of_checkout(Path(unquote(urlsplit(origin["url"]).path)), folder)
    return _of_installed(distribution, folder)


def _of_checkout(checkout: Path, folder: Path) -> Path:
    """Builds the wheel with pip or uv, whichever is installed."""
    if not checkout.is_dir():
        raise _not_made(checkout, "the folder does not exist")
    before = set(folder.glob("*.whl"))
    outcome = None
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    uv = shutil.which("uv")
    makers: list[list[str]] = []
    has_pip = importlib.util.find_spec("pip") is not None
    if has_pip and importlib.util.find_spec("hatchling") is not None:  # then nothing is downloaded
        makers.append([*pip, "--no-build-isolation", "--wheel-dir", str(folder), str(checkout)])
    if uv is not None:
        makers.append([uv, "build", "--quiet", "--wheel", "--out-dir", str(folder), str(checkout)])
    if has_pip:
        makers.append([*pip, "--wheel-dir", str(folder), str(checkout)])
    for command in makers:
        outcome = subprocess.run(  # noqa: S603 - pip or uv
            command, capture_output=True, text=True, check=False, timeout=MADE_S
        )
        made = set(folder.glob("*.whl")) - before
        if outcome.returncode == 0 and made:
            return made.pop()
    said = "there is neither pip nor uv" if outcome is None else (outcome.stderr.strip() or "no message")
    raise _not_made(checkout, said.splitlines()[-1])


def _not_made(checkout: Path, reason: str) -> UsageError:
    return UsageError(
        f"no wheel for the image can be built from the openenv in {checkout}: {reason}; put one into a "
        "folder `wheels` of the project"
    )


def _of_installed(distribution: importlib.metadata.Distribution, folder: Path) -> Path:
    """Builds a wheel from the installed files."""
    files = {
        PurePosixPath(file): Path(str(distribution.locate_file(file)))
        for file in distribution.files or ()
        if ".." not in file.parts and file.suffix != ".pyc" and not file.is_absolute()
    }
    info = next((file.parent for file in files if file.name == "METADATA"), None)
    if info is None:
        raise UsageError(f"{NAME} was installed without a list of its files, so no wheel can be built: reinstall it")
    parts = {file: path for file, path in files.items() if file.parent != info or file.name not in _OF_INSTALLERS}
    lines = (distribution.read_text("WHEEL") or "").splitlines()
    tag = next((line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")), "py3-none-any")
    wheel = folder / f"{NAME}-{distribution.version}-{tag}.whl"
    try:
        with zipfile.ZipFile(wheel, "w") as archive:
            record = [_written(archive, file, path.read_bytes()) for file, path in sorted(parts.items())]
            record.append(f"{info}/RECORD,,")
            _written(archive, info / "RECORD", ("\n".join(record) + "\n").encode())
    except OSError as error:
        raise UsageError(f"no wheel can be built from the installed {NAME}: {error}; reinstall it") from None
    return wheel


def _written(archive: zipfile.ZipFile, name: PurePosixPath, contents: bytes) -> str:
    """Writes a file. Returns its line for RECORD."""
    entry = zipfile.ZipInfo(str(name), _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, contents)
    digest = base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(contents)}"
