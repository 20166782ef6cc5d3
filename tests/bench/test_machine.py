"""What is written down about the machine."""

import os
import platform

from openenv import __version__
from openenv.bench import machine as module
from openenv.bench.machine import machine


def test_the_machine_and_what_runs_on_it_are_described():
    facts = machine()
    assert set(facts) == {"openenv", "Python", "system", "processor", "cores", "packages"}
    assert facts["openenv"] == __version__
    assert facts["cores"] == str(os.cpu_count())
    assert platform.python_version() in facts["Python"]
    assert "picows 2." in facts["packages"]


def test_a_system_that_tells_no_name_of_its_processor_tells_its_kind(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "none")
    assert platform.machine() in machine()["processor"] or platform.processor() == machine()["processor"]


def test_a_package_that_is_not_there_is_not_named(monkeypatch):
    monkeypatch.setattr(module, "_PACKAGES", ("picows", "no-such-package"))
    assert machine()["packages"].startswith("picows ")
    assert "no-such-package" not in machine()["packages"]
