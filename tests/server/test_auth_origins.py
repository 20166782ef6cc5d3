from __future__ import annotations

import pytest

from openenv.errors import Forbidden, UsageError
from openenv.server.auth import Origins
from openenv.settings import is_loopback

AFAR = "192.0.2.5"


def lets_in(origin: str, host: str, allowed: str | None = None, local: str | None = AFAR) -> bool:
    try:
        Origins(allowed).check(origin.encode(), host.encode(), local)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://example.org", "example.org", True),
        ("https://example.org", "example.org", True),
        ("https://example.org", "example.org:443", True),
        ("http://Example.ORG", "eXample.org:80", True),
        ("http://example.org:8000", "example.org:8000", True),
        ("http://[2001:db8::1]:8000", "[2001:db8::1]:8000", True),
        ("http://example.org:8000", "example.org", False),
        ("http://example.org", "example.org:8000", False),
        ("https://example.org", "example.org:80", False),
        ("http://evil.example", "example.org", False),
        ("http://example.org.evil.example", "example.org", False),
        ("http://example.org@evil.example", "example.org", False),
        ("http://evil.example/example.org", "example.org", False),
        ("http://evil.example", "example.org,evil.example", False),
        ("null", "null", False),
        ("null", "example.org", False),
        ("", "", False),
        ("http://", "", False),
        ("http://example.org:port", "example.org:port", False),
        ("http://[::1", "[::1", False),
        ("\xff", "\xff", False),
    ],
)
def test_a_page_of_the_server_itself_may_use_it(origin, host, same):
    assert lets_in(origin, host) is same


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://localhost:8000", "localhost:8000", True),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://app.localhost:8000", "app.localhost:8000", True),
        ("http://rebound.example:8000", "rebound.example:8000", False),
        ("http://192.0.2.7:8000", "192.0.2.7:8000", False),
    ],
)
@pytest.mark.parametrize("local", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_on_loopback_a_name_that_was_pointed_there_is_not_the_servers_own(origin, host, own, local):
    assert lets_in(origin, host, local=local) is own


def test_origins_that_are_allowed_may_use_it_under_any_host():
    allowed = "https://one.example, http://two.example:8080/ ,null"
    for origin in ("https://one.example", "https://ONE.example:443", "http://two.example:8080", "null"):
        assert lets_in(origin, "other", allowed, local="127.0.0.1")
    for origin in ("http://one.example", "https://two.example:8080", "https://one.example.evil.example"):
        assert not lets_in(origin, "other", allowed)


def test_a_star_allows_all():
    assert lets_in("http://anywhere.example", "other", "*", local="127.0.0.1")


def test_the_error_names_the_page_and_the_setting():
    with pytest.raises(Forbidden) as raised:
        Origins(None).check(b"http://evil.example" + b"x" * 1000, b"host", None)
    assert "http://evil.example" in raised.value.message
    assert "OPENENV_ALLOWED_ORIGINS" in raised.value.message
    assert len(raised.value.message) < 500


@pytest.mark.parametrize("name", ["example.org", "https://", "http://a b/c"])
def test_a_setting_that_names_no_origin(name):
    with pytest.raises(UsageError, match="OPENENV_ALLOWED_ORIGINS"):
        Origins(f"https://fine.example,{name}")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_what_is_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", [None, "", "0.0.0.0", "::", "192.168.0.1", "localhost.example", "notlocalhost"])
def test_what_is_not(host):
    assert not is_loopback(host)


def knows(
    host: str | None, local: str | None = "127.0.0.1", origins: str | None = None, hosts: str | None = None
) -> bool:
    try:
        Origins(origins, hosts).check_host(None if host is None else host.encode("latin-1"), local)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost", True),
        ("LocalHost:8000", True),
        ("localhost.:8000", True),
        ("127.0.0.1:8000", True),
        ("127.9.9.9", True),
        ("[::1]:8000", True),
        ("app.localhost", True),
        (None, True),
        ("rebound.example:8000", False),
        ("localhost.evil.example", False),
        ("192.0.2.7", False),
        ("", False),
        ("localhost:port", False),
        ("evil.example/localhost", False),
        ("localhost@evil.example", False),
        ("evil.example@localhost", False),
        ("\xff", False),
    ],
)
@pytest.mark.parametrize("local", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_names_that_a_server_on_loopback_goes_by(host, known, local):
    assert knows(host, local) is known


def test_elsewhere_a_server_goes_by_every_name():
    assert knows("anything.example", AFAR)
    assert knows("anything.example", None)


def test_settings_name_more_hosts():
    assert knows("proxy.example:8443", hosts="other.example, Proxy.Example")
    assert not knows("sub.proxy.example", hosts="proxy.example")
    assert knows("anything.example", hosts="*")
    assert knows("ui.example", origins="https://ui.example:8443")
    with pytest.raises(Forbidden, match="OPENENV_ALLOWED_HOSTS"):
        Origins(None, "proxy.example").check_host(b"rebound.example", "127.0.0.1")
    for wrong in ("http://proxy.example", "a b", "proxy.example/path"):
        with pytest.raises(UsageError, match="allowed_hosts"):
            Origins(None, wrong)
