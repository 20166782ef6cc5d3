"""Wheels of the openenv that runs here."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from openenv.errors import UsageError
from openenv.project.image import from_index, own_wheel

METADATA = "Metadata-Version: 2.4\nName: openenv\nVersion: 9.1\n"


def installed(folder: Path, origin: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An openenv that an installer put there, and no other."""
    info = folder / "openenv-9.1.dist-info"
    info.mkdir(parents=True)
    (folder / "openenv").mkdir()
    (folder / "openenv" / "__init__.py").write_text("version = 9.1\n")
    (folder / "openenv" / ".hidden").write_text("dot\n")
    (info / "METADATA").write_text(METADATA)
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    (info / "entry_points.txt").write_text("[console_scripts]\nopenenv = openenv.cli:main\n")
    (info / "INSTALLER").write_text("pip\n")
    names = [
        "openenv/__init__.py",
        "openenv/.hidden",
        "openenv/__pycache__/__init__.cpython-311.pyc",
        "../../../bin/openenv",
        *(
            f"openenv-9.1.dist-info/{name}"
            for name in ("METADATA", "WHEEL", "entry_points.txt", "INSTALLER", "RECORD")
        ),
    ]
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
        names.append("openenv-9.1.dist-info/direct_url.json")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    found = importlib.metadata.PathDistribution(info)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: found)
    return folder


def test_what_came_from_an_index_needs_no_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path / "site", None, monkeypatch)
    assert from_index()
    assert own_wheel(tmp_path) is None


@pytest.mark.parametrize(
    "origin",
    [
        {"url": "file:///gone/openenv-9.1-py3-none-any.whl", "archive_info": {}},
        {"url": "file:///gone", "dir_info": {}},
        {"url": "https://h.example/openenv", "vcs_info": {"vcs": "git", "commit_id": "1"}},
    ],
)
def test_what_came_from_a_file_or_a_repository_is_put_into_a_wheel_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any]
) -> None:
    installed(tmp_path / "site", origin, monkeypatch)
    assert not from_index()
    wheel = own_wheel(tmp_path)
    assert wheel is not None
    assert wheel.name == "openenv-9.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = archive.read("openenv-9.1.dist-info/RECORD").decode()
    assert names == [
        "openenv/.hidden",
        "openenv/__init__.py",
        "openenv-9.1.dist-info/METADATA",
        "openenv-9.1.dist-info/WHEEL",
        "openenv-9.1.dist-info/entry_points.txt",
        "openenv-9.1.dist-info/RECORD",
    ]
    assert [line.partition(",")[0] for line in record.splitlines()] == names


def test_the_same_files_give_the_same_wheel_which_pip_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path / "site", {"url": "file:///gone.whl", "archive_info": {}}, monkeypatch)
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        wheel = own_wheel(tmp_path / name)
        assert wheel is not None
        made.append(wheel)
    assert made[0].read_bytes() == made[1].read_bytes()
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
    ]
    subprocess.run(
        [*pip, "--root-user-action=ignore", "--target", tmp_path / "into", made[0]], check=True, timeout=60
    )
    assert (tmp_path / "into" / "openenv" / "__init__.py").read_text() == "version = 9.1\n"


def test_files_that_are_gone_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = installed(tmp_path / "site", {"url": "file:///gone.whl", "archive_info": {}}, monkeypatch)
    (site / "openenv" / "__init__.py").unlink()
    with pytest.raises(UsageError, match="__init__.py.*reinstall it"):
        own_wheel(tmp_path)
    (site / "openenv-9.1.dist-info" / "RECORD").unlink()
    with pytest.raises(UsageError, match="without a list of its files"):
        own_wheel(tmp_path)


def test_a_checkout_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path / "site", {"url": f"file://{tmp_path}/gone", "dir_info": {"editable": True}}, monkeypatch)
    with pytest.raises(
        UsageError, match=f"no wheel for the image can be built from the openenv in {tmp_path}/gone.*folder `wheels`"
    ):
        own_wheel(tmp_path)


@pytest.mark.slow
def test_a_checkout_is_made_into_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling")
    checkout = tmp_path / "a checkout"
    (checkout / "openenv").mkdir(parents=True)
    (checkout / "openenv" / "__init__.py").write_text("")
    (checkout / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "openenv"\nversion = "9.2"\n'
    )
    installed(tmp_path / "site", {"url": checkout.as_uri(), "dir_info": {"editable": True}}, monkeypatch)
    wheel = own_wheel(tmp_path)
    assert wheel is not None
    assert wheel.name.startswith("openenv-9.2-")
