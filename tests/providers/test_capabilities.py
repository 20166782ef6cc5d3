"""What a place cannot do is said before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.errors import UsageError
from openenv.providers import Capabilities, LaunchSpec, Resources

SMALL = Capabilities(forms=frozenset({"image"}), replicas=False, limits=frozenset({"memory"}))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"target": "echo"}, "Place does not support target: use image"),
        ({"image": "a", "replicas": 2}, "one server per deployment"),
        ({"image": "a", "resources": Resources(gpus=1)}, "does not support GPUs"),
        ({"image": "a", "resources": Resources(cpus=1, memory="1g")}, r"cannot limit cpus \(it limits memory\)"),
        ({"image": "a", "options": {"colour": "red"}}, "no option colour. Its options: none"),
    ],
)
def test_what_it_cannot_do(spec: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        SMALL.check("Place", LaunchSpec(**spec))


def test_what_it_can_do() -> None:
    SMALL.check("Place", LaunchSpec(image="a", resources=Resources(memory="1g")))
    large = Capabilities(forms=frozenset({"image", "target"}), gpus=True, options=None)
    spec = LaunchSpec(target="a", replicas=9, resources=Resources(gpus=1), options={"colour": "red"})
    large.check("Place", spec)
    some = Capabilities(forms=frozenset({"target"}), gpus=True, options=frozenset({"colour", "size"}))
    some.check("Place", spec)
    with pytest.raises(UsageError, match="no option shape. Its options: colour, size"):
        some.check("Place", LaunchSpec(target="a", options={"shape": "round", "size": 1}))
