"""`openenv top`: what a server does, live."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import click

from ..errors import ConnectionLost, MissingExtra, ProtocolViolation, Unauthorized, UsageError
from .bench_options import display_module
from .scrape import Interval, Scrape

__all__ = ["top"]

TIMEOUT_S = 5.0
# Where there is no terminal to be filled.
LINES_ONCE = 48


class Look(NamedTuple):
    """What was seen at one time.

    Attributes:
        scrape: The metrics.
        sessions: The list of sessions; None where there is none for us.
    """

    scrape: Scrape
    sessions: Sequence[Mapping[str, Any]] | None


@click.command(short_help="What a server does, live.")
@click.argument("url")
@click.option(
    "--api-key", envvar="OPENENV_API_KEY", help="Key of scope view, or control to see sessions. [OPENENV_API_KEY]"
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks; rates and quantiles are of what happened between them.",
)
@click.option("--once", is_flag=True, help="Print one picture and end; so it is where output is no terminal.")
def top(url: str, api_key: str | None, interval: float, once: bool) -> None:
    """Shows sessions, slots, queue, rates, latencies and errors of the server at URL. Ctrl-C ends it.

    \b
    Examples:
      openenv top http://127.0.0.1:8000
      openenv top env.example.org:8000 --api-key "$KEY" --once
    """
    shown = display_module()
    from .top_view import picture

    httpx = _httpx()
    address = _http_address(url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    console = shown.stdout()
    with httpx.Client(base_url=address, headers=headers, timeout=TIMEOUT_S) as client:
        if not once and console.is_terminal:
            _watch(_Server(address, client), console, interval)
            return
        server = _Server(address, client)
        first = server.look().scrape
        time.sleep(interval)
        last = server.look()
        with console.capture() as drawn:
            console.print(picture(address, Interval(first, last.scrape), last.sessions, console.width, LINES_ONCE))
    for line in drawn.get().splitlines():
        print(line.rstrip())


class _Server:
    """A server that is looked at."""

    def __init__(self, address: str, client: Any):
        self.address = address
        self._client = client
        self._lists = True

    def look(self) -> Look:
        """Asks it how it is.

        Raises:
            ConnectionLost: It does not answer; it may do so later.
            Unauthorized, UsageError, ProtocolViolation: It will not answer.
        """
        answer = self._get("/metrics")
        if answer.status_code in {401, 403}:
            raise Unauthorized(f"{self.address} does not accept this key for its metrics: give one by --api-key")
        if answer.status_code == 404:
            raise UsageError(f"{self.address} has no /metrics: it is no openenv server, or metrics are off there")
        if answer.status_code >= 500:
            raise ConnectionLost(f"{self.address} answers with status {answer.status_code}")
        if answer.status_code != 200:
            raise ProtocolViolation(f"{self.address} answers with status {answer.status_code}")
        return Look(Scrape.parse(answer.text, time.monotonic()), self._sessions())

    def _sessions(self) -> Sequence[Mapping[str, Any]] | None:
        if not self._lists:
            return None
        answer = self._get("/sessions")
        if answer.status_code != 200:
            # Not for this key, or not there: that does not change from one look to the next.
            self._lists = answer.status_code >= 500
            return None
        try:
            found = answer.json()
        except ValueError:
            return None
        listed = found.get("sessions") if isinstance(found, dict) else found
        return listed if isinstance(listed, list) else None

    def _get(self, path: str) -> Any:
        import httpx

        try:
            return self._client.get(path)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise ConnectionLost(f"no answer from {self.address}: {reason}") from None


def _watch(server: _Server, console: Any, interval: float) -> None:
    """Draws until Ctrl-C. A server that goes away is waited for."""
    from rich.live import Live

    from .top_view import absence, picture

    address = server.address
    before: Scrape | None = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            try:
                look = server.look()
            except ConnectionLost as error:
                before = None
                live.update(absence(address, error.message), refresh=True)
            else:
                span = Interval(before or look.scrape, look.scrape)
                live.update(picture(address, span, look.sessions, console.width, console.height), refresh=True)
                before = look.scrape
            time.sleep(max(0.0, began + interval - time.monotonic()))


def _http_address(url: str) -> str:
    from ..client.url import http_url, websocket_url

    return http_url(websocket_url(url))


def _httpx() -> ModuleType:
    try:
        import httpx
    except ModuleNotFoundError:
        raise MissingExtra("httpx", "bench") from None
    return httpx
