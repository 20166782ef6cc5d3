"""Demos that cannot run here are refused before anything starts. `tests/real/test_bench_demo.py` runs one."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.demo import Demo, check_demo
from openenv.errors import MissingExtra, UsageError

DEMO = Demo(sessions=8, episodes=4, concurrency=2, output_dir=Path("nowhere"))


def test_a_good_demo_is_accepted():
    check_demo(DEMO)


@pytest.mark.parametrize("name", ["sessions", "concurrency"])
@pytest.mark.parametrize("amount", [0, 100_000_000])
def test_sessions_that_cannot_be_had_are_refused(name, amount):
    with pytest.raises(UsageError):
        check_demo(replace(DEMO, **{name: amount}))


@pytest.mark.parametrize(("package", "extra"), [("matplotlib", "bench"), ("gymnasium", "gymnasium")])
def test_what_is_not_installed_is_named(monkeypatch, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package} is not installed: pip install 'openenv\[{extra}\]'"):
        check_demo(DEMO)
