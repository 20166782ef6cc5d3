"""Calls of huggingface_hub in bounded time, with retries, and with its exceptions mapped to ours. (Extra `hub`.)"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from ... import errors
from ..._backoff import Backoff
from ...providers.redaction import redact
from ...settings import ClientSettings, is_loopback_for_secrets

NO_TOKEN = "there is no token for the Hub: `hf auth login`, or set HF_TOKEN"  # noqa: S105 - words
SHORTEST = 8
"""Least characters of a secret that is redacted from public text: shorter ones are part of ordinary words."""
_MOST = 400
_PERIOD = re.compile(r"\bt=(\d+)")


# The error and its message by the status of the answer.
_BY_STATUS: dict[int, tuple[type[errors.OpenEnvError], str]] = {
    401: (
        errors.Unauthorized,
        "{what}: the Hub does not take this token: `hf auth login` with one of your account's settings, or correct "
        "HF_TOKEN, which wins over it",
    ),
    402: (
        errors.Forbidden,
        "{what}: the Hub wants it to be paid for ({said}): choose another --hardware, or see the account's billing "
        "settings",
    ),
    403: (
        errors.Forbidden,
        "{what}: this token may not do that ({said}): `hf auth login` with one that may write there, or name another "
        "Space",
    ),
    404: (
        errors.UsageError,
        "{what}: the Hub has nothing of that name, or hides it from this token: correct the name, or `hf auth login`",
    ),
}
# The same by names of classes, and the status: which HTTP library is under huggingface_hub changes with its versions.
# The Hub also answers 401 for missing repositories; huggingface_hub distinguishes the two.
_BY_KIND: tuple[tuple[frozenset[str], type[errors.OpenEnvError], str, int | None], ...] = (
    (frozenset({"LocalTokenNotFoundError"}), errors.Unauthorized, NO_TOKEN, None),
    (
        frozenset({"RevisionNotFoundError"}),
        errors.UsageError,
        "{what}: it has no such revision: name a branch, a tag or a commit that is there",
        404,
    ),
    (frozenset({"RepositoryNotFoundError"}), *_BY_STATUS[404], 404),
    (
        frozenset({"OfflineModeIsEnabled"}),
        errors.UsageError,
        "{what}: HF_HUB_OFFLINE is set, so nothing is asked for: unset it",
        None,
    ),
    (
        frozenset({"TimeoutException"}),
        errors.ConnectTimeout,
        "{what}: {endpoint} (HF_ENDPOINT) does not answer in time: is it the right address, is the network up?",
        None,
    ),
    (
        frozenset({"TransportError", "ConnectionError", "ClientClosed"}),
        errors.ConnectionFailed,
        "{what}: {endpoint} (HF_ENDPOINT) cannot be reached ({said}): is the network up, is a proxy needed "
        "(HTTPS_PROXY)?",
        None,
    ),
    (  # of answers that the library cannot read
        frozenset({"KeyError", "TypeError", "AttributeError", "JSONDecodeError"}),
        errors.UsageError,
        "{what}: {endpoint} (HF_ENDPOINT) does not answer as the Hub does ({said}): is it the right address, and "
        "huggingface_hub up to date?",
        None,
    ),
)


def hub_error(what: str, endpoint: str, error: Exception, secrets: Collection[str]) -> errors.OpenEnvError:
    """The error that stands for one of huggingface_hub, or of the HTTP library under it.

    Args:
        what: The operation, for the beginning of the message.
        endpoint: Address of the Hub.
        error: The exception.
        secrets: Texts that must not appear in the message.
    """
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None and len(chain) < 5:
        chain.append(cause)
    names = {cls.__name__ for each in chain for cls in type(each).__mro__}
    # The message of the server itself, in one line.
    server = next(filter(None, (getattr(each, "server_message", None) for each in chain)), None)
    if server is None or type(error) is ValueError:  # of the library's making: the README's front matter
        server = ": ".join(str(each) or type(each).__name__ for each in chain[: 1 + isinstance(error, RuntimeError)])
    line = " ".join(str(server).split())
    line = line if len(line) <= _MOST else f"{line[:_MOST]}..."
    said = redact(line, sorted(secrets, key=len, reverse=True))
    for kinds, cls, message, status in _BY_KIND:
        if names & kinds:
            facts = None if status is None else {"status": status}
            return cls(message.format(what=what, endpoint=endpoint, said=said), data=facts)
    responses: list[Any] = [getattr(each, "response", None) for each in chain]
    response = next((each for each in responses if hasattr(each, "status_code")), None)
    if response is None:
        return (errors.UsageError if isinstance(error, ValueError) else errors.ProviderFailed)(f"{what}: {said}")
    status, wait_s = int(response.status_code), retry_after_of(response)
    found = {"status": status}
    if status == 429:
        when = f"in {wait_s:g} s" if wait_s is not None else "later"
        message = (
            f"{what}: the Hub has had too many requests of this token or address: run the same command again {when}"
        )
        return errors.CapacityError(message, retry_after_s=wait_s, data=found)
    if status >= 500:
        message = f"{what}: the Hub fails (status {status}): run the same command again later"
        return errors.ConnectionFailed(message, retry_after_s=wait_s, data=found)
    cls, message = _BY_STATUS.get(status, (errors.UsageError, "{what}: the Hub refuses it (status {status}): {said}"))
    return cls(message.format(what=what, status=status, said=said), data=found)


def is_not_found(error: errors.OpenEnvError) -> bool:
    """Whether the Hub answers that it does not exist, or hides it from this token."""
    return error.data.get("status") == 404


def retry_after_of(response: Any) -> float | None:
    """Seconds that the Hub asks to wait: `Retry-After`, or the rest of the period of its `RateLimit`."""
    headers: Mapping[str, str] = getattr(response, "headers", {})
    given = headers.get("Retry-After", "").strip()
    if given.isdecimal():
        return float(given)
    period = _PERIOD.search(headers.get("RateLimit", ""))
    return float(period[1]) if period else None


T = TypeVar("T")


def call_on_threads(calls: Sequence[Callable[[], T]], at_once: int) -> list[T | Exception]:
    """Makes calls, each on a thread, and waits for them.

    Args:
        calls: The calls.
        at_once: Most at one time.

    Returns:
        The outcomes in the order of the calls: a result or an exception each.

    Raises:
        KeyboardInterrupt: This thread was interrupted. Calls that run are left alone, and no further one begins.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, T | Exception]] = queue.SimpleQueue()
    stopped = threading.Event()
    for number in range(len(calls)):
        waiting.put(number)

    def work() -> None:
        while not stopped.is_set():
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((number, calls[number]()))
            except Exception as error:  # noqa: BLE001 - for the caller
                done.put((number, error))

    for _ in range(min(at_once, len(calls))):
        threading.Thread(target=work, name="openenv-hub", daemon=True).start()
    try:
        return [result for _, result in sorted((done.get() for _ in calls), key=lambda pair: pair[0])]
    finally:
        stopped.set()


def call_on_thread(call: Callable[[], T]) -> T:
    """Makes one call that way, and returns its result or raises its exception."""
    (came,) = call_on_threads([call], 1)
    if isinstance(came, Exception):
        raise came
    return came


# Answers after which the same request may be made again.
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the Hub is waited for.

    Attributes:
        attempts: How often a request is made.
        pause_s: Seconds before the second attempt; twice as many before each further one.
        longest_pause_s: Most seconds between two; a Hub that asks for more (`Retry-After`) is not waited for.
        trying_s: Seconds after which no further attempt is made.
        connect_s: Seconds for a connection.
        silence_s: Seconds without a byte of an answer.
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
        may_write: Whether the token may, as far as is known.
    """

    name: str
    organizations: frozenset[str]
    may_write: bool

    @classmethod
    def of(cls, answer: Any) -> Self:
        """Reads the Hub's answer to `whoami`."""
        role = answer.get("auth", {}).get("accessToken", {}).get("role")
        return cls(
            str(answer["name"]), frozenset(str(each["name"]) for each in answer.get("orgs", ())), role != "read"
        )


class Hub:
    """The Hub, for the time of a `with` block. Its calls block; several threads may make them.

    Meanwhile the HTTP client that huggingface_hub has for the whole process is bounded, as `patience` says.

    Args:
        token: What it knows the user by; None takes that of huggingface_hub (`HF_TOKEN`, `hf auth login`).
        endpoint: Its address; None takes `HF_ENDPOINT`.
        patience: How long it is waited for.
        say: Called with a line about each wait.
        secrets: Texts that must not appear in errors, in addition to the token.

    Raises:
        MissingExtra: huggingface_hub is not installed.
        UsageError: The endpoint is not encrypted.

    Attributes:
        api: The library's client.
        endpoint: The Hub's address.
        token: The token, if there is one.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        endpoint: str | None = None,
        patience: Patience | None = None,
        say: Callable[[str], None] | None = None,
        secrets: Iterable[str] = (),
    ):
        try:
            import huggingface_hub
        except ModuleNotFoundError as error:
            raise errors.MissingExtra(error.name or "huggingface_hub", "hub") from None
        self.endpoint = (endpoint or ClientSettings.read().hub_url).rstrip("/")
        address = urlsplit(self.endpoint)
        if not (
            address.scheme == "https" or (address.scheme == "http" and is_loopback_for_secrets(address.hostname))
        ):
            raise errors.UsageError(
                f"HF_ENDPOINT is {self.endpoint!r}: it must begin with https://, for a token is sent there"
            )
        self._library = huggingface_hub
        self.token: str | None = token or huggingface_hub.get_token()
        self.api = huggingface_hub.HfApi(endpoint=self.endpoint, token=self.token, library_name="openenv")
        self._patience = patience or Patience()
        self._say = say or (lambda _: None)
        self._secrets = [*secrets, *([self.token] if self.token else [])]
        self._bounding = threading.Lock()
        self._shown: tuple[int, bool] = (0, False)
        self._without_xet = False

    def __enter__(self) -> Self:
        library = self._library.utils
        self._shown = (library.logging.get_verbosity(), library.are_progress_bars_disabled())
        library.logging.set_verbosity_error()  # what it would say is said by us
        library.disable_progress_bars()
        library.close_session()
        # Xet has its own HTTP client, and its requests cannot be bounded.
        self._without_xet = self._library.constants.HF_HUB_DISABLE_XET
        self._library.constants.HF_HUB_DISABLE_XET = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        library = self._library.utils
        self._library.constants.HF_HUB_DISABLE_XET = self._without_xet
        library.close_session()  # the next one has no bounds of ours
        library.logging.set_verbosity(self._shown[0])
        if not self._shown[1]:
            library.enable_progress_bars()

    def check_token(self) -> None:
        """Raises `Unauthorized` if there is no token. The Hub is not asked."""
        if self.token is None:
            raise errors.Unauthorized(NO_TOKEN)

    def check_public(self, variables: Mapping[str, str]) -> None:
        """Raises `UsageError` if a variable that everybody can read has the token or a secret in it."""
        kept = [secret for secret in self._secrets if len(secret) >= SHORTEST]
        for name, value in variables.items():
            if any(secret in value for secret in kept):
                raise errors.UsageError(
                    f"the variable {name} has your token or the value of a --secret in it, and everybody can read "
                    f"the variables of a Space: give it as --secret {name}"
                )

    def user(self) -> HubUser:
        """The owner of the token.

        Raises:
            Unauthorized: There is no token, or the Hub does not take it.
            UsageError: The server is not a Hub.
        """
        self.check_token()
        return self.ask("asking who owns the token", lambda: HubUser.of(self.api.whoami()))

    def ask(self, what: str, call: Callable[[], T], *, again: bool = True) -> T:
        """Makes a call of the library, again if it fails and that may pass.

        Args:
            what: The operation, for errors and progress lines.
            call: The call. When it is made again, it must not do anything twice.
            again: Whether it may be made again after it could have had its effect.

        Raises:
            OpenEnvError: The call failed; see `hub_error`.
        """
        patience = self._patience
        end = time.monotonic() + patience.trying_s
        backoff = Backoff(patience.pause_s)
        for number in range(1, patience.attempts + 1):
            # The library waits for its requests without end, and has its own retries.
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
    """Takes an answer that says "later" past the library: its own retries last for as long as the Hub likes."""

    def __init__(self, response: Any):
        super().__init__(f"status {response.status_code}")
        self.response = response


def _raise_if_transient(response: Any) -> None:
    if response.status_code in _TRANSIENT:
        raise _TransientStatus(response)
