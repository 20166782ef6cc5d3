"""Requests to the API of a Kubernetes cluster: what goes wrong with them is translated here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ...chance import CHANCE
from ...errors import MissingExtra, ProviderBusy, ProviderFailed

if TYPE_CHECKING:
    import httpx

__all__ = ["Api", "Place", "Refused", "Unanswered", "decoded", "translated"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a Pod finds who it is for the API."""
REQUEST_S = 30.0
# A request that fails for a passing reason: how often it is made, and the seconds until it is made again.
ATTEMPTS, FIRST_PAUSE_S, LONGEST_PAUSE_S = 5, 0.2, 5.0
UNAUTHORIZED, TOO_MANY = 401, 429
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
        version: The version that it says it has; "" before there was one.
    """

    def __init__(self, namespace: str | None, kubeconfig: str | Path | None, context: str | None):
        self._namespace = namespace
        self._kubeconfig = None if kubeconfig is None else str(kubeconfig)
        self._context = context
        self._line: _Line | None = None
        self._connecting = asyncio.Lock()
        self.reached = False
        self.version = ""

    async def namespace(self) -> str:
        """The namespace that is meant where none is said."""
        if self._namespace is None:
            self._namespace = str((await self._connected()).auth.namespace)
        return self._namespace

    async def text(
        self,
        method: str,
        place: Place,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        attempts: int = ATTEMPTS,
    ) -> str:
        """What the cluster answers; asked again while it fails for a passing reason.

        Raises:
            Refused: With something else.
            Unanswered: With nothing.
        """
        content = None if body is None else json.dumps(body)
        more: dict[str, Any] = {"params": dict(params or {}), "headers": dict(headers or {}), "content": content}
        for number in range(1, attempts + 1):
            try:
                async with self._asked(method, place, more) as answer:
                    return answer.text
            except (Refused, Unanswered) as failure:
                if number == attempts or (isinstance(failure, Refused) and not failure.passing):
                    raise
                asked_for = failure.retry_after_s if isinstance(failure, Refused) else None
            pause = FIRST_PAUSE_S * 2 ** (number - 1) * CHANCE.uniform(0.5, 1.0)
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
        more = {"params": dict(params), "timeout": _timeout(silence_s)}
        async with self._asked("GET", place, more, stream=True) as answer:
            async for line in answer.aiter_lines():
                yield line

    async def road(self, place: Place, refused: Mapping[str, Any] | None = None) -> tuple[str, Mapping[str, Any]]:
        """The address of a WebSocket of the API, and what `websockets.connect` needs for it.

        Args:
            place: Where it leads.
            refused: What was needed before, and was not let in: credentials are looked for anew, once for all who
                say so.

        Raises:
            Unanswered: The cluster does not answer.
        """
        line = await self._connected()
        if refused is line.options:
            line = await self._connected(line)
        base = f"ws{line.auth.server.rstrip('/').removeprefix('http')}"
        return f"{base}{_path(place)}", line.options

    async def aclose(self) -> None:
        """Ends its connections. It may be used again."""
        async with self._connecting:
            line, self._line = self._line, None
            if line is not None:
                await line.client.aclose()

    @contextlib.asynccontextmanager
    async def _asked(
        self, method: str, place: Place, more: Mapping[str, Any], stream: bool = False
    ) -> AsyncGenerator[httpx.Response]:
        """A success, read unless it is to `stream`. Credentials that have ended are looked for anew."""
        line = await self._connected()
        try:
            answer = await _sent(line, method, _path(place), more)
            if answer.status_code == UNAUTHORIZED:
                await answer.aclose()
                line = await self._connected(line)
                answer = await _sent(line, method, _path(place), more)
            async with contextlib.aclosing(answer):
                if not (stream and answer.is_success):
                    await answer.aread()
                _check(answer)
                yield answer
        except _failures() as error:
            raise _unanswered(error) from None

    async def _connected(self, stale: _Line | None = None) -> _Line:
        """The way to the cluster; another one than a `stale` one, which nobody has replaced yet."""
        async with self._connecting:
            if self._line is not None and self._line is stale:
                self._line = None
                await stale.client.aclose()
            if self._line is None:
                self._line = await self._connect()
                self.reached = True
            return self._line

    async def _connect(self) -> _Line:
        try:
            import kr8s.asyncio
        except ImportError:
            raise MissingExtra("kr8s", "kubernetes") from None
        began, account = time.time(), str(SERVICE_ACCOUNT)
        try:
            async with asyncio.timeout(REQUEST_S):
                # One for us alone, and for its credentials alone. What kr8s shares is closed by any of those who have
                # it, and connections of requests that fail, or are let in anew at one time, are left open by it.
                auth = await kr8s.asyncio.Api(
                    bypass_factory=True, kubeconfig=self._kubeconfig, context=self._context, serviceaccount=account
                ).auth
                tls = await auth.ssl_context()
        except (ValueError, KeyError, IndexError, TypeError, RuntimeError, yaml.YAMLError) as error:
            raise ProviderFailed(
                f"no Kubernetes cluster is known: give kubeconfig and context, or set KUBECONFIG ({error})"
            ) from None
        except Exception as error:  # noqa: BLE001 - kr8s raises what its libraries do
            raise _unanswered(error) from None
        _remove_copies(auth, began)
        line = _Line.to(auth, tls)
        try:
            answer = await _sent(line, "GET", "/version", {})
            await answer.aread()
            _check(answer)
            self.version = str(decoded(answer.text).get("gitVersion", ""))
        except BaseException as error:
            await line.client.aclose()
            if isinstance(error, _failures()):
                raise _unanswered(error) from None
            raise
        return line


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """A way to the cluster.

    Attributes:
        auth: What kr8s knows of it.
        client: What makes requests there.
        options: What `websockets.connect` needs.
    """

    auth: Any
    client: httpx.AsyncClient
    options: Mapping[str, Any]

    @classmethod
    def to(cls, auth: Any, tls: ssl.SSLContext | bool) -> _Line:
        """One with certain credentials."""
        import httpx

        headers = {"Authorization": f"Bearer {auth.token.strip()}"} if auth.token else {}
        client = httpx.AsyncClient(
            base_url=auth.server,
            headers={"Content-Type": "application/json", **headers},
            verify=tls,
            timeout=_timeout(REQUEST_S),
            proxy=auth.proxy,
            follow_redirects=True,
        )
        options: dict[str, Any] = {"additional_headers": headers}
        if isinstance(tls, ssl.SSLContext):
            options["ssl"] = tls
        if auth.tls_server_name:
            options["server_hostname"] = auth.tls_server_name
        if auth.proxy:
            options["proxy"] = auth.proxy
        return cls(auth, client, options)


def decoded(text: str) -> dict[str, Any]:
    """The object that an answer is. Raises `Unanswered` if it is none: then it is not the cluster that answered."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unanswered(f"something answers that is no cluster: {text:.100}")
    return found


def _path(place: Place) -> str:
    base = "api" if place.version == "v1" else "apis"
    where = "" if place.namespace is None else f"namespaces/{place.namespace}/"
    return f"/{base}/{place.version}/{where}{place.path}"


async def _sent(line: _Line, method: str, path: str, more: Mapping[str, Any]) -> httpx.Response:
    """The beginning of an answer."""
    name = line.auth.tls_server_name
    request = line.client.build_request(method, path, **more, extensions={"sni_hostname": name} if name else None)
    return await line.client.send(request, stream=True)


def _check(answer: httpx.Response) -> None:
    """Raises `Refused` for an answer, read by now, that is no success."""
    if answer.is_success:
        return
    try:
        message = str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{answer.text:.500}"
    after = answer.headers.get("Retry-After", "")
    said = message or f"HTTP {answer.status_code}"
    raise Refused(answer.status_code, said, float(after) if after.isdecimal() else None)


def _failures() -> tuple[type[Exception], ...]:
    """What httpx raises where there is no answer; RuntimeError from a client that was closed meanwhile."""
    import httpx

    return httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, RuntimeError


def _unanswered(error: BaseException) -> Unanswered:
    return Unanswered(f"{type(error).__name__}: {error}".rstrip(": "))


def _timeout(read_s: float) -> httpx.Timeout:
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
