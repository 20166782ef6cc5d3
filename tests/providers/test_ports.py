"""Ports that are free."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from openenv.providers.process import free_port, is_free


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_one_can_listen_there(host: str) -> None:
    port = free_port(host)
    assert is_free(port, host)
    with socket.create_server((host, port)):
        assert not is_free(port, host)
    assert is_free(port, host)


def test_nobody_gets_the_port_of_another_who_has_not_taken_it_yet() -> None:
    with ThreadPoolExecutor(8) as threads:
        ports = list(threads.map(lambda _: free_port(), range(200)))
    assert len(set(ports)) == len(ports)
