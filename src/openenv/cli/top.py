"""`openenv top`: read the metrics of a server and show them live."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import click

from .._http import SCOPE_HEADER, bearer, fetch
from ..errors import ConnectionLost, ProtocolViolation, Unauthorized, UsageError
from ..telemetry.metrics import quantile
from .terminal import display_module


class Timing(NamedTuple):
    """The figures of a phase in an interval. None: no call ended in it.

    Attributes:
        per_second: How often it ended.
        mean, p50, p99: Seconds.
    """

    per_second: float
    mean: float | None
    p50: float | None
    p99: float | None


class Scrape(NamedTuple):
    """The metrics of a server.

    Attributes:
        at: Monotonic seconds.
        samples: Labels and values by name, without `openenv_`.
    """

    at: float
    samples: Mapping[str, list[tuple[dict[str, str], float]]]

    @classmethod
    def parse(cls, text: str, at: float) -> Scrape:
        """Reads Prometheus' text format.

        Raises:
            ProtocolViolation: The text is not in that format, or not from an openenv server.
        """
        from prometheus_client.parser import text_string_to_metric_families

        samples: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    samples[sample.name.removeprefix("openenv_")].append((sample.labels, sample.value))
        except ValueError as error:
            raise ProtocolViolation(f"the answer to GET /metrics is not Prometheus text: {error}") from None
        if "workers" not in samples:
            raise ProtocolViolation("the answer to GET /metrics is not from an openenv server")
        return cls(at, samples)

    def value(self, name: str) -> float:
        """A number without labels; 0 if the server does not have it."""
        return next((value for labels, value in self.samples.get(name, ()) if not labels), 0.0)

    def by(self, name: str, label: str) -> dict[str, float]:
        """Numbers by the value of a label, in the order of the server."""
        return {labels[label]: value for labels, value in self.samples.get(name, ()) if label in labels}

    def errors(self) -> dict[tuple[str, str], float]:
        """Number of errors, by class and blame."""
        return {(labels["error"], labels["blame"]): value for labels, value in self.samples.get("errors_total", ())}

    def buckets(self, phase: str) -> list[tuple[float, float]]:
        """Bounds in seconds, and the number of calls below."""
        buckets = self.samples.get("phase_seconds_bucket", ())
        return sorted((float(labels["le"]), value) for labels, value in buckets if labels["phase"] == phase)

    def seconds(self, phase: str) -> float:
        """The total time of a phase."""
        return self.by("phase_seconds_sum", "phase").get(phase, 0.0)


class Interval:
    """The changes from one scrape to the next.

    Args:
        before, now: Scrapes of one server; after a restart in between, all of its counts are new.
    """

    def __init__(self, before: Scrape, now: Scrape):
        self.now = now
        self.seconds = max(now.at - before.at, 1e-9)
        self._before = before

    def errors(self) -> dict[tuple[str, str], float]:
        """Number of errors in it, by class and blame."""
        before = self._before.errors()
        pairs = ((key, before.get(key, 0.0), value) for key, value in self.now.errors().items())
        return {key: value - earlier if value >= earlier else value for key, earlier, value in pairs}

    def timing(self, phase: str) -> Timing:
        """The figures of a phase in the interval."""
        before, buckets = dict(self._before.buckets(phase)), self.now.buckets(phase)
        sums = [value - before.get(bound, 0.0) for bound, value in buckets]
        seconds = self.now.seconds(phase) - self._before.seconds(phase)
        if any(value < 0 for value in sums):
            sums, seconds = [value for _, value in buckets], self.now.seconds(phase)
        counts = [value - below for value, below in zip(sums, [0.0, *sums], strict=False)]
        ended = sums[-1] if sums else 0.0
        if not ended:
            return Timing(0.0, None, None, None)
        bounds = [bound for bound, _ in buckets[:-1]]
        low, high = (quantile(bounds, counts, share) for share in (0.5, 0.99))
        return Timing(ended / self.seconds, seconds / ended, low, high)


TIMEOUT_S = 5.0
# Lines for output that is not a terminal.
LINES_ONCE = 48


@click.command()
@click.argument("url")
@click.option(
    "--api-key", envvar="OPENENV_API_KEY", help="Key of scope view, or control to see sessions. [OPENENV_API_KEY]"
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two updates; rates and quantiles cover the time between them.",
)
@click.option("--once", is_flag=True, help="Print one view and exit; the default if the output is not a terminal.")
def top(url: str, api_key: str | None, interval: float, once: bool) -> None:
    """Shows sessions, slots, queue, rates, latencies and errors of the server at URL. Ctrl-C ends it.

    \b
    Examples:
      openenv top http://127.0.0.1:8000
      openenv top env.example.org:8000 --api-key "$KEY" --once
    """
    shown = display_module()
    from rich.live import Live

    from ..client.endpoints import http_url, websocket_url

    address = http_url(websocket_url(url))
    console = shown.console()
    if once or not console.is_terminal:
        first, _ = _look(address, api_key)
        time.sleep(interval)
        last, sessions = _look(address, api_key)
        with console.capture() as drawn:
            picture = shown.picture(address, Interval(first, last), sessions, console.width, LINES_ONCE)
            console.print(picture)
        for line in drawn.get().splitlines():
            print(line.rstrip())
        return
    before: Scrape | None = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:  # until Ctrl-C, also while the server does not answer
            began = time.monotonic()
            try:
                now, sessions = _look(address, api_key)
            except ConnectionLost as error:
                before = None
                live.update(shown.absence(address, error.message), refresh=True)
            else:
                span = Interval(before or now, now)
                picture = shown.picture(address, span, sessions, console.width, console.height)
                live.update(picture, refresh=True)
                before = now
            time.sleep(max(0.0, began + interval - time.monotonic()))


def _look(address: str, api_key: str | None) -> tuple[Scrape, list[dict[str, Any]] | None]:
    """Asks the server for its metrics and its sessions; None for sessions that this key may not list.

    Raises:
        ConnectionLost: The server does not answer now.
        Unauthorized, UsageError, ProtocolViolation: The server will not answer later either.
    """
    answer = fetch(f"{address}/metrics", bearer(api_key), TIMEOUT_S)
    if answer.status in {401, 403}:
        raise Unauthorized(f"{address} does not accept this key for its metrics: give one by --api-key")
    if answer.status == 404:
        raise UsageError(f"{address} has no /metrics: it is not an openenv server, or metrics are off")
    if answer.status >= 500:
        raise ConnectionLost(f"{address} answers with status {answer.status}")
    if answer.status != 200:
        raise ProtocolViolation(f"{address} answers with status {answer.status}")
    scrape, listed = Scrape.parse(answer.body.decode(errors="replace"), time.monotonic()), None
    if answer.headers.get(SCOPE_HEADER) == "control":  # other keys may not list sessions
        with suppress(ValueError):  # not JSON: the app's owner put another route there
            listed = fetch(f"{address}/sessions", bearer(api_key), TIMEOUT_S).json()
    return scrape, listed if isinstance(listed, list) else None
