from __future__ import annotations

import json
import os
import pty
import socket
import struct
import sys
import termios

import click
import pytest
from click.testing import CliRunner

from openenv.cli.main import app
from openenv.cli.serve import announce, facts_of, serve
from openenv.envs.echo.models import EchoAction, EchoObservation
from openenv.envs.echo.server.echo_environment import EchoEnvironment
from openenv.errors import UsageError
from openenv.server import create_app
from openenv.settings import ServerSettings
from tests.auto.distributions import files_of, install
from tests.modules import forget

TABLE = list(ServerSettings.table())
# The argument, and what is for deployments that nobody starts by hand.
NO_OPTION = {
    "target",
    "max_concurrent_envs",
    "readme_path",
    "record_file_mb",
    "abandon_after_s",
    "max_abandoned_threads",
    "max_batch",
    "max_constructing",
    "max_connection_in_flight",
    "max_unsent_mb",
    "max_header_kb",
    "max_key_failures",
    "handshake_timeout_s",
    "process_children",
    "process_files",
    "process_output_mb",
    "ssl_keyfile_password",
    "worker_start_s",
    "worker_silence_s",
    "worker_restarts",
}


def run(*arguments, **variables):
    """Runs `openenv serve` as far as it gets; returns the error that stopped it."""
    result = CliRunner(env=variables).invoke(app, ["serve", *arguments], standalone_mode=False)
    assert result.exception is not None
    return result.exception


@pytest.fixture(scope="module")
def help_text():
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["serve", "--help"])
    assert result.exit_code == 0
    return " ".join(result.output.split())


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.name)
def test_the_help_explains_every_setting(help_text, setting):
    assert setting.variable in help_text
    assert setting.description in help_text
    if setting.default is not None:
        default = (
            {True: "on", False: "off"}.get(setting.default) if isinstance(setting.default, bool) else setting.default
        )
        assert f"default {default}" in help_text


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.name)
def test_what_is_decided_at_the_command_line_has_an_option(setting):
    options = {parameter.name for parameter in serve.params if isinstance(parameter, click.Option)}
    assert (setting.name in options) is (setting.name not in NO_OPTION)


def test_the_help_says_what_a_target_is(help_text):
    for word in ("module:attribute", "openenv.yaml", "gymnasium:", "benchmark", "echo", "--reload"):
        assert word in help_text


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        (["--port", "70000"], "port (PORT)"),
        (["--port", "-1"], "port (PORT)"),
        (["--workers", "0"], "workers (WORKERS)"),
        (["--max-sessions", "0"], "max_sessions (OPENENV_MAX_SESSIONS)"),
        (["--queue-timeout", "-1"], "queue_timeout_s (OPENENV_QUEUE_TIMEOUT_S)"),
        (["--idle-timeout", "-1"], "idle_timeout_s (OPENENV_IDLE_TIMEOUT_S)"),
        (["--max-message-mb", "0"], "max_message_mb (OPENENV_MAX_MESSAGE_MB)"),
        (["--max-reply-mb", "0"], "max_reply_mb (OPENENV_MAX_REPLY_MB)"),
        (["--heartbeat", "-1"], "heartbeat_s (OPENENV_HEARTBEAT_S)"),
        (["--mode", "planet"], "mode (OPENENV_MODE)"),
        (["--isolation", "planet"], "isolation (OPENENV_ISOLATION)"),
        (["--max-in-flight", "0"], "max_in_flight (OPENENV_MAX_IN_FLIGHT)"),
        (["--ping-interval", "-1"], "ping_interval_s (OPENENV_PING_INTERVAL_S)"),
        (["--grace", "-1"], "grace_s (OPENENV_GRACE_S)"),
        (["--log-level", "loud"], "log_level (OPENENV_LOG_LEVEL)"),
    ],
)
def test_a_value_that_is_not_valid_names_its_setting(arguments, setting):
    error = run("echo", *arguments)
    assert isinstance(error, UsageError)
    assert setting in error.message
    assert arguments[1] in error.message


@pytest.mark.parametrize("variable", ["PORT", "WORKERS", "MAX_CONCURRENT_ENVS"])
def test_a_variable_that_is_not_valid_is_named(variable):
    error = run("echo", **{variable: "plenty"})
    assert isinstance(error, UsageError)
    assert variable in error.message
    assert "'plenty'" in error.message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_in_use_names_the_ways_out(host):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = run("echo", "--host", host, "--port", str(port))
    assert isinstance(error, UsageError)
    assert f"cannot listen on {host}:{port}: Address already in use, by process {os.getpid()} (" in error.message
    assert "--port (0 takes a free port)" in error.message


@pytest.mark.parametrize("flag", ["-p", "--port"])
def test_the_port_has_a_short_flag_too(flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f":{port}: Address" in run("echo", flag, port).message


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [(["--no-ui"], "False"), (["--ui"], None), ([], None)],
)
def test_the_ui_can_be_switched_off(arguments, variable):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run("echo", *arguments, "--port", str(taken.getsockname()[1]))
    assert os.environ.get("ENABLE_WEB_INTERFACE") == variable


def announced(capsys, serves, made_key=None, reload=False, **settings):
    """What is said of a server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        read = ServerSettings.read({}, **{"api_keys": "none", **settings})
        announce(read, listener, serves, made_key, reload)
        port = listener.getsockname()[1]
    (line,) = capsys.readouterr().err.splitlines()
    return line.replace(f":{port}", ":P")


def test_one_line_says_url_ui_key_sessions_and_workers(capsys):
    line = announced(capsys, {"name": "maze", "limit": 64})
    assert line.startswith(
        "maze on http://127.0.0.1:P · UI http://127.0.0.1:P/web · no key · up to 64 sessions · 1 worker · fast path"
    )


@pytest.mark.parametrize("width", [80, 140])
def test_a_terminal_breaks_no_word_of_the_line(monkeypatch, width):
    near, far = pty.openpty()
    fcntl = pytest.importorskip("fcntl")
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    key = "a-key-that-is-made" * 3
    with socket.create_server(("127.0.0.1", 0)) as listener, os.fdopen(far, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        announce(ServerSettings.read({}, api_keys=key), listener, {"name": "maze", "limit": 20_000}, key)
        said = os.read(near, 4096).decode()
    os.close(near)
    shown = click.unstyle(said).splitlines()
    assert max(map(len, shown)) <= width
    line = " ".join(part.strip() for part in shown)
    assert f'/web · clients show api_key="{key}" (choose your own by OPENENV_API_KEYS or' in line
    assert " · up to 20000 sessions · 1 worker · " in line


def test_the_line_of_a_server_with_a_key_and_workers(capsys):
    line = announced(capsys, {"name": "maze", "limit": 1}, "made", reload=True, workers=4, api_keys="made")
    assert 'api_key="made"' in line
    assert "up to 1 session · 4 workers · " in line
    assert line.endswith("reloading")
    assert "asks for a key" in announced(capsys, {"name": "maze", "limit": 1}, api_keys="mine-and-mine")


@pytest.mark.parametrize("settings", [{"web_interface": False}, {"mode": "production"}])
def test_the_line_names_no_ui_where_there_is_none(capsys, settings):
    assert "UI" not in announced(capsys, {"name": "maze", "limit": 64}, **settings)
    assert "UI" not in announced(capsys, {"name": "plain:app"})
    app = create_app(EchoEnvironment, EchoAction, EchoObservation, env_name="echo", mode="production")
    assert facts_of(app, "app:app")["mode"] == "production"
    assert "UI" not in announced(capsys, facts_of(app, "app:app"))
    assert facts_of(object(), "plain:app") == {"name": "plain:app"}


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1", "::ffff:0:0:1"])
def test_an_address_that_is_not_ours(host):
    error = run("echo", "--host", host, "--port", "0")
    assert isinstance(error, UsageError)
    assert f"cannot listen on {host}:0" in error.message
    assert "--host" in error.message


def test_the_target_is_looked_at_before_the_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        error = run("nothing", "--port", str(taken.getsockname()[1]))
    assert "cannot be served" in error.message


def test_an_installed_environment_is_served_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    app = "from openenv.envs.echo.server.app import app\n"
    install(tmp_path, files=files_of(**{"server/__init__": "", "server/app": app}))
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            assert "cannot listen" in run("maze", "--port", str(taken.getsockname()[1])).message
        assert "cannot be served" in run("moze").message
    finally:
        forget(tmp_path)


def test_host_and_port_may_be_variables():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = run("echo", HOST="127.0.0.1", PORT=str(port))
        assert f"cannot listen on 127.0.0.1:{port}" in error.message
        error = run("echo", "--port", str(port), HOST="127.0.0.1", PORT="1")
        assert f"cannot listen on 127.0.0.1:{port}" in error.message


def test_where_connections_cannot_be_passed_several_workers_are_refused(monkeypatch):
    monkeypatch.delattr(socket, "send_fds", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = ["serve", "echo", "--workers", "4", "--port", str(taken.getsockname()[1])]
        result = CliRunner().invoke(app, arguments, standalone_mode=False)
    assert isinstance(result.exception, UsageError)
    assert "--workers 4 needs Linux" in str(result.exception)
    assert os.environ.get("WORKERS") is None


def test_reloading_there_is_one_worker():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = ["serve", "echo", "--reload", "--workers", "4", "--port", str(taken.getsockname()[1])]
        result = CliRunner().invoke(app, arguments, standalone_mode=False)
    assert "--reload starts one process: serving with 1 worker" in result.output


def test_where_logs_are_json_all_lines_are():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ["--log-format", "json", "--reload", "--workers", "4", "--port", str(taken.getsockname()[1])]
        result = CliRunner().invoke(app, ["serve", "echo", *options], standalone_mode=False)
    (line,) = result.output.splitlines()
    assert json.loads(line)["message"].endswith("serving with 1 worker")


def test_a_certificate_that_cannot_be_used_is_found_before_anything_starts():
    error = run("echo", "--ssl-certfile", "/nowhere.pem")
    assert isinstance(error, UsageError)
    assert "--ssl-certfile" in error.message


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("arguments", "variable"),
    [(["--api-key", "boss:hidden"], "OPENENV_API_KEYS"), (["--allowed-origins", "here"], "OPENENV_ALLOWED_ORIGINS")],
)
def test_keys_and_origins_are_looked_at_before_anything_starts(arguments, variable, workers):
    error = run("echo", "--workers", workers, *arguments)
    assert isinstance(error, UsageError)
    assert variable in error.message
    assert "hidden" not in error.message
