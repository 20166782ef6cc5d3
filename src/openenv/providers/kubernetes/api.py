"""Requests to the API of a Kubernetes cluster, by kr8s: its errors are translated here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import ssl
import tempfile
import time
import warnings
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...errors import MissingExtra, ProviderBusy, ProviderFailed

__all__ = ["Api", "Place", "Refused", "Unanswered", "decoded", "translated"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a Pod finds who it is for the API."""
REQUEST_S = 30.0
# A request that fails for a passing reason: how often it is made, and the seconds until it is made again.
ATTEMPTS, FIRST_PAUSE_S, LONGEST_PAUSE_S = 5, 0.2, 5.0
TOO_MANY = 429
# What kr8s writes keys of a kubeconfig to, and leaves behind.
_COPY = re.compile(rf"{re.escape(tempfile.gettempprefix())}[a-z0-9_]{{8}}")


class Refused(Exception):
    """An answer that is no success.

    Attributes:
        status: Its HTTP status.
        message: What the cluster says.
        retry_after_s: When it may be asked again, if it says so.
    """

    def __init__(self, status: int, message: str, retry_after_s: float | None = None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status == TOO_MANY or self.status >= 500


class Unanswered(Exception):
    """There was no answer: the request may or may not have been executed."""


@contextlib.contextmanager
def translated(what: str, failure: type[ProviderFailed] = ProviderFailed) -> Iterator[None]:
    """Has what goes wrong with requests be errors of ours.

    Args:
        what: What is being done, to be followed by "failed".
        failure: What it is when it would fail again.

    Raises:
        ProviderBusy: It failed for a passing reason.
        ProviderFailed: It would fail again (`failure`).
    """
    try:
        yield
    except Refused as refusal:
        kind: type[ProviderFailed] = ProviderBusy if refusal.passing else failure
        raise kind(f"{what} failed: {refusal.message}", retry_after_s=refusal.retry_after_s) from None
    except Unanswered as silence:
        raise ProviderBusy(f"{what} failed: the cluster does not answer ({silence})") from None


@dataclass(frozen=True, slots=True)
class Place:
    """A path of the API.

    Attributes:
        version: Group and version.
        path: What comes after the namespace.
        namespace: The namespace, for what is in one.
    """

    version: str
    path: str
    namespace: str | None


class Api:
    """The API of a cluster. Belongs to one event loop.

    Args:
        namespace: The namespace; None takes the one of the context, or of the Pod that this runs in.
        kubeconfig: File that says where the cluster is; None: KUBECONFIG, ~/.kube/config, or the Pod's own account.
        context: Context of that file; None: its current one.

    Attributes:
        reached: Whether there ever was a connection to a cluster.
    """

    def __init__(self, namespace: str | None, kubeconfig: str | Path | None, context: str | None):
        self._namespace = namespace
        self._kubeconfig = None if kubeconfig is None else str(kubeconfig)
        self._context = context
        self._api: Any = None
        self._connecting = asyncio.Lock()
        self._tls: ssl.SSLContext | bool = True
        self.reached = False

    async def namespace(self) -> str:
        """The namespace that is meant where none is said."""
        if self._namespace is None:
            self._namespace = str((await self._connected()).auth.namespace)
        return self._namespace

    async def json(
        self,
        method: str,
        place: Place,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        attempts: int = ATTEMPTS,
    ) -> dict[str, Any]:
        """What the cluster answers; asked again while it fails for a passing reason.

        Raises:
            Refused: With something else.
            Unanswered: With nothing.
        """
        return decoded(await self.text(method, place, body, params, headers, attempts))

    async def text(
        self,
        method: str,
        place: Place,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        attempts: int = ATTEMPTS,
    ) -> str:
        """As `json`, for answers that are text."""
        content = None if body is None else json.dumps(body)
        more: dict[str, Any] = {"params": dict(params or {}), "headers": dict(headers or {}), "content": content}
        for number in range(1, attempts + 1):
            try:
                return await self._once(method, place, more)
            except (Refused, Unanswered) as failure:
                if number == attempts or (isinstance(failure, Refused) and not failure.passing):
                    raise
                asked_for = failure.retry_after_s if isinstance(failure, Refused) else None
            pause = FIRST_PAUSE_S * 2 ** (number - 1) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads requests
            await asyncio.sleep(min(max(pause, asked_for or 0.0), LONGEST_PAUSE_S))
        raise AssertionError("an attempt returns or raises")

    async def lines(self, place: Place, params: Mapping[str, str], silence_s: float) -> AsyncGenerator[str]:
        """The lines of an answer that goes on and on.

        Args:
            place: What is asked for.
            params: Its query.
            silence_s: Seconds without a line after which the connection is given up.

        Raises:
            Refused: The answer is no success.
            Unanswered: There is none, or it broke off.
        """
        api = await self._connected()
        patience = _timeout(silence_s)
        try:
            async with api.call_api(
                "GET",
                version=place.version,
                namespace=place.namespace,
                url=place.path,
                stream=True,
                params=dict(params),
                timeout=patience,
            ) as answer:
                async for line in answer.aiter_lines():
                    yield line
        except Exception as error:  # noqa: BLE001 - kr8s raises what its libraries do
            raise self._explained(error) from None

    async def road(self, place: Place, renew: bool = False) -> tuple[str, dict[str, Any]]:
        """The address of a WebSocket of the API, and what `websockets.connect` needs for it.

        Args:
            place: Where it leads.
            renew: Whether to look for credentials anew.

        Raises:
            Unanswered: The cluster does not answer.
        """
        if renew:
            self._api = None
        auth = (await self._connected()).auth
        options: dict[str, Any] = {"additional_headers": {}}
        if auth.token:
            options["additional_headers"] = {"Authorization": f"Bearer {auth.token.strip()}"}
        if isinstance(self._tls, ssl.SSLContext):
            options["ssl"] = self._tls
        if auth.tls_server_name:
            options["server_hostname"] = auth.tls_server_name
        if auth.proxy:
            options["proxy"] = auth.proxy
        base = f"ws{auth.server.rstrip('/').removeprefix('http')}"
        where = "" if place.namespace is None else f"namespaces/{place.namespace}/"
        return f"{base}/api/{place.version}/{where}{place.path}", options

    async def aclose(self) -> None:
        """Ends its connections. It may be used again."""
        api, self._api = self._api, None
        session = getattr(api, "_session", None)
        if session is not None:
            await session.aclose()

    async def _once(self, method: str, place: Place, more: Mapping[str, Any]) -> str:
        api = await self._connected()
        try:
            async with api.call_api(
                method, version=place.version, namespace=place.namespace, url=place.path, **more
            ) as answer:
                return str(answer.text)
        except Exception as error:  # noqa: BLE001 - kr8s raises what its libraries do
            raise self._explained(error) from None

    def _explained(self, error: Exception) -> Refused | Unanswered:
        answer = getattr(error, "response", None)
        if answer is None:
            if isinstance(error, OSError):
                self._api = None  # credentials that were in a file are looked for anew
            return Unanswered(f"{type(error).__name__}: {error}".rstrip(": "))
        try:
            message = str(answer.json()["message"])
        except (ValueError, KeyError, TypeError):
            message = f"{answer.text:.500}"
        after = answer.headers.get("Retry-After", "")
        said = message or f"HTTP {answer.status_code}"
        return Refused(answer.status_code, said, float(after) if after.isdecimal() else None)

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._api is None:
                began = time.time()
                api = await self._connect()
                self._tls = await api.auth.ssl_context()
                _remove_copies(api.auth, began)
                self._api = api
                self.reached = True
            return self._api

    async def _connect(self) -> Any:
        try:
            import kr8s
            import kr8s.asyncio
        except ImportError:
            raise MissingExtra("kr8s", "kubernetes") from None
        # It works with versions that it does not know yet, and says so every time.
        warnings.filterwarnings("ignore", message="Kubernetes version .* is not supported", category=UserWarning)
        try:
            async with asyncio.timeout(REQUEST_S):
                # Named, since kr8s takes any cluster it knows where nothing is named.
                account = str(SERVICE_ACCOUNT)
                api = await kr8s.asyncio.api(
                    kubeconfig=self._kubeconfig, context=self._context, serviceaccount=account
                )
        except (ValueError, KeyError, IndexError, TypeError, RuntimeError, yaml.YAMLError) as error:
            raise ProviderFailed(
                f"no Kubernetes cluster is known: give kubeconfig and context, or set KUBECONFIG ({error})"
            ) from None
        except Exception as error:  # noqa: BLE001 - kr8s raises what its libraries do
            raise self._explained(error) from None
        api.timeout = _timeout(REQUEST_S)
        return api


def decoded(text: str) -> dict[str, Any]:
    """The object that an answer is. Raises `Unanswered` if it is none: then it is not the cluster that answered."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unanswered(f"something answers that is no cluster: {text:.100}")
    return found


def _timeout(read_s: float) -> Any:
    import httpx

    return httpx.Timeout(REQUEST_S, read=read_s)


def _remove_copies(auth: Any, since: float) -> None:
    """Removes what kr8s has written keys to, once they are read."""
    for name in ("client_key_file", "client_cert_file", "server_ca_file"):
        path = Path(str(getattr(auth, name, None) or ""))
        if path.parent == Path(tempfile.gettempdir()) and _COPY.fullmatch(path.name):
            with contextlib.suppress(OSError):
                if path.stat().st_ctime >= since - 1.0:
                    path.unlink()
