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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..._asyncio import run_to_completion
from ..._backoff import Backoff, jittered_pause
from ...errors import LaunchFailed, MissingExtra, ProviderBusy, ProviderFailed

if TYPE_CHECKING:
    import httpx

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a Pod finds who it is for the API."""
REQUEST_S = 30.0
# A request that fails for a passing reason: how often it is made, and the seconds until it is made again.
ATTEMPTS, FIRST_PAUSE_S, LONGEST_PAUSE_S = 5, 0.2, 5.0
UNAUTHORIZED, TOO_MANY = 401, 429
# What kr8s writes keys of a kubeconfig to, and leaves behind.
_COPY = re.compile(rf"{re.escape(tempfile.gettempprefix())}[a-z0-9_]{{8}}")


class ApiRefusal(Exception):
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


class ApiUnreachable(Exception):
    """There was no answer: the request may or may not have been executed."""


@contextlib.contextmanager
def api_errors(what: str, failure: type[ProviderFailed] = ProviderFailed) -> Iterator[None]:
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
    except ApiRefusal as refusal:
        kind: type[ProviderFailed] = ProviderBusy if refusal.passing else failure
        raise kind(f"{what} failed: {refusal.message}", retry_after_s=refusal.retry_after_s) from None
    except ApiUnreachable as silence:
        raise ProviderBusy(f"{what} failed: the cluster does not answer ({silence})") from None


Manifest = dict[str, Any]

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
"""Version and path of each kind that is used here."""
MANAGER = "openenv"
"""Field manager of our changes (server-side apply)."""
# Seconds after which a watch is requested anew, and seconds of silence after that until its connection counts as
# dead: TCP does not report every dead connection.
WATCH_S, SILENCE_S = 45, 15
_NOT_FOUND, _CONFLICT, _GONE = 404, 409, 410


class WatchExpired(Exception):
    """What is watched has to be listed again: the cluster remembers no more what has happened since."""


class KubernetesCluster:
    """The API of a cluster, and the objects of one namespace. Belongs to one event loop.

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
        self._connection: _ApiConnection | None = None
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
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        attempts: int = ATTEMPTS,
    ) -> str:
        """What the cluster answers; asked again while it fails for a passing reason.

        Raises:
            ApiRefusal: With something else.
            ApiUnreachable: With nothing.
        """
        content = None if body is None else json.dumps(body)
        more: dict[str, Any] = {"params": dict(params or {}), "headers": dict(headers or {}), "content": content}
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        for number in range(1, attempts + 1):
            try:
                async with self._asked(method, path, more) as answer:
                    return answer.text
            except (ApiRefusal, ApiUnreachable) as failure:
                if number == attempts or (isinstance(failure, ApiRefusal) and not failure.passing):
                    raise
                asked_for = failure.retry_after_s if isinstance(failure, ApiRefusal) else None
            await asyncio.sleep(min(max(jittered_pause(backoff.grow()), asked_for or 0.0), LONGEST_PAUSE_S))
        raise AssertionError("an attempt returns or raises")

    async def aclose(self) -> None:
        """Ends its connections. It may be used again."""
        async with self._connecting:
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.client.aclose()

    async def create(self, manifest: Manifest) -> Manifest:
        """Creates an object, or returns the one that a request with a lost answer has created.

        A cancelled caller waits until it is known whether the object exists, so that it can be deleted.

        Raises:
            LaunchFailed: The cluster refuses it (`ProviderBusy`: at the moment).
        """
        kind, metadata = manifest["kind"], manifest["metadata"]

        async def created() -> Manifest:
            try:
                return await self._answer("POST", await self._path(kind), manifest, attempts=1)
            except ApiRefusal as refusal:
                there = await self.get(kind, metadata["name"]) if refusal.status == _CONFLICT else None
                if there is None or not metadata["labels"].items() <= there["metadata"].get("labels", {}).items():
                    raise
                return there

        with api_errors(f"creating {kind} {metadata['name']}", LaunchFailed):
            return await run_to_completion(created())

    async def apply(self, manifest: Manifest) -> Manifest:
        """Has an object be as a manifest says, whether it is there or not (server-side apply).

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
        """An object; None where there is none.

        Raises:
            ProviderFailed: The cluster does not say.
        """
        with api_errors(f"looking at {kind} {name}"):
            try:
                return await self._answer("GET", await self._path(kind, name))
            except ApiRefusal as refusal:
                if refusal.status == _NOT_FOUND:
                    return None
                raise

    async def find(self, kind: str, **selectors: str) -> tuple[list[Manifest], str]:
        """Objects of a kind, and the version of the whole, from which changes can be watched.

        Args:
            kind: The kind.
            selectors: `labelSelector` and `fieldSelector`, as the API has them.

        Raises:
            ProviderFailed: The cluster does not say.
        """
        with api_errors(f"looking for {KINDS[kind][1]}"):
            found = await self._answer("GET", await self._path(kind), params=selectors)
        return found.get("items") or [], found.get("metadata", {}).get("resourceVersion", "")

    async def delete(self, kind: str, name: str, *, uid: str | None = None, grace_s: int | None = None) -> None:
        """Deletes an object, and what it has made. It need not be there.

        Args:
            kind: The kind.
            name: Its name.
            uid: Only if it is this one, and not another of its name.
            grace_s: Seconds that a Pod has to end; None: as it says itself. With 0, it is forgotten at once.

        Raises:
            ProviderFailed: The cluster does not do it.
        """
        body: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        with api_errors(f"deleting {kind} {name}"):
            try:
                await self.text("DELETE", await self._path(kind, name), body)
            except ApiRefusal as refusal:
                if refusal.status != _NOT_FOUND and not (uid is not None and refusal.status == _CONFLICT):
                    raise

    async def log(self, pod: str, lines: int) -> str:
        """The last lines of a Pod's log; "" where there is none to be had."""
        params = {"tailLines": str(lines)}
        try:
            text = await self.text("GET", await self._path("Pod", f"{pod}/log"), params=params, attempts=2)
        except (ApiRefusal, ApiUnreachable):
            return ""
        return text.rstrip()

    async def warnings(self, name: str) -> list[str]:
        """What the cluster warns of about an object, the latest last; [] where it does not say."""
        try:
            events, _ = await self.find("Event", fieldSelector=f"involvedObject.name={name},type=Warning")
        except ProviderFailed:
            return []

        def age(event: Manifest) -> tuple[str, bool, int]:
            # Times are in seconds, and "BackOff" says less than what went before.
            when = event.get("lastTimestamp") or event.get("eventTime") or ""
            version = event.get("metadata", {}).get("resourceVersion", "")
            return when, event.get("reason") != "BackOff", int(version) if version.isdigit() else 0

        events.sort(key=age)
        return [f"{event.get('reason')}: {event.get('message')}" for event in events]

    async def watch(self, kind: str, since: str, **selectors: str) -> AsyncGenerator[tuple[str, Manifest]]:
        """What happens to objects of a kind, until the question has to be asked anew.

        Args:
            kind: The kind.
            since: A version that `find` or an object had.
            selectors: As for `find`.

        Yields:
            ADDED, MODIFIED, DELETED or BOOKMARK, and the object.

        Raises:
            WatchExpired: That version is too old.
            ProviderFailed: The cluster does not say.
        """
        params = {
            **selectors,
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        with api_errors(f"watching {KINDS[kind][1]}"):
            try:
                more = {"params": params, "timeout": (REQUEST_S, WATCH_S + SILENCE_S, REQUEST_S, REQUEST_S)}
                async with self._asked("GET", await self._path(kind), more, stream=True) as answer:
                    async for line in answer.aiter_lines():
                        event = decoded(line)
                        if event["type"] == "ERROR":
                            raise ApiRefusal(event["object"].get("code") or 500, str(event["object"].get("message")))
                        yield event["type"], event["object"]
            except ApiRefusal as refusal:
                if refusal.status == _GONE:
                    raise WatchExpired from None
                raise

    async def road_to(
        self, pod: str, port: int, refused: Mapping[str, Any] | None = None
    ) -> tuple[str, Mapping[str, Any]]:
        """The address of a WebSocket that leads to a port of a Pod, and what `websockets.connect` needs for it.

        Args:
            pod: The Pod.
            port: Its port.
            refused: What was needed before, and was not let in: credentials are looked for anew, once for all who
                say so.

        Raises:
            ProviderFailed: The cluster is not to be found.
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
        """A success, read unless it is to `stream`. Credentials that have ended are looked for anew."""
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
        connection = _ApiConnection.to(auth, tls)
        try:
            answer = await _sent(connection, "GET", "/version", {})
            await answer.aread()
            _check(answer)
            self.version = str(decoded(answer.text).get("gitVersion", ""))
        except BaseException as error:
            await connection.client.aclose()
            if isinstance(error, _failures()):
                raise _unanswered(error) from None
            raise
        return connection

    async def _answer(self, method: str, path: str, *more: Any, **settings: Any) -> Manifest:
        return decoded(await self.text(method, path, *more, **settings))

    async def _path(self, kind: str, name: str = "") -> str:
        """Where the API has an object, or all of a kind without a name."""
        version, plural = KINDS[kind]
        base = "api" if version == "v1" else "apis"
        where = "" if kind == "Namespace" else f"namespaces/{await self.namespace()}/"
        return f"/{base}/{version}/{where}{plural}/{name}".removesuffix("/")


@dataclass(frozen=True, slots=True, eq=False)
class _ApiConnection:
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
    def to(cls, auth: Any, tls: ssl.SSLContext | bool) -> _ApiConnection:
        """One with certain credentials."""
        import httpx

        headers = {"Authorization": f"Bearer {auth.token.strip()}"} if auth.token else {}
        client = httpx.AsyncClient(
            base_url=auth.server,
            headers={"Content-Type": "application/json", **headers},
            verify=tls,
            timeout=REQUEST_S,
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
    """The object that an answer is. Raises `ApiUnreachable` if it is none: the cluster did not answer."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ApiUnreachable(f"something answers that is no cluster: {text:.100}")
    return found


async def _sent(connection: _ApiConnection, method: str, path: str, more: Mapping[str, Any]) -> httpx.Response:
    """The beginning of an answer."""
    name = connection.auth.tls_server_name
    request = connection.client.build_request(
        method, path, **more, extensions={"sni_hostname": name} if name else None
    )
    return await connection.client.send(request, stream=True)


def _check(answer: httpx.Response) -> None:
    """Raises `ApiRefusal` for an answer, read by now, that is no success."""
    if answer.is_success:
        return
    try:
        message = str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{answer.text:.500}"
    after = answer.headers.get("Retry-After", "")
    said = message or f"HTTP {answer.status_code}"
    raise ApiRefusal(answer.status_code, said, float(after) if after.isdecimal() else None)


def _failures() -> tuple[type[Exception], ...]:
    """What httpx raises where there is no answer; RuntimeError from a client that was closed meanwhile."""
    import httpx

    return httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, RuntimeError


def _unanswered(error: BaseException) -> ApiUnreachable:
    return ApiUnreachable(f"{type(error).__name__}: {error}".rstrip(": "))


def _remove_copies(auth: Any, since: float) -> None:
    """Removes what kr8s has written keys to, once they are read."""
    for name in ("client_key_file", "client_cert_file", "server_ca_file"):
        path = Path(str(getattr(auth, name, None) or ""))
        if path.parent == Path(tempfile.gettempdir()) and _COPY.fullmatch(path.name):
            with contextlib.suppress(OSError):
                if path.stat().st_ctime >= since - 1.0:
                    path.unlink()
