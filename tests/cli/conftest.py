"""Commands that run inside the tests' own process."""

from __future__ import annotations

import pytest

from openenv.settings import ServerSettings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No setting is set, and what the command exports is forgotten."""
    for setting in ServerSettings.table():
        for variable in setting.variables:
            # Set first: only what the test changed is put back, and `export` changes it unseen.
            monkeypatch.setenv(variable, "")
            monkeypatch.delenv(variable)
