"""The files of the page: what is served of them, to whom, and what is not."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient

from openenv.server.page import files

from .raw import read_until
from .stage import app_of
from .wires import served

SCRIPT = b"console.log('a page')" * 100
KEYS = {"api_keys": "control:the-key-of-those-in-control"}
KEY = {"Authorization": "Bearer the-key-of-those-in-control"}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What Vite would have built, and something beside it that is nobody's business."""
    static = tmp_path / "web_static"
    assets = static / "assets"
    assets.mkdir(parents=True)
    (static / "index.html").write_text(
        '<!doctype html><script type="module" src="web/assets/main-a1B2c3D4.js"></script>'
    )
    (assets / "main-a1B2c3D4.js").write_bytes(SCRIPT)
    (assets / "main-a1B2c3D4.js.gz").write_bytes(gzip.compress(SCRIPT))
    (assets / "plain.css").write_text("b{}")
    (assets / "notes.py").write_text("TREASURE = 1")
    (static / "secret.js").write_text("TREASURE")
    (tmp_path / "outside.js").write_text("TREASURE")
    (assets / "link.js").symlink_to(tmp_path / "outside.js")
    monkeypatch.setattr(files, "STATIC", static)
    return static


@pytest.fixture
def client(built: Path) -> Iterator[TestClient]:
    with TestClient(app_of(), follow_redirects=False) as client:
        yield client


def test_the_page_and_its_files(client):
    page = client.get("/web")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    script = client.get("/web/assets/main-a1B2c3D4.js", headers={"Accept-Encoding": "identity"})
    assert script.content == SCRIPT
    assert script.headers["content-type"].startswith("text/javascript")
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert client.get("/web/assets/plain.css").headers["cache-control"] == "no-cache"
    for answer in (page, script):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["vary"] == "Accept-Encoding"


def test_what_is_packed_is_sent_to_whoever_takes_it(client):
    for accepted, packed in [
        ("gzip", True),
        ("br;q=1.0, gzip;q=0.8", True),
        ("GZIP", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("br", False),
        ("", False),
    ]:
        answer = client.get("/web/assets/main-a1B2c3D4.js", headers={"Accept-Encoding": accepted})
        assert answer.content == SCRIPT
        assert ("content-encoding" in answer.headers) is packed, accepted
        assert answer.headers["content-type"].startswith("text/javascript")


def test_who_has_a_file_is_told_so(client):
    for path in ("/web", "/web/assets/main-a1B2c3D4.js"):
        first = client.get(path)
        again = client.get(path, headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["cache-control"] == first.headers["cache-control"]
        assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["etag"] == first.headers["etag"]


def test_a_page_that_is_built_again_is_there_at_once(client, built):
    assert b"main-a1B2c3D4" in client.get("/web").content
    (built / "index.html").write_text("a new page")
    assert client.get("/web").text == "a new page"


def test_the_way_to_the_page_is_relative_and_keeps_what_was_asked(client):
    for path, place in [
        ("/", "web"),
        ("/?__theme=dark&a=%20", "web?__theme=dark&a=%20"),
        ("/web/", "../web"),
        ("/web/?a=b", "../web?a=b"),
    ]:
        answer = client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (307, place)
    assert client.head("/").status_code == 307
    assert client.post("/").status_code == 404


@pytest.mark.parametrize("path", ["/環境", "/a b", "/evil:x"])
def test_the_way_to_the_page_is_an_address_whatever_the_prefix(built, path):
    with TestClient(app_of(), root_path=path) as client:
        way = client.get(path, follow_redirects=False).headers["location"]
        assert way == f"{quote(path[1:], safe='')}/web"
        assert client.get(path).text == client.get("/web").text


@pytest.mark.parametrize(
    "name",
    [
        "nothing.js",
        "notes.py",
        "link.js",
        "main-a1B2c3D4.js.gz",
        ".",
        "...js",
        "..%5Csecret.js",
        "%2e%2e%2fsecret.js",
        "..%2f..%2foutside.js",
        "a%00.js",
        "main-a1B2c3D4.js%0a",
        "%2Fetc%2Fpasswd",
        "x" * 5000 + ".js",
    ],
)
def test_nothing_else_is_served(client, name):
    answer = client.get(f"/web/assets/{name}")
    assert answer.status_code in {307, 404}
    assert b"TREASURE" not in answer.content
    assert len(answer.content) < 1000


def test_nothing_else_is_served_whatever_stands_in_the_request(built):
    """Clients tidy up what they ask for: here it is sent as it is."""
    import socket

    with served(app_of()) as address:
        host, _, port = address.partition(":")
        for target in (
            "/web/assets/../secret.js",
            "/web/assets/../../outside.js",
            "/web/assets/..%2fsecret.js",
            "/web/assets/..%2f..%2foutside.js",
            "/web/../web_page.py",
            "//web/assets/../secret.js",
        ):
            with socket.create_connection((host, int(port)), 20) as raw:
                raw.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                answer = read_until(raw, b"never")
            assert answer.split()[1] in {b"404", b"400", b"409"}, target
            assert b"TREASURE" not in answer


def policy_of(answer: Any) -> dict[str, list[str]]:
    parts = (part.split() for part in answer.headers["content-security-policy"].split(";"))
    return {name: values for name, *values in parts}


def test_the_page_runs_its_own_scripts_alone(client):
    policy = policy_of(client.get("/web"))
    assert policy["default-src"] == ["'none'"]
    assert policy["script-src"] == policy["connect-src"] == policy["frame-src"] == ["'self'"]
    assert policy["base-uri"] == policy["form-action"] == ["'none'"]
    assert "https://huggingface.co" in policy["frame-ancestors"]
    assert "x-frame-options" not in client.get("/web").headers


def test_the_frame_of_a_panel_has_neither_origin_nor_network(client):
    answer = client.get("/web/frame")
    policy = policy_of(answer)
    assert policy["sandbox"] == ["allow-scripts"]
    assert policy["default-src"] == ["'none'"]
    assert "connect-src" not in policy
    assert "'unsafe-inline'" in policy["script-src"]
    assert "openenv:document" in answer.text


@pytest.mark.parametrize(
    ("allowed", "ancestors"),
    [
        (
            "https://board.example:8443, https://other.example",
            ["https://board.example:8443", "https://other.example"],
        ),
        ("*", ["*"]),
        ("null", []),
    ],
)
def test_pages_that_may_use_the_server_may_show_it_in_a_frame(built, allowed, ancestors):
    with TestClient(app_of(allowed_origins=allowed)) as client:
        named = policy_of(client.get("/web"))["frame-ancestors"]
        assert named[-len(ancestors) :] == ancestors if ancestors else named[-1].endswith("hf.space")


def test_without_the_files_the_page_says_how_to_build_them(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "STATIC", tmp_path / "nothing")
    with TestClient(app_of()) as client:
        answer = client.get("/web")
        assert answer.status_code == 501
        assert "make web" in answer.text
        assert "pip install" in answer.text
        assert client.get("/web/assets/main.js").status_code == 404
        assert client.get("/web/metadata").status_code == 200


def test_the_page_needs_no_key_and_what_it_asks_for_does(built):
    with TestClient(app_of(**KEYS), follow_redirects=False) as client:
        for method in ("GET", "HEAD"):
            assert client.request(method, "/").status_code == 307
            assert client.request(method, "/web").status_code == 200
            assert client.request(method, "/web/assets/main-a1B2c3D4.js").status_code == 200
            assert client.request(method, "/web/frame").status_code == 200
        assert client.get("/web", headers={"Authorization": "Bearer wrong"}).status_code == 200
        for path in ("/web/metadata", "/web/panel", "/web/state", "/web/nothing", "/web/assets", "/websites"):
            assert client.get(path).status_code == 401, path
            assert client.get(path, headers=KEY).status_code in {200, 400, 404, 409}, path


def owners(app: FastAPI, *paths: str) -> FastAPI:
    """The app with pages of its owner's in place of ours."""
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) not in paths]
    for path in paths:
        app.add_api_route(path, lambda: PlainTextResponse("the owner's"))
    return app


def test_what_an_owner_serves_is_his_and_asks_for_a_key(built):
    with TestClient(owners(app_of(**KEYS), "/", "/web", "/web/assets/{name}"), follow_redirects=False) as client:
        for path in ("/", "/web", "/web/assets/main-a1B2c3D4.js"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers=KEY).text == "the owner's"


def test_an_owner_may_mount_a_site_over_everything_else(built, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("the owner's")
    app = app_of()
    app.mount("/", StaticFiles(directory=site, html=True))
    with TestClient(app) as client:
        assert client.get("/").text == "the owner's"
        assert client.get("/web").text.startswith("<!doctype html>")
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("way", ["mounted", "root_path", "both"])
def test_it_works_under_a_prefix(built, way):
    app = app_of(**KEYS)
    prefix = "/inner" if way == "mounted" else "/outer" if way == "root_path" else "/outer/inner"
    if way != "root_path":
        outer = FastAPI()
        outer.mount("/inner", app)
        app = outer
    with TestClient(app, root_path="" if way == "mounted" else "/outer", follow_redirects=False) as client:
        assert client.get(f"{prefix}/").headers["location"] == "web"
        assert client.get(f"{prefix}/web/").headers["location"] == "../web"
        assert client.get(f"{prefix}/web").status_code == 200
        assert client.get(f"{prefix}/web/assets/main-a1B2c3D4.js").content == SCRIPT
        assert client.get(f"{prefix}/web/metadata").status_code == 401
        told = client.post(f"{prefix}/web/reset", headers=KEY)
        assert told.status_code == 200
        assert f"Path={prefix};" in told.headers["set-cookie"]
        assert client.post(f"{prefix}/web/step", json={"action": {}}, headers=KEY).json()["step_count"] == 1


def test_of_routes_that_were_taken_into_another_app_the_page_asks_for_a_key_too(built):
    """Whose they are cannot be told there: what is not known to be for all is not."""
    outer = FastAPI()
    outer.include_router(app_of(**KEYS).router)
    with TestClient(outer, follow_redirects=False) as client:
        for path in ("/", "/web", "/web/metadata"):
            assert client.get(path).status_code == 401
        assert client.get("/web", headers=KEY).status_code == 200
        assert client.post("/web/reset", headers=KEY).status_code == 200
