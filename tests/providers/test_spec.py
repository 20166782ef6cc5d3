"""What can be asked for, and what cannot."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.errors import UsageError
from openenv.providers import LaunchSpec, Resources


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ({"image": "a:1"}, "image"),
        ({"image": "a:1", "command": ["serve"]}, "image"),
        ({"project": "."}, "project"),
        ({"target": "echo"}, "target"),
        ({"command": ["serve"]}, "command"),
    ],
)
def test_the_form_says_what_it_is_made_from(given: dict[str, Any], form: str) -> None:
    assert LaunchSpec(**given).form == form


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "got none"),
        ({"image": "a", "target": "b"}, "got image, target"),
        ({"command": "serve me"}, "list of strings"),
        ({"command": []}, "list of strings"),
        ({"command": ["serve", 8000]}, "list of strings"),
        ({"target": "a", "env_vars": {"PORT": 8000}}, "env_vars must be strings: PORT"),
        ({"target": "a", "port": 0}, "port must be from 1"),
        ({"target": "a", "port": 65_536}, "port must be from 1"),
        ({"target": "a", "replicas": 0}, "replicas must be 1 or more"),
        ({"target": "a", "one_per_gpu": True}, "one_per_gpu needs"),
        ({"target": "a", "api_key": "two,keys"}, "or commas"),
        ({"target": "a", "api_key": "a key"}, "not contain whitespace"),
    ],
)
def test_what_is_no_specification(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        LaunchSpec(**given)
    assert "two,keys" not in str(caught.value)


def test_how_many_servers_and_gpus() -> None:
    spec = LaunchSpec(target="a", replicas=3, resources=Resources(gpus=2))
    assert (spec.count, spec.gpus_each) == (3, 2)
    spec = spec.changed(one_per_gpu=True)
    assert (spec.count, spec.gpus_each) == (2, 1)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (1024, 1024),
        ("1024", 1024),
        ("512m", 512 * 1024**2),
        ("512Mi", 512 * 1024**2),
        ("512MiB", 512 * 1024**2),
        ("1.5g", 3 * 1024**3 // 2),
        (" 2 GB ", 2 * 1024**3),
        (None, None),
    ],
)
def test_sizes_of_memory(given: Any, size: int | None) -> None:
    assert Resources(memory=given).memory_bytes == size


@pytest.mark.parametrize("given", ["much", "", "m", "-1g", 0, "inf", "nan", "1x", "12q"])
def test_what_is_no_size(given: Any) -> None:
    with pytest.raises(UsageError, match="memory must be"):
        Resources(memory=given)


@pytest.mark.parametrize("given", [{"cpus": 0}, {"cpus": float("nan")}, {"gpus": -1}, {"processes": 0}])
def test_what_is_no_amount(given: Any) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        Resources(**given)


def test_no_secret_is_in_its_text() -> None:
    spec = LaunchSpec(target="a", api_key="hush-hush", env_vars={"K": "hush"}, options={"k": "hush"})
    assert "hush" not in repr(spec)
