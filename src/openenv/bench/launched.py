"""Servers that are launched somewhere for a measurement, a gateway before them if wanted, and gone after it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Self
from urllib.request import ProxyHandler, Request, build_opener

from ..errors import UsageError
from ..launch import Gateway, deploy
from ..providers.catalog import entry
from ..providers.deployment import Deployment
from ..providers.spec import LaunchSpec

__all__ = ["GATEWAYS", "Launched", "Launching"]

GATEWAYS = ("none", "envoy")
# Until servers have no session any more, and between two looks.
SETTLE_S, LOOK_S = 10.0, 0.1
_HELD = b"openenv_slots_held "


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """What is to be launched.

    Attributes:
        provider: Where, by its name in `providers.catalog`.
        provider_options: Arguments of the provider.
        spec: The servers.
        gateway: What is before them: `envoy`, or `none` for a load that chooses among them.
        sessions: How many there will be at one time.
    """

    provider: str
    spec: LaunchSpec
    gateway: str
    sessions: int
    provider_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        entry(self.provider)
        if self.gateway not in GATEWAYS:
            raise UsageError(f"gateway must be one of {', '.join(GATEWAYS)}, got {self.gateway!r}")

    @property
    def words(self) -> str:
        """What it is, in words."""
        what = getattr(self.spec, self.spec.form)
        before = "" if self.gateway == "none" else f", behind {self.gateway.capitalize()}"
        return f"{self.spec.count} x {what} on {self.provider}{before}"


class Launched:
    """Servers, ready, and gone when the block is left, however it is left.

    Args:
        launching: What.
    """

    def __init__(self, launching: Launching):
        self._launching = launching
        self._stack = ExitStack()
        self._deployment: Deployment | None = None
        self.urls: list[str] = []

    def __enter__(self) -> Self:
        """Launches them and waits until they are ready.

        Raises:
            UsageError: The place cannot do that.
            ProviderFailed: It did not.
        """
        launching = self._launching
        with ExitStack() as stack:
            provider = entry(launching.provider).make(**launching.provider_options)
            close = getattr(provider, "close", None)
            if close is not None:
                stack.callback(close)
            self._deployment = deployment = stack.enter_context(deploy(launching.spec, provider))
            self.urls = deployment.urls
            if launching.gateway == "envoy":
                gateway = Gateway(deployment, max_sessions=max(launching.sessions, 1024))
                self.urls = [stack.enter_context(gateway).url]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._stack.__exit__(*exc_info)

    @property
    def api_key(self) -> str | None:
        """The key that they ask for."""
        return None if self._deployment is None else self._deployment.api_key

    def settle(self) -> None:
        """Waits until none of the servers has a session any more, for 10 s at most."""
        assert self._deployment is not None
        limit = time.monotonic() + SETTLE_S
        for url in self._deployment.urls:
            while time.monotonic() < limit and _is_busy(url, self.api_key):
                time.sleep(LOOK_S)


def _is_busy(url: str, api_key: str | None) -> bool:
    """Whether a server says in its metrics that it has sessions. One that says nothing is taken for idle."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    request = Request(f"{url}/metrics", headers=headers)  # noqa: S310 - the provider's address
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=SETTLE_S) as answer:
            lines = answer.read().splitlines()
    except (OSError, HTTPException):  # it may die in the middle of its answer
        return False
    held = next((line for line in lines if line.startswith(_HELD)), b"x 0")
    return float(held.split()[1]) > 0
