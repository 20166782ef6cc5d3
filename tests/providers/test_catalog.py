"""Names of providers, as commands take them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from openenv import providers
from openenv.errors import UsageError
from openenv.providers.base import Provider
from openenv.providers.catalog import CATALOG, catalog_entry


def test_every_entry_is_a_provider_that_is_public() -> None:
    for name, each in CATALOG.items():
        assert name == each.name
        assert each.class_name in providers.__all__
        assert issubclass(each.load(), Provider)


def test_every_provider_of_the_package_is_in_it() -> None:
    made = {name for name in providers.__all__ if name.endswith("Provider")}
    assert made - {"ContainerProvider", "RuntimeProvider", "Provider", "SingleServerProvider"} == {
        each.class_name for each in CATALOG.values()
    }


def test_a_name_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"no provider 'clouds'. Available: local, .*ray"):
        catalog_entry("clouds")


def test_one_is_made_with_the_arguments_of_its_class() -> None:
    provider = catalog_entry("local").make(start_timeout_s=7.0)
    assert provider.ready_timeout_s == 7.0


@pytest.mark.parametrize("name", ["swarm", "uv"])
def test_an_argument_that_there_is_not_is_refused_before_the_place_is_asked(name: str) -> None:
    with pytest.raises(UsageError, match=r"Provider has no argument colour. Its arguments: .*start_rate"):
        catalog_entry(name).make(colour="red")


def test_looking_loads_nothing_of_the_extras() -> None:
    program = """
import sys
from openenv.providers.catalog import CATALOG
for each in CATALOG.values():
    each.load()
loaded = {"ray", "docker", "kr8s", "huggingface_hub", "httpx"} & sys.modules.keys()
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True)
