"""One request by HTTP: redirects, credentials, statuses, sizes, and no proxy to this machine."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading

import pytest

from openenv import _http as module
from openenv._http import bearer, fetch, reason_of
from openenv.errors import ConnectionLost, ProtocolViolation


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with what it was asked, or redirects to `to`."""

    def do_GET(self):
        target = getattr(self.server, "to", None)
        self.send_response(302 if target else int(self.path.rpartition("/")[2] or 200))
        if declared := getattr(self.server, "declared", None):
            self.send_header("Content-Length", declared)
        if target:
            self.send_header("Location", target)
        self.end_headers()
        if not target:
            key = self.headers.get("Authorization", "none")
            self.wfile.write(b'{"method": "%s", "key": "%s"}' % (self.command.encode(), key.encode()))

    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(to=None, declared=None):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        server.to, server.declared = to, declared
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_a_get_shows_the_key_and_a_body_makes_it_a_post_of_json():
    with serving() as url:
        assert fetch(url, bearer("a-key"), 60).json() == {"method": "GET", "key": "Bearer a-key"}
        assert fetch(url, bearer(None), 60).json()["key"] == "none"
        assert fetch(url, {}, 60, {"of": [1]}).json() == {"of": [1]}


def test_an_answer_that_ends_in_the_middle_is_no_answer():
    with serving(declared="4000") as url, pytest.raises(ConnectionLost, match="IncompleteRead"):
        fetch(url, {}, 60)


def test_a_status_that_is_no_success_is_a_reply_like_others():
    with serving() as url:
        reply = fetch(f"{url}503", {}, 60)
        assert reply.status == 503
        assert reply.json()["method"] == "GET"


def test_a_redirect_to_another_server_takes_no_key_along():
    with serving() as last, serving(to=last) as first:
        assert fetch(first, {"authorization": "Bearer a-key"}, 60).json()["key"] == "none"


def test_no_proxy_leads_to_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving() as url:
        assert fetch(url, {}, 60).status == 200


def test_without_a_server_there_is_no_answer():
    with pytest.raises(ConnectionLost, match=r"no answer from http://127\.0\.0\.1:9/"):
        fetch("http://127.0.0.1:9/", {}, 60)


def test_an_answer_has_a_largest_size(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    with serving() as url, pytest.raises(ProtocolViolation, match="is larger than"):
        fetch(url, {}, 60)


def test_json_that_is_nested_too_deeply_is_no_json():
    with pytest.raises(ValueError, match="nested too deeply"):
        module.HttpReply(200, b"[" * 100_000).json()


def test_the_reason_of_a_tls_failure_has_its_details():
    received = ssl.MemoryBIO()
    received.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    connection = ssl.create_default_context().wrap_bio(received, ssl.MemoryBIO(), server_hostname="example.org")
    with pytest.raises(ssl.SSLError) as caught:
        connection.do_handshake()
    assert "wrong version number" in reason_of(caught.value)
