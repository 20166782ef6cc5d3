"""`openenv serve` with keys and over TLS, as users run it."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from websockets.sync.client import connect

from openenv.client import GenericEnvClient
from openenv.errors import ConnectionFailed, Forbidden, Unauthorized

from ..cli.certificates import certificate
from ..cli.process import LIMIT_S, serving

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), pytest.mark.slow]
each_number_of_workers = pytest.mark.parametrize("workers", ["1", "2"])


def play(url, **options):
    """A short episode; returns the reward of its one step."""
    with GenericEnvClient(url, **options) as env:
        env.reset()
        return env.step({"message": "hello"}).reward


def status(url: str, key: str | None = None) -> int:
    request = urllib.request.Request(url, headers={} if key is None else {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@each_number_of_workers
def test_off_loopback_it_makes_a_key_and_prints_it_once(workers):
    with serving("echo", "--host", "0.0.0.0", "--workers", workers) as server:
        found = re.search(r'api_key="([^"]+)"', server.announcement)
        assert found is not None, server.announcement
        key = found[1]
        assert "OPENENV_API_KEYS" in server.announcement
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert status(f"{url}/health") == 200
        for path in ("/metadata", "/docs", "/nowhere"):
            assert status(url + path) == 401
            assert status(url + path, "wrong") == 401
        assert status(f"{url}/metadata", key) == 200
        with pytest.raises(Unauthorized):
            play(url)
        assert [play(url, api_key=key) for _ in range(4)] == [0.5] * 4
        for pid in server.group():
            assert key not in Path(f"/proc/{pid}/cmdline").read_text()
        _, complaints = server.end(signal.SIGTERM)
        assert key not in complaints


@each_number_of_workers
def test_keys_may_be_given(workers):
    keys = "control:one-key-for-everything,view:another-key-to-look"
    with serving("echo", "--workers", workers, OPENENV_API_KEYS=keys) as server:
        assert play(server.url, api_key="one-key-for-everything") == 0.5
        with pytest.raises(Forbidden):
            play(server.url, api_key="another-key-to-look")
        with pytest.raises(Unauthorized):
            play(server.url)
        code, complaints = server.end(signal.SIGTERM)
        assert code == 0
        assert "one-key" not in complaints


def test_without_keys_off_loopback_there_is_a_warning():
    with serving("echo", "--host", "0.0.0.0", "--api-key", "none") as server:
        assert "every client" in server.line()
        assert play(server.url.replace("0.0.0.0", "127.0.0.1")) == 0.5


@each_number_of_workers
def test_a_short_key_is_warned_of_once(workers):
    command = [sys.executable, "-m", "openenv", "serve", "echo", "--workers", workers, "--port", "0"]
    environ = {**os.environ, "OPENENV_API_KEYS": "short"}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as server:
        lines = []
        while not lines or "http://" not in lines[-1]:
            lines.append(server.stderr.readline())
            assert lines[-1], lines
        assert play(re.search(r"http://\S+", lines[-1])[0], api_key="short") == 0.5
        server.terminate()
        lines += server.stderr.readlines()
    assert sum("short enough to be guessed" in line for line in lines) == 1


@each_number_of_workers
def test_it_serves_over_tls(tmp_path, monkeypatch, workers):
    paths = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(paths.chain))
    files = ["--ssl-certfile", str(paths.chain), "--ssl-keyfile", str(paths.key)]
    with serving("echo", *files, "--workers", workers) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert server.get("/health") == {"status": "healthy"}
        assert [play(server.url) for _ in range(4)] == [0.5] * 4
        with pytest.raises(ConnectionFailed):
            play(server.url.replace("https", "http"))
        code, complaints = server.end(signal.SIGTERM)
        assert (code, server.group()) == (0, [])
        assert "Traceback" not in complaints


@each_number_of_workers
def test_clients_may_have_to_show_a_certificate(tmp_path, monkeypatch, workers):
    paths = certificate(tmp_path)
    chain, key = str(paths.chain), str(paths.key)
    files = ["--ssl-certfile", chain, "--ssl-keyfile", key, "--ssl-ca-certs", chain]
    with serving("echo", *files, "--workers", workers) as server:
        context = ssl.create_default_context(cafile=chain)
        with pytest.raises((ssl.SSLError, urllib.error.URLError, ConnectionResetError)):
            urllib.request.urlopen(f"{server.url}/health", context=context, timeout=LIMIT_S)
        context.load_cert_chain(chain, key)
        with urllib.request.urlopen(f"{server.url}/health", context=context, timeout=LIMIT_S) as answer:
            assert answer.status == 200


def test_over_tls_too_a_connection_reaches_the_worker_that_it_names(tmp_path):
    paths = certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=paths.chain)
    files = ["--ssl-certfile", str(paths.chain), "--ssl-keyfile", str(paths.key)]
    with serving("echo", *files, "--workers", "2") as server:
        url = server.url.replace("https", "wss") + "/ws"
        options = {"subprotocols": ["openenv.v2.json"], "ssl": trusting, "proxy": None}
        with connect(url, **options) as first, connect(url, **options) as second:
            workers = [json.loads(client.recv(LIMIT_S))["worker"] for client in (first, second)]
            for worker in workers * 3:
                with connect(f"{url}?worker={worker}", **options) as client:
                    assert json.loads(client.recv(LIMIT_S))["worker"] == worker
                    client.send(json.dumps({"id": 1, "op": "open", "session": "one"}))
                    assert json.loads(client.recv(LIMIT_S))["ok"] is True
                    client.send(json.dumps({"id": 2, "op": "close", "session": "one"}))
                    assert json.loads(client.recv(LIMIT_S))["ok"] is True
        assert len(set(workers)) == 2
        code, complaints = server.end(signal.SIGTERM)
        assert (code, server.group()) == (0, [])
        assert "Traceback" not in complaints
