from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st

from openenv.errors import UsageError
from openenv.settings import ServerSettings, is_loopback, is_loopback_for_secrets, proxy_for

TABLE = {setting.name: setting for setting in ServerSettings.table()}


def test_defaults():
    settings = ServerSettings.read({})
    assert settings == ServerSettings()
    assert (settings.host, settings.port, settings.workers) == ("127.0.0.1", 8000, 1)
    assert settings.max_sessions is None
    assert settings.idle_timeout_s == 3600
    assert settings.queue_timeout_s == 0


def test_a_variable_wins_over_the_default():
    settings = ServerSettings.read({"PORT": "9000", "WORKERS": "4", "OPENENV_QUEUE_TIMEOUT_S": "1.5"})
    assert (settings.port, settings.workers, settings.queue_timeout_s) == (9000, 4, 1.5)


def test_an_override_wins_over_a_variable():
    assert ServerSettings.read({"PORT": "9000"}, port=7000).port == 7000


def test_an_override_wins_over_a_bad_variable():
    assert ServerSettings.read({"PORT": "many"}, port=7000).port == 7000


def test_an_override_of_none_says_nothing():
    assert ServerSettings.read({"PORT": "9000"}, port=None).port == 9000


def test_a_falsy_override_counts():
    assert ServerSettings.read({"PORT": "9000"}, port=0).port == 0


def test_an_empty_variable_is_not_set():
    assert ServerSettings.read({"PORT": "", "OPENENV_IDLE_TIMEOUT_S": ""}) == ServerSettings()


def test_the_variables_that_existing_deployments_set():
    settings = ServerSettings.read(
        {
            "MAX_CONCURRENT_ENVS": "32",
            "WORKERS": "2",
            "PORT": "81",
            "HOST": "0.0.0.0",
            "ENV_README_PATH": "docs/README.md",
        }
    )
    assert settings.max_concurrent_envs == 32
    assert (settings.workers, settings.port, settings.host) == (2, 81, "0.0.0.0")
    assert settings.readme_path == "docs/README.md"
    assert settings.max_sessions is None  # the limit that overrides an app is asked for by another name


def test_the_environment_of_the_process_is_read(monkeypatch):
    monkeypatch.setenv("PORT", "8123")
    assert ServerSettings.read().port == 8123
    monkeypatch.delenv("PORT")
    assert ServerSettings.read().port == 8000


BAD_VALUES = {
    "port": ["70000", "-1", "http"],
    "workers": ["0", "2000", "two"],
    "max_sessions": ["0", "-1", "1.5"],
    "max_concurrent_envs": ["0", "lots"],
    "queue_timeout_s": ["-1", "nan", "soon"],
    "idle_timeout_s": ["-3", "nan"],
    "max_message_mb": ["0", "4096", "nan", "inf"],
    "max_in_flight": ["0", "x"],
    "ping_interval_s": ["-1", "nan"],
    "log_level": ["loud", "WARNING!", "info\n"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_VALUES.items() for value in values]
)
def test_a_bad_variable_names_the_setting_the_variable_and_the_value(name, value):
    variable = TABLE[name].variable
    with pytest.raises(UsageError) as caught:
        ServerSettings.read({variable: value})
    assert name in str(caught.value)
    assert variable in str(caught.value)
    assert repr(value) in str(caught.value)


def test_a_bad_override_names_them_too():
    with pytest.raises(UsageError, match=r"port \(PORT\).*99999"):
        ServerSettings.read({}, port=99999)


def test_every_bad_value_is_named():
    with pytest.raises(UsageError) as caught:
        ServerSettings.read({"PORT": "x", "WORKERS": "y"})
    assert "PORT" in str(caught.value)
    assert "WORKERS" in str(caught.value)


def test_an_unknown_override_is_refused():
    with pytest.raises(UsageError, match="max_sesions"):
        ServerSettings.read({}, max_sesions=3)


def test_settings_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        ServerSettings().port = 1


@pytest.mark.parametrize("name", ServerSettings.model_fields)
def test_the_table_explains_every_field(name):
    setting = TABLE[name]
    assert setting.description
    assert setting.default == getattr(ServerSettings(), name)
    assert setting.variable
    assert setting.variable == setting.variable.upper()
    assert " " not in setting.variable


def test_no_variable_has_two_meanings():
    variables = [setting.variable for setting in TABLE.values()]
    assert len(variables) == len(set(variables))


def test_the_message_limit_in_bytes():
    assert ServerSettings().max_message_bytes == 16 * 1024 * 1024
    assert ServerSettings(max_message_mb=0.5).max_message_bytes == 512 * 1024


@pytest.fixture
def clean_environment(monkeypatch):
    """No setting is set, whatever the test or the machine does."""
    for setting in TABLE.values():
        # Set first: only what the test changed is put back, and `export` changes it unseen.
        monkeypatch.setenv(setting.variable, "")
        monkeypatch.delenv(setting.variable)
    return monkeypatch


chosen = st.fixed_dictionaries(
    {},
    optional={
        "host": st.sampled_from(["127.0.0.1", "0.0.0.0", "::1"]),
        "port": st.integers(0, 65535) | st.just(8000),
        "workers": st.integers(1, 8),
        "max_sessions": st.integers(1, 10_000),
        "queue_timeout_s": st.floats(0, 1e6),
        "idle_timeout_s": st.floats(0.001, 1e6),
        "log_level": st.sampled_from(["critical", "error", "warning", "info", "debug"]),
        "target": st.just("echo"),
    },
)


@given(chosen)
@profile(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_exported_is_read_by_the_next_process(clean_environment, overrides):
    with clean_environment.context() as patch:
        for setting in TABLE.values():
            patch.setenv(setting.variable, "")
        settings = ServerSettings.read({}, **overrides)
        settings.export()
        assert ServerSettings.read() == settings


def test_an_exported_default_wins_over_the_variable_that_it_overrode(clean_environment):
    clean_environment.setenv("PORT", "9000")
    settings = ServerSettings.read(port=8000)
    assert settings.port == 8000
    settings.export()
    assert ServerSettings.read().port == 8000


def test_the_proxy_of_a_host(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    monkeypatch.delenv("http_proxy", raising=False)
    assert proxy_for("https", "outside.example") == "http://proxy.example:3128"
    assert proxy_for("https", "inside.example") is None
    assert proxy_for("http", "outside.example") is None


@pytest.mark.parametrize(
    ("host", "here", "for_secrets"),
    [
        ("localhost", True, True),
        ("LOCALHOST.", True, True),
        ("127.0.0.1", True, True),
        ("::1", True, True),
        ("::ffff:127.0.0.1", True, True),
        ("x.localhost", True, False),
        ("x.localhost.", True, False),
        ("localhost.example", False, False),
        ("10.0.0.1", False, False),
        (None, False, False),
    ],
)
def test_which_hosts_are_this_machine(host, here, for_secrets):
    assert (is_loopback(host), is_loopback_for_secrets(host)) == (here, for_secrets)
