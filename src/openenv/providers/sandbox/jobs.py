"""Jobs on the Hub: calls to huggingface_hub with timeouts and our errors, and the life of one job."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from ..._asyncio import on_thread, start_task
from ..._backoff import Backoff, jittered_pause
from ...errors import LaunchFailed, MissingExtra, NotReady, OpenEnvError, ProviderBusy, ProviderFailed, UsageError
from ...settings import is_loopback_for_secrets
from ..base import StartRate
from ..redaction import redact

T = TypeVar("T")
logger = logging.getLogger("openenv.providers.sandbox")
ENDED = frozenset({"COMPLETED", "CANCELED", "ERROR", "DELETED"})
"""Final stages of jobs."""
_PASSING = frozenset({408, 425, 429})
# Status codes of requests that were refused before they had an effect.
_NOT_LET_IN = frozenset({425, 429})
# Errors of the HTTP libraries under huggingface_hub that occur before a request is sent.
_UNSENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError"})


class HubJobsApi:
    """One user's jobs.

    Args:
        endpoint: Address of the Hub; None takes that of huggingface_hub (`HF_ENDPOINT`).
        token: Token of the user; None takes that of huggingface_hub (`HF_TOKEN`, `hf auth login`).
        namespace: The user or organization that owns the jobs; None takes the token's user.
        insecure: Whether the token may leave this machine unencrypted.
        timeout_s: Seconds for each call.
        retries: Attempts and pauses of calls that may be repeated.

    Raises:
        MissingExtra: huggingface_hub is not installed.
        ProviderFailed: There is no token.
        UsageError: The endpoint is not encrypted.

    Attributes:
        token: Token of the user.
        insecure: See above.
    """

    def __init__(
        self,
        endpoint: str | None,
        token: str | None,
        namespace: str | None,
        insecure: bool,
        timeout_s: float,
        retries: StartRate,
    ):
        try:
            import huggingface_hub
        except ModuleNotFoundError as error:
            raise MissingExtra(error.name or "huggingface_hub", "sandbox") from None
        if not timeout_s > 0:
            raise UsageError(f"request_timeout_s must be more than 0, got {timeout_s!r}")
        found = token or huggingface_hub.get_token()
        if not found:
            raise ProviderFailed(
                "there is no token for the Hub: pass token=..., set HF_TOKEN, or run `hf auth login`"
            )
        self.token = str(found)
        self.insecure = insecure
        self._api = huggingface_hub.HfApi(endpoint=endpoint, token=self.token)
        check_encrypted("the Hub's endpoint (HF_ENDPOINT)", urlsplit(self._api.endpoint), insecure)
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._retries = retries
        self._asking = asyncio.Lock()  # one concurrent request for the user: the Hub limits their rate

    async def run(self, wanted: Callable[[], bool], **job: Any) -> Any:
        """Starts a job, once.

        Args:
            wanted: Returns whether the caller still waits for the job after its start; if not, it is cancelled.
            job: Arguments of `huggingface_hub.run_job`.

        Raises:
            ProviderBusy: A temporary failure; see `may_have_begun`.
            LaunchFailed: It was refused.
        """
        namespace = await self._owner_name()

        def start() -> Any:
            info = self._api.run_job(namespace=namespace, **job)
            if not wanted():
                self._cancel_unwanted(info.id, namespace)
            return info

        return await self._ask("starting a job", start)

    def _cancel_unwanted(self, job_id: str, namespace: str) -> None:
        """Cancels a job without a caller, on a thread that may block."""
        backoff = Backoff(self._retries.pause_s, self._retries.longest_pause_s)
        for _ in range(self._retries.attempts):
            try:
                self._api.cancel_job(job_id=job_id, namespace=namespace)
            except Exception as error:  # noqa: BLE001 - an edge, as below
                failure = self._translated(f"cancelling the abandoned job {job_id}", error)
                if not failure.retryable:
                    return  # it has ended
                logger.warning("%s", failure, extra={"job": job_id})
                time.sleep(jittered_pause(backoff.grow()))
            else:
                return

    async def inspect(self, job_id: str) -> Any:
        """The Hub's information on a job. Raises an error for which `is_missing` is true if there is no such job."""
        namespace = await self._owner_name()
        return await self._ask(
            f"looking at job {job_id}", lambda: self._api.inspect_job(job_id=job_id, namespace=namespace)
        )

    async def cancel(self, job_id: str) -> None:
        """Cancels a job. Does nothing if it has ended, or does not exist."""
        namespace = await self._owner_name()
        call = lambda: self._api.cancel_job(job_id=job_id, namespace=namespace)  # noqa: E731
        try:
            await self._retries.start(lambda: self._ask(f"cancelling job {job_id}", call))
        except LaunchFailed as error:
            if is_missing(error):
                return
            if error.retryable:
                raise
            try:
                ended = str((await self.inspect(job_id)).status.stage) in ENDED
            except LaunchFailed as failure:
                ended = is_missing(failure)
            if not ended:
                raise

    async def labelled(self, labels: Mapping[str, str]) -> list[Any]:
        """The jobs that carry labels and have not ended."""
        namespace = await self._owner_name()

        def found() -> list[Any]:
            listed = self._api.list_jobs(labels=dict(labels), namespace=namespace, timeout=self._timeout_s)
            return [job for job in listed if str(job.status.stage) not in ENDED]

        return await self._retries.start(lambda: self._ask("listing jobs", found))

    async def tail(self, job_id: str, lines: int) -> str:
        """The end of a job's log, or "" if it cannot be read."""
        namespace = await self._owner_name()
        call = lambda: list(self._api.fetch_job_logs(job_id=job_id, namespace=namespace, tail=lines))  # noqa: E731
        try:
            found = await self._ask(f"reading the log of job {job_id}", call)
        except ProviderFailed:
            return ""
        return "\n".join(str(line).rstrip("\n") for line in found[-lines:])

    async def _owner_name(self) -> str:
        async with self._asking:
            if self._namespace is None:
                who = await self._retries.start(lambda: self._ask("requesting the token's user", self._api.whoami))
                self._namespace = str(who["name"])
        return self._namespace

    async def _ask(self, what: str, call: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await on_thread(call, detached=True)  # huggingface_hub has no timeout
        except TimeoutError:
            raise ProviderBusy(
                f"{what}: the Hub did not answer within {self._timeout_s:g} s (request_timeout_s)"
            ) from None
        except OpenEnvError:
            raise
        except Exception as error:  # noqa: BLE001 - an edge: errors of huggingface_hub and of its HTTP library
            raise self._translated(what, error) from None

    def _translated(self, what: str, error: Exception) -> LaunchFailed:
        said = " ".join(str(error).split()) or type(error).__name__
        message = redact(f"{what}: {said}", [self.token])
        response = getattr(error, "response", None)
        if response is None:
            of_http = isinstance(error, OSError) or any(cls.__name__ == "HTTPError" for cls in type(error).__mro__)
            if not of_http:
                return LaunchFailed(message)
            return ProviderBusy(message, data={"sent": type(error).__name__ not in _UNSENT})
        status = int(response.status_code)
        facts = {"status": status}
        if status in _PASSING or status >= 500:
            after = response.headers.get("Retry-After") or ""
            return ProviderBusy(message, retry_after_s=float(after) if after.isdecimal() else None, data=facts)
        hint = ": check that the token (HF_TOKEN) has write access to jobs there" if status in {401, 403} else ""
        return LaunchFailed(message + hint, data=facts)


def is_missing(error: OpenEnvError) -> bool:
    """Whether the Hub says that there is no such job."""
    return error.data.get("status") == 404


def may_have_begun(error: OpenEnvError) -> bool:
    """Whether a job may run although its start failed."""
    return error.retryable and bool(error.data.get("sent", True)) and error.data.get("status") not in _NOT_LET_IN


def check_encrypted(what: str, address: SplitResult, insecure: bool) -> None:
    """Raises `UsageError` if a token would be sent in plain text over a network."""
    if address.scheme == "https" or (
        address.scheme == "http" and (insecure or is_loopback_for_secrets(address.hostname))
    ):
        return
    raise UsageError(f"{what} is {address.geturl()!r}: it must be https (insecure=True allows http)")


SERVER = "openenv-server"
"""Label of a job: its server's name. It finds jobs with unknown ids."""


class HubJob:
    """The last known state of a job.

    Args:
        hub: The API of its Hub.
        name: Name of its server, unique at the Hub.
        port: Port that its server listens on.
        glance_s: Minimum of seconds between two requests for its state.
        secrets: Strings that logs and errors must mask.

    Attributes:
        id: Its id at the Hub; None before it has one.
        stage: Its last known stage: SCHEDULING, RUNNING, COMPLETED, CANCELED, ERROR or DELETED.
    """

    def __init__(self, hub: HubJobsApi, name: str, port: int, glance_s: float, secrets: list[str]):
        self.id: str | None = None
        self.stage = "REQUESTED"
        self._hub = hub
        self._name = name
        self._port = port
        self._glance_s = glance_s
        self._secrets = [hub.token, *secrets]
        self._message = ""
        self._url: str | None = None
        self._request: asyncio.Future[None] | None = None
        self._unwanted = False
        self._glance: asyncio.Future[None] | None = None
        self._seen_at = float("-inf")

    @property
    def gone(self) -> str | None:
        """Why it has ended, phrased to follow "the server". None while it runs or may still start."""
        if self.stage not in ENDED:
            return None
        return f"is gone: its job {self.id} is {self.stage}{f' ({self._message})' if self._message else ''}"

    @property
    def authorization(self) -> str:
        """The Authorization header for the Hub's proxy."""
        return f"Bearer {self._hub.token}"

    async def begin(self, labels: Mapping[str, str], **wanted: Any) -> None:
        """Starts it. After a cancellation the job may still start; `end` cancels it then."""
        job = {**wanted, "name": self._name, "labels": {**labels, SERVER: self._name}, "expose": [self._port]}

        async def start() -> None:
            self._learn(await self._hub.run(lambda: not self._unwanted, **job))

        self._request = start_task(start())
        await asyncio.shield(self._request)

    async def look(self) -> None:
        """Updates its state. Keeps the last state while the Hub does not answer.

        Raises:
            LaunchFailed: The Hub refuses the request.
        """
        fresh = asyncio.get_running_loop().time() < self._seen_at + self._glance_s
        if self.id is None or self.stage in ENDED or (fresh and self._glance is None):
            return
        if self._glance is None or self._glance.done():
            self._glance = start_task(self._look(self.id))
        await asyncio.shield(self._glance)

    async def address(self) -> str:
        """The address of its server.

        Raises:
            NotReady: It does not run yet.
            ProviderFailed: It has ended, or the token must not be sent to its address.
        """
        if self._url is None:
            await self.look()
        self._check()
        if self._url is None:
            raise NotReady(
                f"job {self.id} is {self.stage}: its server has no address yet", retry_after_s=self._glance_s
            )
        return self._url

    async def verify(self) -> None:
        """Updates its state. Raises `ProviderFailed` if it has ended, and as `look` does."""
        await self.look()
        self._check()

    def _check(self) -> None:
        if self.gone is not None:
            raise ProviderFailed(f"the sandbox {self.gone}", data={"job": self.id, "stage": self.stage})

    async def log(self, lines: int) -> str:
        """The end of its log, or its stage if it has no log."""
        if self.id is None:
            return ""
        log = await self._hub.tail(self.id, lines) or f"(job {self.id} is {self.stage}, and has no log)"
        return redact(log, self._secrets)

    async def end(self) -> None:
        """Cancels it, also during its start. May be called repeatedly."""
        self._unwanted = True
        if self._request is None:
            return
        await asyncio.wait([self._request])
        if self.id is not None:
            if self.stage not in ENDED:
                await self._hub.cancel(self.id)
                self._tell("CANCELED", "cancelled by its owner")
            return
        failure = None if self._request.cancelled() else self._request.exception()
        if isinstance(failure, OpenEnvError) and may_have_begun(failure):
            for job in await self._hub.labelled({SERVER: self._name}):
                await self._hub.cancel(str(job.id))
        self._request = None

    async def _look(self, job_id: str) -> None:
        try:
            self._learn(await self._hub.inspect(job_id))
        except ProviderBusy as error:
            logger.warning("job %s: %s", job_id, error, extra={"job": self.id, "stage": self.stage})
        except LaunchFailed as error:
            if not is_missing(error):
                raise
            self._tell("DELETED", "it no longer exists at the Hub")
        finally:
            self._glance = None
            self._seen_at = asyncio.get_running_loop().time()

    def _learn(self, info: Any) -> None:
        self.id = str(info.id)
        stage = getattr(info.status.stage, "value", info.status.stage)
        if stage not in ENDED and self._url is None:
            self._url = self._reached_at(info.status.expose_urls or [])
        self._tell(str(stage), info.status.message or "")

    def _reached_at(self, urls: list[str]) -> str | None:
        """The job's address, which must belong to this job: the Hub's token is sent there. None while it has none."""
        beginning = f"{self.id}--{self._port}."
        for url in urls:
            host = urlsplit(url).hostname or ""
            if host.startswith(beginning.lower()) or is_loopback_for_secrets(host):
                try:
                    check_encrypted(f"the address of job {self.id}", urlsplit(url), self._hub.insecure)
                except OpenEnvError as error:
                    raise LaunchFailed(str(error)) from None
                return url.rstrip("/")
        if urls:
            raise LaunchFailed(
                f"job {self.id} has the addresses {', '.join(urls)}, none of which is its port {self._port}"
            )
        return None

    def _tell(self, stage: str, message: str) -> None:
        if stage == self.stage:
            return
        before, self.stage, self._message = self.stage, stage, redact(message, self._secrets)
        reason = f" ({self._message})" if self._message else ""
        logger.info("job %s: %s -> %s%s", self.id, before, stage, reason, extra={"job": self.id, "stage": stage})
