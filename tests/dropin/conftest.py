"""Installing takes half a minute: it is done once, for all tests of this folder."""

from __future__ import annotations

import pytest

from .installation import PEER_PYTHON, Installation, Wheels, build, install_ours, install_peer


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Our project and the three packages, built."""
    return build(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory, wheels: Wheels) -> Installation:
    """Our wheel and the three packages in a fresh virtual environment."""
    return install_ours(tmp_path_factory.mktemp("ours"), wheels)


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory, wheels: Wheels) -> Installation:
    """The released peer and the three packages."""
    if not PEER_PYTHON.exists():
        pytest.skip("the released peer is not installed: make .venv-peer/.installed")
    return install_peer(tmp_path_factory.mktemp("peer"), wheels)
