"""The key that a client shows, and to whom it does not."""

from __future__ import annotations

import traceback

import pytest

from openenv.client import GenericEnvClient, VectorEnvClient
from openenv.errors import UsageError
from openenv.settings import ClientSettings

KEY = "agent-secret-of-this-test"
URL = "localhost:8000"


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch):
    monkeypatch.delenv("OPENENV_API_KEY", raising=False)


def shown(env):
    return dict(env._options.headers).get("Authorization")


def test_without_a_key_none_is_shown():
    assert shown(GenericEnvClient(URL)) is None


def test_the_argument_wins_over_the_variable(monkeypatch):
    assert shown(GenericEnvClient(URL, api_key=KEY)) == f"Bearer {KEY}"
    monkeypatch.setenv("OPENENV_API_KEY", "another")
    assert shown(GenericEnvClient(URL)) == "Bearer another"
    assert shown(GenericEnvClient(URL, api_key=KEY)) == f"Bearer {KEY}"


def test_a_header_of_the_user_s_own_is_left_as_it_is(monkeypatch):
    monkeypatch.setenv("OPENENV_API_KEY", KEY)
    env = GenericEnvClient(URL, headers={"authorization": "Basic abc"})
    assert env._options.headers == (("authorization", "Basic abc"),)
    with pytest.raises(UsageError, match="api_key and a header"):
        GenericEnvClient(URL, headers={"authorization": "Basic abc"}, api_key=KEY)


@pytest.mark.parametrize("key", ["", "two words", f"{KEY}\r\nX: y", f"{KEY}ä", 5])
def test_what_cannot_be_a_key_is_refused_without_being_told(key):
    with pytest.raises(UsageError, match=r"api_key \(OPENENV_API_KEY\)") as caught:
        GenericEnvClient(URL, api_key=key)
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_a_vector_shows_it_too():
    assert shown(VectorEnvClient(GenericEnvClient, URL, num_envs=1, api_key=KEY)._client) == f"Bearer {KEY}"


def test_it_is_not_in_what_is_printed(monkeypatch):
    monkeypatch.setenv("OPENENV_API_KEY", KEY)
    env = GenericEnvClient(URL)
    for thing in (env, env._options, env.sync(), ClientSettings.read(), env.__dict__["_options"]):
        assert KEY not in repr(thing)
        assert KEY not in str(thing)
    assert ClientSettings.read().api_key == KEY
    assert [setting.name for setting in ClientSettings.table() if "key" in setting.name] == ["api_key"]
