"""A Docker SDK adapter that closes sockets of failed connections. Imported only where the SDK is installed."""

from __future__ import annotations

import socket
from typing import Any

from docker.transport import unixconn


class SocketAdapter(unixconn.UnixHTTPAdapter):
    """Sends requests to a Unix socket. The SDK's own adapter leaks a socket each time that no engine answers."""

    def get_connection(self, url: str | bytes, proxies: Any = None) -> Any:
        """The connections to one address."""
        with self.pools.lock:
            if self.pools.get(url) is None:
                self.pools[url] = _SocketPool(str(url), self.socket_path, self.timeout, maxsize=self.max_pool_size)
        return super().get_connection(url, proxies)


class _SocketPool(unixconn.UnixHTTPConnectionPool):
    def _new_conn(self) -> Any:
        timeout: Any = self.timeout  # as the SDK gives it: seconds
        return _SocketConnection(self.base_url, self.socket_path, timeout)


class _SocketConnection(unixconn.UnixHTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)  # closed with the connection, which is closed when this fails
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.unix_socket)
