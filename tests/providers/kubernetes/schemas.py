"""The published OpenAPI schemas of Kubernetes, of every version that kubernetes-validate carries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

pytest.importorskip("kr8s", reason="make infra installs what these tests need")
schema_contents = pytest.importorskip(
    "kubernetes_validate.utils", reason="make infra installs what these tests need"
).schema_contents

__all__ = ["faults_of"]


def faults_of(thing: dict[str, Any], version: str) -> list[str]:
    """What the schema of its kind finds wrong with an object, fields that there are not included."""
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", thing["apiVersion"])
    kind = thing["kind"].lower()
    group = "meta-v1" if kind in {"deleteoptions", "status"} else group
    return [
        f"{'.'.join(map(str, fault.path))}: {fault.message:.300}" for fault in _faults(kind, group, version, thing)
    ]


def _faults(kind: str, group: str, version: str, thing: dict[str, Any]) -> Iterator[Any]:
    yield from _validator(f"{kind}-{group}", version).iter_errors(thing)


@cache
def _validator(name: str, version: str) -> Any:
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    schema = Resource.from_contents(schema_contents(f"{folder}/{name}.json", version))
    registry: Any = schema @ (_definitions(folder, version) @ Registry())
    return jsonschema.validators.Draft202012Validator(schema.contents, registry=registry)


@cache
def _definitions(folder: str, version: str) -> Any:
    return Resource.from_contents(schema_contents(f"{folder}/_definitions.json", version))
