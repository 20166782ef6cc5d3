"""Checks of a running server, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable

from ...testing.probe import Probe
from . import url_frames, url_http
from .finding import Finding, Level
from .report import Report
from .run import run
from .url_site import Site

__all__ = ["PROBES", "TIMEOUT_S", "check_url"]

TIMEOUT_S = 5.0
_REACHED = ("url.reach",)
_LET_IN = ("url.key",)
_TALKING = ("url.reset",)

PROBES = (
    Probe("url.reach", "Is there a server of HTTP at the address?", url_http.reach),
    Probe("url.health", "Does /health say that it is healthy?", url_http.health, _REACHED),
    Probe("url.key", "May whoever asks, with the key given, ask?", url_http.key, _REACHED),
    Probe("url.openapi", "Is /openapi.json of OpenAPI 3, with a version?", url_http.openapi, _LET_IN),
    Probe("url.metadata", "Does /metadata say name and description?", url_http.metadata, _LET_IN),
    Probe("url.schema", "Are those of /schema valid JSON Schemas of objects?", url_http.schema, _LET_IN),
    Probe("url.mcp", "Does /mcp answer tools/list in JSON-RPC?", url_http.mcp, _LET_IN),
    Probe("url.mcp-errors", "Has /mcp the error codes of JSON-RPC?", url_http.mcp_errors, _LET_IN),
    Probe("url.mode", "Is all of reset, step and state served, or nothing of it?", url_http.mode, _LET_IN),
    Probe(
        "url.production",
        "In production, does /ws refuse control without a key?",
        url_frames.production,
        ("url.mode",),
    ),
    Probe("url.reset", "Is reset over /ws answered by an observation?", url_frames.reset, _LET_IN),
    Probe("url.state", "Is state answered by a state?", url_frames.state, _TALKING),
    Probe("url.step", "Is a step answered by an observation?", url_frames.step, _TALKING),
    Probe("url.truth", "Are observations and state of the schemas of /schema?", url_frames.truth, _TALKING),
    Probe("url.bad-frames", "Do bad frames get errors of the right codes?", url_frames.bad_frames, _TALKING),
    Probe("url.order", "Is each frame answered once, in order?", url_frames.order, _TALKING),
    Probe("url.close", "Does close end the connection with code 1000?", url_frames.close, _TALKING),
    Probe("url.odd-frames", "Does a session outlive JSON that is no message?", url_frames.odd_frames, _TALKING),
)


def check_url(
    url: str,
    *,
    timeout_s: float = TIMEOUT_S,
    api_key: str | None = None,
    heard: Callable[[Finding], None] | None = None,
) -> Report:
    """Checks a running server of any implementation, in bounded time whatever it does.

    Args:
        url: Its address: `http(s)://`, `ws(s)://`, or a bare `host:port`.
        timeout_s: What one call may take; all of them together take at most twelve times as long.
        api_key: Shown with each call. One of scope control, or not all can be checked.
        heard: Gets each finding when it is there.

    Raises:
        UsageError: The address or the key is none.
        MissingExtra: httpx or jsonschema is not installed.
    """
    with Site(url, timeout_s, api_key) as site:
        return Report(target=site.place, findings=run(PROBES, site, Level.URL, heard))
