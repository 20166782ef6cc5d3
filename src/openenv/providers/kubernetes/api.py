"""Requests to the Kubernetes API, and the objects of one namespace. Errors are translated here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..._asyncio import run_to_completion
from ..._backoff import Backoff, jittered_pause
from ..._exceptions import undo_async_on_error
from ...errors import LaunchFailed, MissingExtra, ProviderBusy, ProviderFailed
from .manifests import Manifest

if TYPE_CHECKING:
    import httpx

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a Pod's service account: credentials for the API."""
REQUEST_S = 30.0
# Attempts of a request that fails for a temporary reason, and the first and longest pause in seconds.
ATTEMPTS, FIRST_PAUSE_S, LONGEST_PAUSE_S = 5, 0.2, 5.0
UNAUTHORIZED, TOO_MANY = 401, 429
# Temporary files to which kr8s writes the keys of a kubeconfig, and which it does not remove.
_COPY = re.compile(rf"{re.escape(tempfile.gettempprefix())}[a-z0-9_]{{8}}")


class ApiFailure(Exception):
    """A request without a successful response.

    Attributes:
        status: The HTTP status. None without a response: the request may or may not have been executed.
        message: The cluster's message, or why there is no response.
        retry_after_s: Seconds from the Retry-After header, if there is one.
    """

    def __init__(self, status: int | None, message: str, retry_after_s: float | None = None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status is None or self.status == TOO_MANY or self.status >= 500


@contextlib.contextmanager
def api_errors(what: str, failure: type[ProviderFailed] = ProviderFailed) -> Iterator[None]:
    """Translates errors of requests into ours.

    Args:
        what: The operation, followed by "failed" in the message.
        failure: Class of errors that are not temporary.

    Raises:
        ProviderBusy: A temporary error.
        ProviderFailed: Any other error, of class `failure`.
    """
    try:
        yield
    except ApiFailure as error:
        kind = ProviderBusy if error.passing else failure
        raise kind(f"{what} failed: {error.message}", retry_after_s=error.retry_after_s) from None


KINDS = {
    "Deployment": ("apps/v1", "deployments"),
    "DaemonSet": ("apps/v1", "daemonsets"),
    "Pod": ("v1", "pods"),
    "Service": ("v1", "services"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "horizontalpodautoscalers"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Secret": ("v1", "secrets"),
    "Event": ("v1", "events"),
    "Namespace": ("v1", "namespaces"),
}
"""API version and path of each kind."""
MANAGER = "openenv"
"""Field manager of our changes (server-side apply)."""
# Seconds after which a watch is requested again, and seconds of silence after that until its connection is
# considered dead: TCP does not report every dead connection.
WATCH_S, SILENCE_S = 45, 15
_NOT_FOUND, _CONFLICT = 404, 409


class KubernetesCluster:
    """The API of a cluster, and the objects of one namespace. Belongs to one event loop.

    Args:
        namespace: The namespace; None takes that of the context, or of the Pod that this process runs in.
        kubeconfig: File with the cluster's address and credentials; None: KUBECONFIG, ~/.kube/config, or the Pod's
            service account.
        context: Context of that file; None: its current one.

    Attributes:
        reached: Whether a connection to a cluster has ever succeeded.
        version: The cluster's version; "" before the first connection.
    """

    def __init__(self, namespace: str | None, kubeconfig: str | Path | None, context: str | None):
        self._namespace = namespace
        self._kubeconfig = None if kubeconfig is None else str(kubeconfig)
        self._context = context
        self._connection: _ApiConnection | None = None
        self._connecting = asyncio.Lock()
        self.reached = False
        self.version = ""

    async def namespace(self) -> str:
        """The default namespace."""
        if self._namespace is None:
            self._namespace = str((await self._connected()).auth.namespace)
        return self._namespace

    async def text(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        attempts: int = ATTEMPTS,
    ) -> str:
        """The body of a successful response. Retries after temporary errors.

        Raises:
            ApiFailure: There is no response, or it has an error status.
        """
        content = None if body is None else json.dumps(body)
        more: dict[str, Any] = {"params": dict(params or {}), "headers": dict(headers or {}), "content": content}
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        for number in range(1, attempts + 1):
            try:
                async with self._asked(method, path, more) as answer:
                    return answer.text
            except ApiFailure as failure:
                if number == attempts or not failure.passing:
                    raise
                asked_for = failure.retry_after_s or 0.0
            await asyncio.sleep(min(max(jittered_pause(backoff.grow()), asked_for), LONGEST_PAUSE_S))
        raise AssertionError("an attempt returns or raises")

    async def aclose(self) -> None:
        """Closes its connections. The next request opens new ones."""
        async with self._connecting:
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.client.aclose()

    async def create(self, manifest: Manifest) -> Manifest:
        """Creates an object, or returns the one that a request with a lost answer has created.

        A cancelled caller waits until it is known whether the object exists, so that it can be deleted.

        Raises:
            LaunchFailed: The cluster refuses it (`ProviderBusy`: for a temporary reason).
        """
        kind, metadata = manifest["kind"], manifest["metadata"]

        async def created() -> Manifest:
            try:
                return await self._answer("POST", await self._path(kind), manifest, attempts=1)
            except ApiFailure as failure:
                there = await self.get(kind, metadata["name"]) if failure.status == _CONFLICT else None
                if there is None or not metadata["labels"].items() <= there["metadata"].get("labels", {}).items():
                    raise
                return there

        with api_errors(f"creating {kind} {metadata['name']}", LaunchFailed):
            return await run_to_completion(created())

    async def apply(self, manifest: Manifest) -> Manifest:
        """Creates or changes an object to match a manifest (server-side apply).

        Raises:
            LaunchFailed: The cluster refuses it (`ProviderBusy`: at the moment).
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        with api_errors(f"applying {kind} {name}", LaunchFailed):
            return await self._answer(
                "PATCH",
                await self._path(kind, name),
                manifest,
                {"fieldManager": MANAGER, "force": "true"},
                {"Content-Type": "application/apply-patch+yaml"},
            )

    async def get(self, kind: str, name: str) -> Manifest | None:
        """An object. None if it does not exist.

        Raises:
            ProviderFailed: The request failed.
        """
        with api_errors(f"looking at {kind} {name}"):
            try:
                return await self._answer("GET", await self._path(kind, name))
            except ApiFailure as failure:
                if failure.status == _NOT_FOUND:
                    return None
                raise

    async def find(self, kind: str, **selectors: str) -> tuple[list[Manifest], str]:
        """Objects of a kind, and the version of the list, from which changes can be watched.

        Args:
            kind: The kind.
            selectors: `labelSelector` and `fieldSelector` of the API.

        Raises:
            ProviderFailed: The request failed.
        """
        with api_errors(f"looking for {KINDS[kind][1]}"):
            found = await self._answer("GET", await self._path(kind), params=selectors)
        return found.get("items") or [], found.get("metadata", {}).get("resourceVersion", "")

    async def delete(self, kind: str, name: str, *, uid: str | None = None, grace_s: int | None = None) -> None:
        """Deletes an object and its dependents. Does nothing if it does not exist.

        Args:
            kind: The kind.
            name: Its name.
            uid: Deletes only the object with this uid, not another one of the same name.
            grace_s: Grace period of a Pod. None for that of its manifest. With 0, the API removes it at once.

        Raises:
            ProviderFailed: The cluster does not delete it.
        """
        body: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        with api_errors(f"deleting {kind} {name}"):
            try:
                await self.text("DELETE", await self._path(kind, name), body)
            except ApiFailure as failure:
                if failure.status != _NOT_FOUND and not (uid is not None and failure.status == _CONFLICT):
                    raise

    async def log(self, pod: str, lines: int) -> str:
        """The last lines of a Pod's log, or "" if it cannot be read."""
        params = {"tailLines": str(lines)}
        try:
            text = await self.text("GET", await self._path("Pod", f"{pod}/log"), params=params, attempts=2)
        except ApiFailure:
            return ""
        return text.rstrip()

    async def warnings(self, name: str) -> list[str]:
        """Messages of warning events of an object, the latest last, or [] if they cannot be read."""
        try:
            events, _ = await self.find("Event", fieldSelector=f"involvedObject.name={name},type=Warning")
        except ProviderFailed:
            return []

        def age(event: Manifest) -> tuple[str, bool, int]:
            # Event times have seconds only; of equal times, "BackOff" is the least informative event.
            when = event.get("lastTimestamp") or event.get("eventTime") or ""
            version = event.get("metadata", {}).get("resourceVersion", "")
            return when, event.get("reason") != "BackOff", int(version) if version.isdigit() else 0

        events.sort(key=age)
        return [f"{event.get('reason')}: {event.get('message')}" for event in events]

    async def watch(self, kind: str, since: str, **selectors: str) -> AsyncGenerator[tuple[str, Manifest]]:
        """Changes of objects of a kind, until the watch ends and has to be requested again.

        Args:
            kind: The kind.
            since: A version from `find` or of an object.
            selectors: As for `find`.

        Yields:
            ADDED, MODIFIED, DELETED or BOOKMARK, and the object.

        Raises:
            ProviderFailed: The request failed, or that version is too old: list the objects again.
        """
        params = {
            **selectors,
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        with api_errors(f"watching {KINDS[kind][1]}"):
            more = {"params": params, "timeout": (REQUEST_S, WATCH_S + SILENCE_S, REQUEST_S, REQUEST_S)}
            async with self._asked("GET", await self._path(kind), more, stream=True) as answer:
                async for line in answer.aiter_lines():
                    event = decoded(line)
                    if event["type"] == "ERROR":
                        raise ApiFailure(event["object"].get("code") or 500, str(event["object"].get("message")))
                    yield event["type"], event["object"]

    async def port_forward_to(
        self, pod: str, port: int, refused: Mapping[str, Any] | None = None
    ) -> tuple[str, Mapping[str, Any]]:
        """The URL of a WebSocket to a port of a Pod, and the arguments of `websockets.connect` for it.

        Args:
            pod: The Pod.
            port: Its port.
            refused: Arguments from an earlier call that the cluster has refused: credentials are then loaded again,
                once for all callers.

        Raises:
            ProviderFailed: The cluster cannot be found.
        """
        with api_errors(f"reaching Pod {pod}"):
            path = await self._path("Pod", f"{pod}/portforward?ports={port}")
            connection = await self._connected()
            if refused is connection.options:
                connection = await self._connected(connection)
            base = f"ws{connection.auth.server.rstrip('/').removeprefix('http')}"
            return f"{base}{path}", connection.options

    @contextlib.asynccontextmanager
    async def _asked(
        self, method: str, path: str, more: Mapping[str, Any], stream: bool = False
    ) -> AsyncGenerator[httpx.Response]:
        """A successful response, read unless `stream`. Expired credentials are loaded again."""
        connection = await self._connected()
        try:
            answer = await _sent(connection, method, path, more)
            if answer.status_code == UNAUTHORIZED:
                await answer.aclose()
                connection = await self._connected(connection)
                answer = await _sent(connection, method, path, more)
            async with contextlib.aclosing(answer):
                if not (stream and answer.is_success):
                    await answer.aread()
                _check(answer)
                yield answer
        except _failures() as error:
            raise _unanswered(error) from None

    async def _connected(self, stale: _ApiConnection | None = None) -> _ApiConnection:
        """The connection to the cluster. Replaces a `stale` one, unless another call has done so."""
        async with self._connecting:
            if self._connection is not None and self._connection is stale:
                self._connection = None
                await stale.client.aclose()
            if self._connection is None:
                self._connection = await self._connect()
                self.reached = True
            return self._connection

    async def _connect(self) -> _ApiConnection:
        try:
            import kr8s.asyncio
        except ImportError:
            raise MissingExtra("kr8s", "kubernetes") from None
        began, account = time.time(), str(SERVICE_ACCOUNT)
        try:
            async with asyncio.timeout(REQUEST_S):
                # A separate instance, only for its credentials. Any user of a shared kr8s instance may close it, and
                # kr8s leaks connections of failed requests and of concurrent logins.
                auth = await kr8s.asyncio.Api(
                    bypass_factory=True, kubeconfig=self._kubeconfig, context=self._context, serviceaccount=account
                ).auth
                tls = await auth.ssl_context()
        except (ValueError, KeyError, IndexError, TypeError, RuntimeError, yaml.YAMLError) as error:
            raise ProviderFailed(
                f"no Kubernetes cluster is configured: pass kubeconfig and context, or set KUBECONFIG ({error})"
            ) from None
        except Exception as error:  # noqa: BLE001 - kr8s passes on exceptions of its libraries
            raise _unanswered(error) from None
        _remove_copies(auth, began)
        connection = _ApiConnection(auth, tls)
        try:
            async with undo_async_on_error(connection.client.aclose):
                answer = await _sent(connection, "GET", "/version", {})
                await answer.aread()
                _check(answer)
                self.version = str(decoded(answer.text).get("gitVersion", ""))
        except _failures() as error:
            raise _unanswered(error) from None
        return connection

    async def _answer(self, method: str, path: str, *more: Any, **settings: Any) -> Manifest:
        return decoded(await self.text(method, path, *more, **settings))

    async def _path(self, kind: str, name: str = "") -> str:
        """The API path of an object; without a name, that of its kind."""
        version, plural = KINDS[kind]
        base = "api" if version == "v1" else "apis"
        where = "" if kind == "Namespace" else f"namespaces/{await self.namespace()}/"
        return f"/{base}/{version}/{where}{plural}/{name}".removesuffix("/")


class _ApiConnection:
    """A connection to the cluster.

    Attributes:
        auth: Address and credentials, as kr8s has loaded them.
        client: Its HTTP client.
        options: Arguments of `websockets.connect`.
    """

    def __init__(self, auth: Any, tls: ssl.SSLContext | bool):
        import httpx

        headers = {"Authorization": f"Bearer {auth.token.strip()}"} if auth.token else {}
        self.auth = auth
        self.client = httpx.AsyncClient(
            base_url=auth.server,
            headers={"Content-Type": "application/json", **headers},
            verify=tls,
            timeout=REQUEST_S,
            proxy=auth.proxy,
            follow_redirects=True,
        )
        self.options: dict[str, Any] = {"additional_headers": headers}
        if isinstance(tls, ssl.SSLContext):
            self.options["ssl"] = tls
        if auth.tls_server_name:
            self.options["server_hostname"] = auth.tls_server_name
        if auth.proxy:
            self.options["proxy"] = auth.proxy


def decoded(text: str) -> dict[str, Any]:
    """Parses a JSON object. Raises `ApiFailure` for any other text: it does not come from a cluster."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _unanswered(f"the answer is not from a Kubernetes API: {text:.100}")
    return found


async def _sent(connection: _ApiConnection, method: str, path: str, more: Mapping[str, Any]) -> httpx.Response:
    """Sends a request; returns the response with its body unread."""
    name = connection.auth.tls_server_name
    request = connection.client.build_request(
        method, path, **more, extensions={"sni_hostname": name} if name else None
    )
    return await connection.client.send(request, stream=True)


def _check(answer: httpx.Response) -> None:
    """Raises `ApiFailure` for a response with an error status. The body must have been read."""
    if answer.is_success:
        return
    try:
        message = str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{answer.text:.500}"
    after = answer.headers.get("Retry-After", "")
    said = message or f"HTTP {answer.status_code}"
    raise ApiFailure(answer.status_code, said, float(after) if after.isdecimal() else None)


def _failures() -> tuple[type[Exception], ...]:
    """Errors of httpx without a response; RuntimeError comes from a client that was closed during the request."""
    import httpx

    return httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, RuntimeError


def _unanswered(error: BaseException | str) -> ApiFailure:
    why = error if isinstance(error, str) else f"{type(error).__name__}: {error}".rstrip(": ")
    return ApiFailure(None, f"the cluster does not answer ({why})")


def _remove_copies(auth: Any, since: float) -> None:
    """Removes the temporary files to which kr8s has written keys, after they were read."""
    for name in ("client_key_file", "client_cert_file", "server_ca_file"):
        path = Path(str(getattr(auth, name, None) or ""))
        if path.parent == Path(tempfile.gettempdir()) and _COPY.fullmatch(path.name):
            with contextlib.suppress(OSError):
                if path.stat().st_ctime >= since - 1.0:
                    path.unlink()
