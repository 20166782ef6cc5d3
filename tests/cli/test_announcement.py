from __future__ import annotations

import ssl

import pytest

from openenv.cli.serve import check_tls, key_words, tls_options, warning_of_keys, with_keys
from openenv.errors import UsageError
from openenv.settings import ServerSettings

from .certificates import certificate


def settings(**values) -> ServerSettings:
    return ServerSettings.read({}, **values)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "server.example", ""])
def test_off_loopback_a_key_is_made(host):
    before = settings(host=host)
    after, key = with_keys(before)
    assert after.api_keys == key
    assert len(key) >= 32
    assert with_keys(before)[1] != key
    words = key_words(after, key)
    assert f'api_key="{key}"' in words
    assert "OPENENV_API_KEYS" in words
    assert warning_of_keys(after) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_on_loopback_none_is_asked_for(host):
    after, key = with_keys(settings(host=host))
    assert (after.api_keys, key) == ("none", None)
    assert key_words(after, key) == "no key"
    assert warning_of_keys(after) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_keys_that_are_set_stay_and_are_not_shown(host):
    after, key = with_keys(settings(host=host, api_keys="control:mine"))
    assert (after.api_keys, key) == ("control:mine", None)
    assert key_words(after, key) == "asks for a key"
    assert warning_of_keys(after) is None


def test_asking_for_none_off_loopback_is_warned_of():
    after, key = with_keys(settings(host="0.0.0.0", api_keys="none"))
    assert (after.api_keys, key) == ("none", None)
    assert key_words(after, key) == "no key"
    assert "every client that reaches this address can use it" in (warning_of_keys(after) or "")


def test_without_a_certificate_there_is_no_tls():
    check_tls(settings())
    assert tls_options(settings()) == {}


def test_a_certificate_with_its_key(tmp_path):
    paths = certificate(tmp_path)
    found = settings(ssl_certfile=str(paths.chain), ssl_keyfile=str(paths.key))
    check_tls(found)
    assert tls_options(found)["ssl_cert_reqs"] == ssl.CERT_NONE
    mutual = found.model_copy(update={"ssl_ca_certs": str(paths.chain)})
    check_tls(mutual)
    assert tls_options(mutual)["ssl_cert_reqs"] == ssl.CERT_REQUIRED


def test_what_is_wrong_with_tls_is_said_before_anything_starts(tmp_path):
    paths = certificate(tmp_path, password="secret")
    chain, key = str(paths.chain), str(paths.key)
    check_tls(settings(ssl_certfile=chain, ssl_keyfile=key, ssl_keyfile_password="secret"))
    empty = tmp_path / "empty"
    empty.touch()
    for wrong in (
        {"ssl_keyfile": key},
        {"ssl_ca_certs": chain},
        {"ssl_certfile": chain},
        {"ssl_certfile": chain, "ssl_keyfile": key},
        {"ssl_certfile": chain, "ssl_keyfile": key, "ssl_keyfile_password": "another"},
        {"ssl_certfile": "/nowhere.pem", "ssl_keyfile": key},
        {"ssl_certfile": chain, "ssl_keyfile": key, "ssl_keyfile_password": "secret", "ssl_ca_certs": str(empty)},
    ):
        with pytest.raises(UsageError, match="--ssl-certfile") as raised:
            check_tls(settings(**wrong))
        assert "secret" not in raised.value.message
