"""Secrets in logs and errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.providers.redaction import key_of, redact, secrets_of

PLAIN = {"none", "null", "true", "false"}  # no secrets, though variables of secrets have these values


def test_secrets_are_told_by_the_names_of_their_variables() -> None:
    variables = {
        "HF_TOKEN": "token-1",
        "OPENAI_API_KEY": "key-22",
        "DB_PASSWORD": "password-333",
        "MODE": "production",
        "PORT": "8000",
    }
    assert secrets_of(variables) == ["password-333", "token-1", "key-22"]


def test_the_keys_of_a_server_are_secrets_one_by_one() -> None:
    assert set(secrets_of({"OPENENV_API_KEYS": "control:first-key,second-key"})) >= {"first-key", "second-key"}


def test_short_values_are_left_since_they_are_in_every_word() -> None:
    assert secrets_of({"KEY": "abc", "TOKEN": ""}) == []
    assert redact("abc is written", ["", "abc"]) == "abc is written"


def test_words_that_say_nothing_are_left() -> None:
    plain = {"OPENENV_API_KEYS": "none", "TOKENIZERS_PARALLELISM": "false", "AUTH": "True"}
    assert secrets_of(plain) == []
    assert redact("none of it is false", secrets_of(plain)) == "none of it is false"


def test_each_line_of_a_secret_is_one() -> None:
    key = "-----BEGIN KEY-----\nfirst-line\nsecond-line\n-----END KEY-----"
    assert "second-line" not in redact("the end of a log:\nsecond-line", secrets_of({"SSH_KEY": key}))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("sent Authorization: Bearer abcdefghijk to it", "sent Authorization: Bearer *** to it"),
        ("key sk-abcdefgh1234 used", "key *** used"),
        ("hf_abcdefghijkl", "***"),
        ("postgres://me:word@host/db", "postgres://***@host/db"),
        ('EnvClient("http://h:1", api_key="abcdefghijkl")', 'EnvClient("http://h:1", api_key="***")'),
        ("nothing to see: http://127.0.0.1:8000/health", "nothing to see: http://127.0.0.1:8000/health"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, left: str) -> None:
    assert redact(text, []) == left


@given(
    st.text(min_size=4).filter(lambda text: set(text) - set("*") and text.lower() not in PLAIN),
    st.text(),
    st.text(),
)
def test_no_secret_is_left(secret: str, before: str, after: str) -> None:
    assert secret not in redact(f"{before}{secret}{after}", secrets_of({"MY_KEY": secret})).replace("***", "\0")


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ("control:abc", "abc"),
        ("agent:xyz,control:abc", "abc"),
        ("abc", "abc"),
        ("view:v, abc", "abc"),
        ("agent:xyz", None),
        ("none", None),
        ("", None),
    ],
)
def test_the_key_that_may_do_everything(keys: str, key: str | None) -> None:
    assert key_of({"OPENENV_API_KEYS": keys}) == key
    assert key_of({}) is None
