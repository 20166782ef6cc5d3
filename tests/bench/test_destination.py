"""Where a storm goes, and from where."""

import pytest

from openenv.bench import thin_client
from openenv.bench.thin_client import SESSIONS_PER_SOURCE, destination_of
from openenv.errors import UsageError


def test_an_address_is_read_in_every_form():
    found = destination_of("localhost:8000")
    assert (found.url, found.host, found.port, found.tls) == ("ws://localhost:8000/ws", "localhost", 8000, None)
    lines = found.handshake.split(b"\r\n")
    assert lines[0] == b"GET /ws HTTP/1.1"
    assert b"Host: localhost:8000" in lines
    assert found.handshake.endswith(b"\r\n\r\n")


def test_a_key_is_in_the_handshake_and_not_in_what_is_shown():
    found = destination_of("localhost:8000", "the-key")
    assert b"\r\nAuthorization: Bearer the-key\r\n\r\n" in found.handshake
    assert "the-key" not in repr(found)


def test_ports_are_those_of_the_scheme_and_queries_stay():
    plain, secure = destination_of("http://example.test/a?b=c"), destination_of("https://example.test")
    assert (plain.port, secure.port) == (80, 443)
    assert plain.handshake.startswith(b"GET /a/ws?b=c HTTP/1.1\r\n")
    assert plain.tls is None
    assert secure.tls is not None


def test_what_is_no_address_is_refused():
    with pytest.raises(UsageError, match="base_url"):
        destination_of("ftp://example.test")


def test_sessions_on_this_machine_come_from_many_addresses():
    found = destination_of("127.0.0.1:8000")
    sources = [found.source(number) for number in range(0, 20_000, SESSIONS_PER_SOURCE)]
    assert len(set(sources)) == len(sources)
    assert all(host.startswith("127.0.") and port == 0 for host, port in sources)
    assert found.source(1) == found.source(SESSIONS_PER_SOURCE - 1) != found.source(SESSIONS_PER_SOURCE)
    assert found.source(250 * SESSIONS_PER_SOURCE) == ("127.0.2.1", 0)


@pytest.mark.parametrize("url", ["example.test:80", "http://10.0.0.1", "http://[::1]:8000", "localhost:8000"])
def test_elsewhere_the_system_chooses(url):
    assert destination_of(url).source(5000) is None


def test_other_systems_have_one_loopback_address(monkeypatch):
    monkeypatch.setattr(thin_client.sys, "platform", "darwin")
    destination_of.cache_clear()
    assert destination_of("127.0.0.1:8000").source(0) is None
    destination_of.cache_clear()
