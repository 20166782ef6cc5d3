"""Addresses under which agents on other machines reach a proxy of this one: directly, or through a tunnel."""

from __future__ import annotations

import importlib
import re
import secrets
import shutil
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

from .._asyncio import shared_loop
from ..errors import ProviderFailed
from ..harness.agents import HarnessStartupError
from ..harness.process import HarnessProcess


class ForwardingError(ProviderFailed):
    """A port cannot be forwarded; the message names the next step."""


class PortForwarder(ABC):
    """Makes a local port reachable from elsewhere::

        with CaptureServer(llm_url=url) as proxy, make_forwarder("cloudflare") as forwarder:
            address = forwarder.start(proxy.port)

    Attributes:
        url: The address from outside; None while it is not started.
    """

    url: str | None = None

    @property
    def name(self) -> str:
        """Name of the class."""
        return type(self).__name__

    @classmethod  # noqa: B027 - a direct address needs nothing
    def preflight(cls) -> None:
        """Raises `ForwardingError` if it lacks a program or package that it needs."""

    @abstractmethod
    def start(self, local_port: int, *, local_host: str = "127.0.0.1") -> str:
        """Begins to forward, and returns the address from outside. Raises `ForwardingError`."""

    def stop(self) -> None:
        """Ends it. May be called repeatedly."""
        self.url = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class DirectExposure(PortForwarder):
    """Agents reach the port itself, as in a network that they share.

    Args:
        advertise_host: This machine's address as they know it.
        scheme: `http`, or `https` behind a server that ends TLS.
    """

    def __init__(self, advertise_host: str = "127.0.0.1", scheme: str = "http"):
        self._origin = f"{scheme}://{f'[{advertise_host}]' if ':' in advertise_host else advertise_host}"

    def start(self, local_port: int, *, local_host: str = "127.0.0.1") -> str:
        self.url = f"{self._origin}:{local_port}"
        return self.url


class GradioForwarder(PortForwarder):
    """A tunnel of Gradio's share servers, which needs no account.

    Args:
        share_server_address: `host:port` of a share server of your own; None: Gradio's.
        share_server_tls_certificate: File with its certificate.
    """

    def __init__(self, share_server_address: str | None = None, share_server_tls_certificate: str | None = None):
        self._server, self._certificate = share_server_address, share_server_tls_certificate

    @classmethod
    def preflight(cls) -> None:
        _gradio("networking")

    def start(self, local_port: int, *, local_host: str = "127.0.0.1") -> str:
        networking = _gradio("networking")
        self.stop()
        token = secrets.token_urlsafe(32)
        try:
            self.url = networking.setup_tunnel(local_host, local_port, token, self._server, self._certificate)
        except Exception as error:  # Gradio raises its own
            raise ForwardingError(
                f"Gradio opens no tunnel: {error}; is its share server reachable? kind=direct needs none"
            ) from error
        assert self.url is not None
        return self.url

    def stop(self) -> None:
        if self.url is not None:
            for tunnel in _gradio("tunneling").CURRENT_TUNNELS:
                if tunnel.url == self.url:
                    tunnel.kill()
        super().stop()


def _gradio(module: str) -> Any:
    """A module of Gradio, if it is installed."""
    try:
        return importlib.import_module(f"gradio.{module}")
    except ImportError:
        raise ForwardingError(
            "a tunnel of Gradio needs its package: pip install gradio, or choose another kind, such as cloudflare"
        ) from None


class CloudflareForwarder(PortForwarder):
    """A tunnel of Cloudflare by its program `cloudflared`.

    Args:
        tunnel_name: A tunnel of your account; None: one without an account, with a new address each time.
        hostname: The tunnel's hostname; needed with `tunnel_name`.
        binary: The program.
        startup_timeout_s: Seconds that it has to connect.

    Raises:
        ForwardingError: One of `tunnel_name` and `hostname` is given without the other.
    """

    def __init__(
        self,
        tunnel_name: str | None = None,
        hostname: str | None = None,
        binary: str = "cloudflared",
        startup_timeout_s: float = 60.0,
    ):
        if (tunnel_name is None) != (hostname is None):
            raise ForwardingError("a tunnel of your account has a name and a hostname: give both, or neither")
        self._tunnel, self._hostname, self._binary = tunnel_name, hostname, binary
        self._timeout_s = startup_timeout_s
        self._process: HarnessProcess | None = None

    @classmethod
    def preflight(cls, binary: str = "cloudflared") -> None:
        if shutil.which(binary) is None:
            raise ForwardingError(f"{binary} is not installed: install it, or choose another kind, such as gradio")

    def start(self, local_port: int, *, local_host: str = "127.0.0.1") -> str:
        self.preflight(self._binary)
        self.stop()
        target = ["--url", f"http://{local_host}:{local_port}"]
        tunnel = ["run", *target, self._tunnel] if self._tunnel else target
        # It writes its log, and so its address, to stderr.
        command = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", self._binary, "tunnel", *tunnel]
        said: list[str] = []

        def is_ready(line: str) -> bool:
            said.append(line)
            if self._hostname is not None:
                self.url = f"https://{self._hostname}" if "Registered tunnel connection" in line else None
            elif (found := re.search(r"https://[\w-]+\.trycloudflare\.com", line)) is not None:
                self.url = found[0]
            return self.url is not None

        process = HarnessProcess(command, "/", startup_timeout_s=self._timeout_s)
        try:
            shared_loop().run(process.start(is_ready))
        except HarnessStartupError as error:
            words = " ".join(said[-5:])[-500:]
            raise ForwardingError(
                f"{self._binary} opens no tunnel: {error}; it said {words!r}; does `{self._binary} tunnel` run here?"
            ) from error
        assert self.url is not None
        self._process = process
        return self.url

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            shared_loop().run(process.stop())
        super().stop()


_KINDS: dict[str, type[PortForwarder]] = {
    "cloudflare": CloudflareForwarder,
    "direct": DirectExposure,
    "gradio": GradioForwarder,
}


def make_forwarder(kind: str = "gradio", **options: Any) -> PortForwarder:
    """Makes a forwarder.

    Args:
        kind: `direct`, `gradio` or `cloudflare`.
        options: Arguments of `DirectExposure`, `GradioForwarder` or `CloudflareForwarder`.

    Raises:
        ForwardingError: There is no such kind.
    """
    if kind not in _KINDS:
        raise ForwardingError(f"there is no forwarder {kind!r:.40}: choose one of {', '.join(_KINDS)}")
    return _KINDS[kind](**options)
