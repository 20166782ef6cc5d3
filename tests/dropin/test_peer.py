"""The released peer and we, client to server, both ways round: nobody notices a difference."""

from __future__ import annotations

import pytest

from .driven import Driven, every_check
from .installation import Installation

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Driven:
    return Driven(tmp_path_factory.mktemp("driven"))


@pytest.mark.parametrize(("name", "check"), every_check(ours=False))
def test_the_packages_run_under_the_peer_itself(peer: Installation, driven: Driven, name: str, check: str) -> None:
    assert (failure := driven.outcome(name, check, peer, peer, "uvicorn")) is None, failure


@pytest.mark.parametrize(("name", "check"), every_check(ours=False))
def test_the_peers_client_drives_our_server(
    ours: Installation, peer: Installation, driven: Driven, name: str, check: str
) -> None:
    assert (failure := driven.outcome(name, check, peer, ours, "serve")) is None, failure


@pytest.mark.parametrize(("name", "check"), every_check(ours=False))
def test_our_client_drives_the_peers_server(
    ours: Installation, peer: Installation, driven: Driven, name: str, check: str
) -> None:
    assert (failure := driven.outcome(name, check, ours, peer, "uvicorn")) is None, failure
