"""envs/tool_shop: its own tests."""

from __future__ import annotations

import pytest

from .own_tests import run_own_tests

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_what_it_promises_holds() -> None:
    assert run_own_tests("tool_shop") >= 40
