"""Sandboxes of a service: calls to its SDK with timeouts and our errors, and the life of one sandbox."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from ..._asyncio import on_thread, shielded, start_task
from ..._backoff import Backoff, jittered_pause
from ...errors import LaunchFailed, NotReady, OpenEnvError, ProviderBusy, ProviderFailed, UsageError
from ...settings import is_loopback_for_secrets
from ..base import StartRate
from ..redaction import redact

T = TypeVar("T")
logger = logging.getLogger("openenv.providers.sandbox")
_PASSING = frozenset({408, 425, 429})
# Errors of HTTP libraries that occur before a request is sent.
_UNSENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError"})
_QUOTA = re.compile(r"(?i)quota|credits?\b|billing|payment|maximum (number|amount)|too many (running|concurrent)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """What a service says of a sandbox.

    Attributes:
        id: Its id at the service.
        stage: Its state, in the words of the service.
        ended: Whether its server does not run any more.
        remains: Whether it must still be ended at the service.
        message: Why it is in that state.
        url: The address of its server, if that is known.
        headers: Headers that the service's proxy asks for at that address. They may hold secrets.
        labels: Its labels.
    """

    id: str
    stage: str
    ended: bool = False
    remains: bool = True
    message: str = ""
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)


class SandboxService(ABC):
    """One account at a service.

    A subclass implements five blocking methods with the SDK of the service. They run on threads, and raise the errors
    of the SDK, which `answer_of` and `explain` turn into ours.

    Args:
        secrets: Strings that logs and errors must mask, such as the key of the account.
        insecure: Whether secrets may leave this machine unencrypted.
        timeout_s: Seconds for each call.
        create_timeout_s: Seconds for the start of a sandbox, in addition to those for a call.
        retries: Attempts and pauses of calls that may be repeated.

    Raises:
        UsageError: A timeout is invalid.

    Attributes:
        name: The service, in messages.
        kind: What it calls a sandbox.
        key_setting: The setting with the key of the account, in messages.
        no_answer: Classes of the SDK's errors of requests without an answer, in addition to `OSError`.
        timeout_s, create_timeout_s: See above.
        create_setting: The setting with the time of a start.
        quota_step: What to do when the account's quota is used up.
    """

    name: ClassVar[str]
    kind: ClassVar[str] = "sandbox"
    key_setting: ClassVar[str]
    no_answer: ClassVar[frozenset[str]] = frozenset({"HTTPError"})
    create_setting: ClassVar[str] = "create_timeout"
    quota_step: ClassVar[str] = "stop sandboxes (`openenv providers gc` finds those of dead processes)"

    def __init__(
        self,
        secrets: Iterable[str],
        insecure: bool,
        timeout_s: float,
        retries: StartRate,
        create_timeout_s: float = 0.0,
    ):
        if not timeout_s > 0:
            raise UsageError(f"request_timeout_s must be more than 0, got {timeout_s!r}")
        if create_timeout_s < 0:
            raise UsageError(f"create_timeout must be 0 or more, got {create_timeout_s!r}")
        self.secrets = [secret for secret in secrets if secret]
        self.insecure = insecure
        self.timeout_s = timeout_s
        self.create_timeout_s = create_timeout_s
        self._retries = retries

    # Blocking, for subclasses.

    @abstractmethod
    def create(self, name: str, port: int, labels: Mapping[str, str], **wanted: Any) -> SandboxInfo:
        """Starts a sandbox and its server. If it raises, nothing is left of it, unless no answer came."""

    @abstractmethod
    def inspect(self, sandbox_id: str) -> SandboxInfo:
        """The state of a sandbox. Raises an error with status 404 if there is no such sandbox."""

    @abstractmethod
    def delete(self, sandbox_id: str) -> None:
        """Ends a sandbox. May raise if it has ended."""

    @abstractmethod
    def labelled(self, labels: Mapping[str, str]) -> Iterable[SandboxInfo]:
        """Sandboxes of this account; others than those with these labels are left out by the caller."""

    @abstractmethod
    def log(self, sandbox_id: str, lines: int) -> str:
        """The last lines of its server's log."""

    def answer_of(self, error: Exception) -> tuple[int, Mapping[str, str]] | None:
        """Status code and headers of the service's answer, if an error of the SDK has them."""
        response = getattr(error, "response", None)
        return None if response is None else (int(response.status_code), response.headers)

    def explain(self, status: int, said: str) -> tuple[str, str]:
        """What an answer means that is no success ("quota", "key" or ""), and what to do about it."""
        if status == 402 or (status < 500 and _QUOTA.search(said)):
            return "quota", f": the quota of this account at {self.name} is used up: {self.quota_step}"
        if status in {401, 403}:
            return "key", f": {self.name} refuses the key: check {self.key_setting}"
        return "", ""

    def check_address(self, info: SandboxInfo) -> None:
        """Raises `UsageError` if the secrets of a sandbox must not be sent to its address."""
        assert info.url is not None
        self.check_encrypted(f"the address of {self.kind} {info.id}", info.url)

    def no_key(self, reason: Exception | str) -> ProviderFailed:
        """The error of an SDK without a key."""
        return ProviderFailed(f"{self.name} needs a key ({reason}): set {self.key_setting}")

    def slow_boot(self, sandbox: str = "", limit_s: float | None = None) -> LaunchFailed:
        """The error of a start that took longer than `limit_s`; None: `create_timeout_s`."""
        limit = self.create_timeout_s if limit_s is None else limit_s
        return LaunchFailed(
            f"the {self.kind} {sandbox} did not run within {limit:g} s ({self.create_setting}): give it more "
            "time, or a smaller image",
            data={"cause": "slow boot"},
        )

    # For `RemoteSandbox` and providers.

    async def run(self, wanted: Callable[[], bool], *create: Any, **options: Any) -> SandboxInfo:
        """Starts a sandbox, once.

        Args:
            wanted: Returns whether the caller still waits after the start; if not, it is deleted.
            create, options: Arguments of `create`.

        Raises:
            ProviderBusy: A temporary failure; see `may_have_begun`.
            LaunchFailed: It was refused.
        """

        def start() -> SandboxInfo:
            info = self.create(*create, **options)
            if not wanted():
                self._delete_unwanted(info.id)
            return info

        # The SDK's own timeout for a start comes first, and may say more.
        return await self._ask(f"starting a {self.kind}", start, self.create_timeout_s)

    def _delete_unwanted(self, sandbox_id: str) -> None:
        """Deletes a sandbox without a caller, on a thread that may block."""
        backoff = Backoff(self._retries.pause_s, self._retries.longest_pause_s)
        for _ in range(self._retries.attempts):
            try:
                self.delete(sandbox_id)
            except Exception as error:  # noqa: BLE001 - an edge, as below
                failure = self._translated(f"ending the abandoned {self.kind} {sandbox_id}", error)
                if not failure.retryable:
                    return  # it has ended
                logger.warning("%s", failure, extra={"job": sandbox_id})
                time.sleep(jittered_pause(backoff.grow()))
            else:
                return

    async def look(self, sandbox_id: str) -> SandboxInfo:
        """As `inspect`. Raises an error for which `is_missing` is true if there is no such sandbox."""
        return await self._ask(f"looking at {self.kind} {sandbox_id}", lambda: self.inspect(sandbox_id))

    async def end(self, sandbox_id: str) -> None:
        """Ends a sandbox. Does nothing if it has ended, or does not exist."""
        what = f"ending {self.kind} {sandbox_id}"
        try:
            await self._retries.start(lambda: self._ask(what, lambda: self.delete(sandbox_id)))
        except LaunchFailed as error:
            if is_missing(error):
                return
            if error.retryable:
                raise
            try:
                remains = (await self.look(sandbox_id)).remains
            except LaunchFailed as failure:
                remains = not is_missing(failure)
            if remains:
                raise

    async def living(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """The sandboxes that carry labels and must still be ended."""

        def found() -> list[SandboxInfo]:
            listed = self.labelled(labels)
            return [each for each in listed if each.remains and labels.items() <= each.labels.items()]

        return await self._retries.start(lambda: self._ask(f"listing the {self.kind}s", found))

    async def tail(self, sandbox_id: str, lines: int) -> str:
        """The end of a sandbox's log, or "" if it cannot be read."""
        try:
            text = await self._ask(
                f"reading the log of {self.kind} {sandbox_id}", lambda: self.log(sandbox_id, lines)
            )
        except ProviderFailed:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    async def _ask(self, what: str, call: Callable[[], T], more_s: float = 0.0) -> T:
        limit, setting = self.timeout_s + more_s, self.create_setting if more_s else "request_timeout_s"
        try:
            async with asyncio.timeout(limit):
                return await on_thread(call, detached=True)  # not every SDK has timeouts
        except TimeoutError:
            raise ProviderBusy(f"{what}: {self.name} did not answer within {limit:g} s ({setting})") from None
        except OpenEnvError:
            raise
        except Exception as error:  # noqa: BLE001 - an edge: errors of the SDK and of its HTTP library
            raise self._translated(what, error) from None

    def _translated(self, what: str, error: Exception) -> LaunchFailed:
        said = " ".join(str(error).split()) or type(error).__name__
        message = redact(f"{what}: {said}", self.secrets)
        answer = self.answer_of(error)
        if answer is None:
            of_http = isinstance(error, OSError) or self.no_answer & {cls.__name__ for cls in type(error).__mro__}
            if not of_http:
                return LaunchFailed(message)
            return ProviderBusy(message, data={"sent": type(error).__name__ not in _UNSENT})
        status, headers = answer
        cause, step = self.explain(status, said)
        facts = {"status": status, **({"cause": cause} if cause else {})}
        if not cause and (status in _PASSING or status >= 500):
            after = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
            return ProviderBusy(message, retry_after_s=float(after) if after.isdecimal() else None, data=facts)
        return LaunchFailed(message + step, data=facts)

    def check_encrypted(self, what: str, address: str) -> None:
        """Raises `UsageError` if a secret would be sent to an address in plain text over a network."""
        parts = urlsplit(address)
        local = self.insecure or is_loopback_for_secrets(parts.hostname)
        if not (parts.scheme == "https" or (parts.scheme == "http" and local)):
            raise UsageError(f"{what} is {address!r}: it must be https (insecure=True allows http)")


def is_missing(error: OpenEnvError) -> bool:
    """Whether the service says that there is no such sandbox."""
    return error.data.get("status") == 404


def may_have_begun(error: OpenEnvError) -> bool:
    """Whether a sandbox may run although its start failed."""
    status = error.data.get("status")
    return bool(error.data.get("sent", True)) and (status is None or status == 408 or status >= 500)


SERVER = "openenv-server"
"""Label of a sandbox: its server's name. It finds sandboxes with unknown ids."""


class RemoteSandbox:
    """The last known state of a sandbox.

    Args:
        service: Its service.
        name: Name of its server, unique at the service.
        port: Port that its server listens on.
        glance_s: Minimum of seconds between two requests for its state.
        secrets: Strings that logs and errors must mask.

    Attributes:
        id: Its id at the service; None before it has one.
        stage: Its last known state, in the words of the service.
        headers: Headers that the service's proxy asks for at its address.
    """

    def __init__(self, service: SandboxService, name: str, port: int, glance_s: float, secrets: list[str]):
        self.id: str | None = None
        self.stage = "REQUESTED"
        self.headers: Mapping[str, str] = {}
        self._ended = False
        self._remains = True
        self._service = service
        self._name = name
        self._port = port
        self._glance_s = glance_s
        self._secrets = [*service.secrets, *secrets]
        self._message = ""
        self._url: str | None = None
        self._request: asyncio.Future[None] | None = None
        self._unwanted = False
        self._glance: asyncio.Future[None] | None = None
        self._seen_at = float("-inf")

    @property
    def _called(self) -> str:
        return f"{self._service.kind} {self.id}"

    @property
    def gone(self) -> str | None:
        """Why it has ended, phrased to follow "the server". None while it runs or may still start."""
        if not self._ended:
            return None
        return f"is gone: its {self._called} is {self.stage}{f' ({self._message})' if self._message else ''}"

    async def begin(self, own: Mapping[str, str], **wanted: Any) -> None:
        """Starts it with our own labels. After a cancellation it may still start; `end` ends it then."""

        async def start() -> None:
            labels = {**wanted.pop("labels", {}), **own, SERVER: self._name}
            create = (lambda: not self._unwanted, self._name, self._port, labels)
            self._learn(await self._service.run(*create, **wanted))

        self._request = start_task(start())
        await shielded(self._request)

    async def look(self) -> None:
        """Updates its state. Keeps the last state while the service does not answer.

        Raises:
            LaunchFailed: The service refuses the request.
        """
        fresh = asyncio.get_running_loop().time() < self._seen_at + self._glance_s
        if self.id is None or self._ended or (fresh and self._glance is None):
            return
        if self._glance is None or self._glance.done():
            self._glance = start_task(self._look(self.id))
        await shielded(self._glance)

    async def address(self) -> str:
        """The address of its server.

        Raises:
            NotReady: It does not run yet.
            ProviderFailed: It has ended, or its secrets must not be sent to its address.
        """
        if self._url is None:
            await self.look()
        self._check()
        if self._url is None:
            raise NotReady(
                f"{self._called} is {self.stage}: its server has no address yet", retry_after_s=self._glance_s
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
        """The end of its log, or its state if it has no log."""
        if self.id is None:
            return ""
        log = await self._service.tail(self.id, lines) or f"({self._called} is {self.stage}, and has no log)"
        return redact(log, self._secrets)

    async def end(self) -> None:
        """Ends it, also during its start. May be called repeatedly."""
        self._unwanted = True
        if self._request is None:
            return
        await asyncio.wait([self._request])
        if self.id is not None:
            if self._remains:
                await self._service.end(self.id)
                self._tell(SandboxInfo(id=self.id, stage="ENDED", remains=False, message="ended by its owner"))
            return
        failure = None if self._request.cancelled() else self._request.exception()
        if isinstance(failure, OpenEnvError) and may_have_begun(failure):
            for each in await self._service.living({SERVER: self._name}):
                await self._service.end(each.id)
        self._request = None

    async def _look(self, sandbox_id: str) -> None:
        try:
            self._learn(await self._service.look(sandbox_id))
        except ProviderBusy as error:
            logger.warning("%s: %s", self._called, error, extra={"job": self.id, "stage": self.stage})
        except LaunchFailed as error:
            if not is_missing(error):
                raise
            message = f"it no longer exists at {self._service.name}"
            self._tell(SandboxInfo(id=sandbox_id, stage="DELETED", remains=False, message=message))
        finally:
            self._glance = None
            self._seen_at = asyncio.get_running_loop().time()

    def _learn(self, info: SandboxInfo) -> None:
        self.id = info.id
        if info.url is not None and not info.ended:
            try:
                self._service.check_address(info)
            except UsageError as error:
                raise LaunchFailed(str(error)) from None
            self._url, self.headers = info.url.rstrip("/"), info.headers
        self._tell(info)

    def _tell(self, info: SandboxInfo) -> None:
        self._ended, self._remains = info.ended or not info.remains, info.remains
        if info.stage == self.stage:
            return
        before, self.stage, self._message = self.stage, info.stage, redact(info.message, self._secrets)
        reason = f" ({self._message})" if self._message else ""
        facts = {"job": self.id, "stage": self.stage}
        logger.info("%s: %s -> %s%s", self._called, before, self.stage, reason, extra=facts)
