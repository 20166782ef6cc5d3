"""Calls of huggingface_hub in bounded time, with retries, and with its exceptions mapped to ours. (Extra `hub`.)"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar, cast
from urllib.parse import urlsplit

from ... import errors
from ..._backoff import Backoff
from ...providers.redaction import redact
from ...settings import ClientSettings, is_loopback_for_secrets

NO_TOKEN = "there is no token for the Hub: run `hf auth login`, or set HF_TOKEN"  # noqa: S105 - words
SHORTEST = 8
"""Minimum length of secrets that are redacted from public text: shorter ones occur in ordinary words."""
_MOST = 400
_PERIOD = re.compile(r"\bt=(\d+)")


# The error and its message, by status code.
_BY_STATUS: dict[int, tuple[type[errors.OpenEnvError], str]] = {
    401: (
        errors.Unauthorized,
        "{what}: the Hub rejects this token: run `hf auth login` with one from your account's settings, or "
        "correct HF_TOKEN, which overrides it",
    ),
    402: (
        errors.Forbidden,
        "{what}: the Hub requires payment ({said}): choose another --hardware, or see the account's billing settings",
    ),
    403: (
        errors.Forbidden,
        "{what}: this token has no permission ({said}): run `hf auth login` with one that has write access, or use "
        "another Space",
    ),
    404: (
        errors.UsageError,
        "{what}: not found on the Hub, or hidden from this token: correct the name, or run `hf auth login`",
    ),
}
_NOT_FOUND = frozenset({"RevisionNotFoundError", "RepositoryNotFoundError"})
# The same by names of exception classes: versions of huggingface_hub use different HTTP libraries.
# The Hub also answers 401 for missing repositories; huggingface_hub distinguishes the two.
_BY_KIND: tuple[tuple[frozenset[str], type[errors.OpenEnvError], str], ...] = (
    (frozenset({"LocalTokenNotFoundError"}), errors.Unauthorized, NO_TOKEN),
    (
        frozenset({"RevisionNotFoundError"}),
        errors.UsageError,
        "{what}: the revision does not exist: use an existing branch, tag or commit",
    ),
    (frozenset({"RepositoryNotFoundError"}), *_BY_STATUS[404]),
    (
        frozenset({"OfflineModeIsEnabled"}),
        errors.UsageError,
        "{what}: HF_HUB_OFFLINE is set, which disables requests: unset it",
    ),
    (
        frozenset({"TimeoutException"}),
        errors.ConnectTimeout,
        "{what}: {endpoint} (HF_ENDPOINT) does not answer in time: check the address and the network",
    ),
    (
        frozenset({"TransportError", "ConnectionError", "ClientClosed"}),
        errors.ConnectionFailed,
        "{what}: {endpoint} (HF_ENDPOINT) cannot be reached ({said}): check the network, and set "
        "HTTPS_PROXY if it needs a proxy",
    ),
    (  # answers that the library cannot read
        frozenset({"KeyError", "TypeError", "AttributeError", "JSONDecodeError"}),
        errors.UsageError,
        "{what}: {endpoint} (HF_ENDPOINT) does not answer like the Hub ({said}): check the address, and that "
        "huggingface_hub is up to date",
    ),
)


def hub_error(what: str, endpoint: str, error: Exception, secrets: Collection[str]) -> errors.OpenEnvError:
    """Translates an exception of huggingface_hub, or of its HTTP library.

    Args:
        what: The operation, for the start of the message.
        endpoint: Address of the Hub.
        error: The exception.
        secrets: Strings that must not appear in the message.
    """
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None and len(chain) < 5:
        chain.append(cause)
    names = {cls.__name__ for each in chain for cls in type(each).__mro__}
    # The server's message, in one line.
    server = next(filter(None, (getattr(each, "server_message", None) for each in chain)), None)
    if server is None or type(error) is ValueError:  # from the library's check of the README's front matter
        server = ": ".join(str(each) or type(each).__name__ for each in chain[: 1 + isinstance(error, RuntimeError)])
    line = " ".join(str(server).split())
    line = line if len(line) <= _MOST else f"{line[:_MOST]}..."
    said = redact(line, sorted(secrets, key=len, reverse=True))
    for kinds, cls, message in _BY_KIND:
        if names & kinds:
            facts = {"status": 404} if names & _NOT_FOUND else None
            return cls(message.format(what=what, endpoint=endpoint, said=said), data=facts)
    responses: list[Any] = [getattr(each, "response", None) for each in chain]
    response = next((each for each in responses if hasattr(each, "status_code")), None)
    if response is None:
        return (errors.UsageError if isinstance(error, ValueError) else errors.ProviderFailed)(f"{what}: {said}")
    status, wait_s = int(response.status_code), retry_after_of(response)
    found = {"status": status}
    if status == 429:
        when = f"in {wait_s:g} s" if wait_s is not None else "later"
        message = f"{what}: too many requests from this token or address: run the same command again {when}"
        return errors.CapacityError(message, retry_after_s=wait_s, data=found)
    if status >= 500:
        message = f"{what}: the Hub failed (status {status}): run the same command again later"
        return errors.ConnectionFailed(message, retry_after_s=wait_s, data=found)
    cls, message = _BY_STATUS.get(
        status, (errors.UsageError, "{what}: the Hub refused the request (status {status}): {said}")
    )
    return cls(message.format(what=what, status=status, said=said), data=found)


def is_not_found(error: errors.OpenEnvError) -> bool:
    """Whether the Hub answered that something does not exist, or is hidden from this token."""
    return error.data.get("status") == 404


def retry_after_of(response: Any) -> float | None:
    """Seconds that the Hub wants clients to wait: `Retry-After`, or the rest of the period of `RateLimit`."""
    headers: Mapping[str, str] = getattr(response, "headers", {})
    given = headers.get("Retry-After", "").strip()
    if given.isdecimal():
        return float(given)
    period = _PERIOD.search(headers.get("RateLimit", ""))
    return float(period[1]) if period else None


T = TypeVar("T")


def call_on_threads(calls: Sequence[Callable[[], T]], at_once: int) -> list[T | Exception]:
    """Runs calls on threads, and waits for them.

    Args:
        calls: The calls.
        at_once: Maximum of concurrent calls.

    Returns:
        The outcomes in the order of the calls: a result or an exception each.

    Raises:
        KeyboardInterrupt: This thread was interrupted. Running calls continue, and no further call begins.
    """

    futures: list[Future[T]] = [Future() for _ in calls]
    waiting = deque(zip(calls, futures, strict=True))

    def work() -> None:
        while True:
            try:
                call, future = waiting.popleft()
            except IndexError:
                return
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 - for the caller
                future.set_exception(error)

    for _ in range(min(at_once, len(calls))):
        threading.Thread(target=work, name="openenv-hub", daemon=True).start()
    try:
        wait(futures)
    finally:
        waiting.clear()
    failures = [cast("Exception | None", future.exception()) for future in futures]
    return [failure or future.result() for failure, future in zip(failures, futures, strict=True)]


def call_on_thread(call: Callable[[], T]) -> T:
    """Runs a call on a thread. Returns its result, or raises its exception."""
    (came,) = call_on_threads([call], 1)
    if isinstance(came, Exception):
        raise came
    return came


# Status codes after which the request may be repeated.
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Timeouts and retries for requests to the Hub.

    Attributes:
        attempts: Maximum number of attempts of a request.
        pause_s: Seconds before the second attempt; doubled before each further one.
        longest_pause_s: Maximum pause in seconds. If the Hub asks for more (`Retry-After`), the call fails.
        trying_s: Seconds after which no further attempt begins.
        connect_s: Timeout of a connection, in seconds.
        silence_s: Maximum of seconds without a byte of an answer.
    """

    attempts: int = 4
    pause_s: float = 1.0
    longest_pause_s: float = 60.0
    trying_s: float = 120.0
    connect_s: float = 10.0
    silence_s: float = 60.0


class HubUser(NamedTuple):
    """The owner of the token.

    Attributes:
        name: The user.
        organizations: The organizations of the user.
        may_write: Whether the token has write access, as far as known.
    """

    name: str
    organizations: frozenset[str]
    may_write: bool


class Hub:
    """A connection to the Hub, for a `with` block. Its calls block, and may run on several threads.

    During the block, the process-wide HTTP client of huggingface_hub has the timeouts of `patience`.

    Args:
        token: The user's token. None takes that of huggingface_hub (`HF_TOKEN`, `hf auth login`).
        patience: Timeouts and retries.
        say: Called with a line about each retry.
        secrets: Strings that must not appear in errors, in addition to the token.

    Raises:
        MissingExtra: huggingface_hub is not installed.
        UsageError: The endpoint is not encrypted.

    Attributes:
        api: The library's client.
        endpoint: The Hub's address (`HF_ENDPOINT`).
        token: The token, if there is one.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        patience: Patience | None = None,
        say: Callable[[str], None] | None = None,
        secrets: Iterable[str] = (),
    ):
        try:
            import huggingface_hub
        except ModuleNotFoundError as error:
            raise errors.MissingExtra(error.name or "huggingface_hub", "hub") from None
        self.endpoint = ClientSettings.read().hub_url.rstrip("/")
        address = urlsplit(self.endpoint)
        if not (
            address.scheme == "https" or (address.scheme == "http" and is_loopback_for_secrets(address.hostname))
        ):
            raise errors.UsageError(
                f"HF_ENDPOINT is {self.endpoint!r}: it must begin with https://, since the token is sent there"
            )
        self._library = huggingface_hub
        self.token: str | None = token or huggingface_hub.get_token()
        self.api = huggingface_hub.HfApi(endpoint=self.endpoint, token=self.token, library_name="openenv")
        self._patience = patience or Patience()
        self._say = say or (lambda _: None)
        self._secrets = [*secrets, *([self.token] if self.token else [])]
        self._bounding = threading.Lock()
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        library, constants, undo = self._library.utils, self._library.constants, self._undo.callback
        undo(library.logging.set_verbosity, library.logging.get_verbosity())
        library.logging.set_verbosity_error()  # we report the same ourselves
        if not library.are_progress_bars_disabled():
            undo(library.enable_progress_bars)
            library.disable_progress_bars()
        undo(library.close_session)  # the next session has the library's defaults
        library.close_session()
        # Xet has its own HTTP client, without timeouts.
        undo(setattr, constants, "HF_HUB_DISABLE_XET", constants.HF_HUB_DISABLE_XET)
        constants.HF_HUB_DISABLE_XET = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    def check_token(self) -> None:
        """Raises `Unauthorized` if there is no token. Sends no request."""
        if self.token is None:
            raise errors.Unauthorized(NO_TOKEN)

    def check_public(self, variables: Mapping[str, str]) -> None:
        """Raises `UsageError` if a public variable contains the token or a secret."""
        kept = [secret for secret in self._secrets if len(secret) >= SHORTEST]
        for name, value in variables.items():
            if any(secret in value for secret in kept):
                raise errors.UsageError(
                    f"the variable {name} contains your token or the value of a --secret, but variables of a Space "
                    f"are public: pass it as --secret {name}"
                )

    def user(self) -> HubUser:
        """The owner of the token.

        Raises:
            Unauthorized: There is no token, or the Hub rejects it.
            UsageError: The server is not a Hub.
        """
        self.check_token()

        def call() -> HubUser:
            answer = self.api.whoami()
            role = answer.get("auth", {}).get("accessToken", {}).get("role")
            organizations = frozenset(str(each["name"]) for each in answer.get("orgs", ()))
            return HubUser(str(answer["name"]), organizations, role != "read")

        return self.ask("requesting the owner of the token", call)

    def ask(self, what: str, call: Callable[[], T], *, again: bool = True) -> T:
        """Runs a call of the library, and repeats it after temporary failures.

        Args:
            what: The operation, for errors and progress lines.
            call: The call. A repeated call must not have its effect twice.
            again: Whether to repeat it after a failure that leaves its effect unknown.

        Raises:
            OpenEnvError: The call failed; see `hub_error`.
        """
        patience = self._patience
        end = time.monotonic() + patience.trying_s
        backoff = Backoff(patience.pause_s)
        for number in range(1, patience.attempts + 1):
            # The library has no timeout, and its own retries.
            with self._bounding:
                client: Any = self._library.get_session()
                hooks = client.event_hooks["response"]
                if _raise_if_transient not in hooks:
                    client.timeout = (patience.connect_s, patience.silence_s, patience.silence_s, patience.silence_s)
                    client.event_hooks = {**client.event_hooks, "response": [*hooks, _raise_if_transient]}
            try:
                return call()
            except errors.OpenEnvError as raised:
                error = raised
            except Exception as raised:  # noqa: BLE001 - an edge: huggingface_hub, and the HTTP library it has now
                error = hub_error(what, self.endpoint, raised, self._secrets)
            pause_s = backoff.grow()
            if error.retry_after_s is not None:
                pause_s = error.retry_after_s
            passes = error.retryable and (again or isinstance(error, errors.CapacityError))
            late = time.monotonic() + pause_s > end or pause_s > patience.longest_pause_s
            if not passes or late or number == patience.attempts:
                if number > 1:
                    error.message = f"{error.message} (tried {number} times)"
                    error.args = (error.message,)
                raise error from None
            status = error.data.get("status")
            why = "no answer" if status is None else f"the Hub answers with status {status}"
            self._say(f"{what}: {why}; trying again in {pause_s:g} s ({number} of {patience.attempts - 1})")
            time.sleep(pause_s)
        raise AssertionError


class _TransientStatus(Exception):
    """A temporary status code. Bypasses the library's retries, whose duration the Hub determines."""

    def __init__(self, response: Any):
        super().__init__(f"status {response.status_code}")
        self.response = response


def _raise_if_transient(response: Any) -> None:
    if response.status_code in _TRANSIENT:
        raise _TransientStatus(response)
