"""The files of the page at `/web`: built by Vite, served without a key."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from ...errors import UsageError
from ..middleware import error_response, request_head

STATIC = Path(__file__).parent / "static"
REDIRECT, NOT_MODIFIED, NOT_FOUND, NOT_BUILT = 307, 304, 404, 501
_READING = frozenset({"GET", "HEAD"})
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
# Vite's file names with a hash of the content.
_HASHED = re.compile(r"-[A-Za-z0-9_-]{8}\.")
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}
_COMMON = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_FOREVER = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"
# Origins that may show environments in a frame: pages of Spaces on the Hub.
_ANCESTORS = ("'self'", "https://huggingface.co", "https://*.huggingface.co", "https://*.hf.space")
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob: https:; "
    "media-src 'self' data: blob: https:; font-src 'self' data:; connect-src 'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
# A panel is one file with inline resources. Its frame has no origin, no network access and no API key.
_FRAME_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob: https:; media-src data: blob:; font-src data:; worker-src blob:; base-uri 'none'; "
    "form-action 'none'"
)
PANEL_HEADERS = {
    **_COMMON,
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "no-store",
}
"""Policy of HTML that the page fetches for a frame. A browser that opens its URL runs no scripts."""
_FRAME = """<!doctype html>
<meta charset="utf-8">
<title>Panel</title>
<script>
addEventListener("message", function take(event) {
  if (event.source !== parent || !event.data || event.data.type !== "openenv:document") return;
  removeEventListener("message", take);
  document.open();
  document.write(String(event.data.html));
  document.close();
});
parent.postMessage({type: "openenv:frame"}, "*");
</script>
"""
_UNBUILT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>OpenEnv: the page is not built</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:3rem auto;padding:0 1rem}
pre{background:#8882;padding:.75rem;overflow:auto}</style>
<h1>The page is not built</h1>
<p>The server works, but this installation lacks its page. Wheels contain the page:</p>
<pre>pip install --force-reinstall openenv</pre>
<p>In a checkout of the source, npm builds it from the folder <code>web/</code>; then load this page again:</p>
<pre>make web</pre>
<p>You need no page to use the server: see <a href="docs">its routes</a>.</p>
</html>
"""


async def page(request: Request) -> Response:
    """Serves the page, or one that says how to build it."""
    return document(request, "index.html", _framed(_PAGE_POLICY, request))


def document(request: Request, name: str, policy: str) -> Response:
    """Serves a document that Vite built, or one that says how to build it.

    Args:
        request: The request.
        name: The name of its file.
        policy: Its content security policy.
    """
    headers = _headers_with(policy)
    path = STATIC / name
    return _file_response(request, path, headers) if path.is_file() else HTMLResponse(_UNBUILT, NOT_BUILT, headers)


async def slash(request: Request) -> Response:
    """Redirects to the URL without a trailing slash, to which the page's file names are relative."""
    return _redirect("../web", request.scope)


async def asset(request: Request, name: str) -> Response:
    """Serves a file of the page."""
    path = STATIC / "assets" / name
    known = _NAME.fullmatch(name) and path.suffix in _TYPES and path.is_file()
    if not known or not path.resolve().is_relative_to(STATIC.resolve()):
        return error_response(UsageError(f"the page has no file {name[:80]!r}: load the page again"), NOT_FOUND)
    return _file_response(
        request, path, {**_COMMON, "Cache-Control": _FOREVER if _HASHED.search(name) else _ASK_AGAIN}
    )


async def frame(request: Request) -> Response:
    """Serves an empty document for an author's panel. The page sends it the HTML; it has no access to the page.

    A `srcdoc` would inherit the policy of the page, which forbids the panel's scripts.
    """
    return HTMLResponse(_FRAME, headers=_headers_with(_framed(_FRAME_POLICY, request)))


_ENDPOINTS = frozenset({page, slash, asset, frame})


class RootRedirect:
    """Answers requests without a route: `/` redirects to the page.

    Args:
        otherwise: ASGI app for all other requests.
    """

    def __init__(self, otherwise: ASGIApp):
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._otherwise
        if scope["type"] == "http" and scope["method"] in _READING and request_head(scope).path in {"/", ""}:
            place: str = scope["path"]
            last = quote(place.rpartition("/")[2], safe="")
            answer = _redirect(f"{last}/web" if last else "web", scope)
        await answer(scope, receive, send)


def is_public(scope: Scope) -> bool:
    """Whether a request is for the page or its files from this module. Routes that an app overrides do not count."""
    if scope["type"] != "http" or scope["method"] not in _READING:
        return False
    path = request_head(scope).path
    if path not in {"/", "/web"} and not path.startswith("/web/"):
        return False
    router = scope["app"].router
    for route in router.routes:
        match, _ = route.matches(scope)
        if match is not Match.NONE:
            return getattr(route, "endpoint", None) in _ENDPOINTS
    return path == "/" and isinstance(router.default, RootRedirect)


def _file_response(request: Request, path: Path, headers: dict[str, str]) -> Response:
    packed = path.with_name(f"{path.name}.gz")
    headers = {**headers, "Vary": "Accept-Encoding"}
    chosen = path
    if packed.is_file() and _takes_gzip(request.headers.get("accept-encoding", "")):
        headers["Content-Encoding"] = "gzip"
        chosen = packed
    found = chosen.stat()
    content, headers["ETag"] = _read(chosen, found.st_mtime_ns, found.st_size)
    if headers["ETag"] in re.findall(r'"[^"]*"', request.headers.get("if-none-match", "")):
        return Response(status_code=NOT_MODIFIED, headers=headers)
    return Response(content, media_type=_TYPES[path.suffix], headers=headers)


@lru_cache(maxsize=64)
def _read(path: Path, changed: int, size: int) -> tuple[bytes, str]:
    """The content of a file, and its ETag; cached until its time or size changes."""
    content = path.read_bytes()
    return content, f'"{blake2b(content, digest_size=12).hexdigest()}"'


def _takes_gzip(accepted: str) -> bool:
    for part in accepted.lower().split(","):
        coding, _, quality = part.partition(";")
        if coding.strip() == "gzip":
            return quality.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


def _redirect(place: str, scope: Any) -> Response:
    query: bytes = scope.get("query_string", b"")
    return Response(
        status_code=REDIRECT,
        headers={"Location": f"{place}?{query.decode('latin-1')}" if query else place, "Cache-Control": _ASK_AGAIN},
    )


def _framed(policy: str, request: Request) -> str:
    """A policy by which own pages, Spaces and the server's allowed origins may show the document in a frame."""
    named = [origin.strip() for origin in (request.app.state.openenv.settings.allowed_origins or "").split(",")]
    ancestors = ["*"] if "*" in named else [*_ANCESTORS, *(origin for origin in named if "://" in origin)]
    return f"{policy}; frame-ancestors {' '.join(ancestors)}"


def _headers_with(policy: str) -> dict[str, str]:
    return {**_COMMON, "Cache-Control": _ASK_AGAIN, "Content-Security-Policy": policy}
