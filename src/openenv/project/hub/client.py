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

from ...errors import (
    CapacityError,
    ConnectionFailed,
    ConnectTimeout,
    Forbidden,
    MissingExtra,
    OpenEnvError,
    ProviderFailed,
    Unauthorized,
    UsageError,
)
from ...providers.redaction import redact
from ...settings import ClientSettings, is_loopback
from .request import SHORTEST

NO_TOKEN = "there is no token for the Hub: `hf auth login`, or set HF_TOKEN"  # noqa: S105 - words
_MOST = 400
_PERIOD = re.compile(r"\bt=(\d+)")


def hub_error(what: str, endpoint: str, error: Exception, secrets: Collection[str]) -> OpenEnvError:
    """The error that stands for what huggingface_hub, or the HTTP library under it, raised.

    Args:
        what: What was being done, at the beginning of the message.
        endpoint: Address of the Hub.
        error: What was raised.
        secrets: What may not be read in the message.
    """
    chain = _chain(error)
    names = {cls.__name__ for each in chain for cls in type(each).__mro__}
    responses: list[Any] = [getattr(each, "response", None) for each in chain]
    response = next((each for each in responses if hasattr(each, "status_code")), None)
    said = redact(_server_message(chain), sorted(secrets, key=len, reverse=True))
    for kinds, made in _BY_KIND:
        if names & kinds:
            return made(f"{what}: ", endpoint, said)
    if response is not None:
        return _of_status(int(response.status_code), f"{what}: ", said, retry_after_of(response))
    return (UsageError if isinstance(error, ValueError) else ProviderFailed)(f"{what}: {said}")


def is_not_found(error: OpenEnvError) -> bool:
    """Whether the Hub says that there is no such thing, or hides it from this token."""
    return error.data.get("status") == 404


def retry_after_of(response: Any) -> float | None:
    """Seconds that the Hub asks to wait: `Retry-After`, or the rest of the period of its `RateLimit`."""
    headers: Mapping[str, str] = getattr(response, "headers", {})
    given = headers.get("Retry-After", "").strip()
    if given.isdecimal():
        return float(given)
    period = _PERIOD.search(headers.get("RateLimit", ""))
    return float(period[1]) if period else None


def _of_status(status: int, begin: str, said: str, wait_s: float | None) -> OpenEnvError:
    facts = {"status": status}
    if status == 429:
        when = f"in {wait_s:g} s" if wait_s is not None else "later"
        return CapacityError(
            f"{begin}the Hub has had too many requests of this token or address: run the same command again {when}",
            retry_after_s=wait_s,
            data=facts,
        )
    if status >= 500:
        return ConnectionFailed(
            f"{begin}the Hub fails (status {status}): run the same command again later",
            retry_after_s=wait_s,
            data=facts,
        )
    made = _BY_STATUS.get(status)
    return (
        made(begin, said, facts)
        if made
        else UsageError(f"{begin}the Hub refuses it (status {status}): {said}", data=facts)
    )


def _unauthorized(begin: str, said: str, facts: Mapping[str, Any]) -> OpenEnvError:
    return Unauthorized(
        f"{begin}the Hub does not take this token: `hf auth login` with one of your account's settings, or correct "
        "HF_TOKEN, which wins over it",
        data=facts,
    )


def _unpaid(begin: str, said: str, facts: Mapping[str, Any]) -> OpenEnvError:
    return Forbidden(
        f"{begin}the Hub wants it to be paid for ({said}): choose another --hardware, or see the account's billing "
        "settings",
        data=facts,
    )


def _forbidden(begin: str, said: str, facts: Mapping[str, Any]) -> OpenEnvError:
    return Forbidden(
        f"{begin}this token may not do that ({said}): `hf auth login` with one that may write there, or name "
        "another Space",
        data=facts,
    )


def _missing(begin: str, said: str, facts: Mapping[str, Any]) -> OpenEnvError:
    return UsageError(
        f"{begin}the Hub has nothing of that name, or hides it from this token: correct the name, or `hf auth login`",
        data=facts,
    )


_BY_STATUS: dict[int, Callable[[str, str, Mapping[str, Any]], OpenEnvError]] = {
    401: _unauthorized,
    402: _unpaid,
    403: _forbidden,
    404: _missing,
}


def _no_token(begin: str, endpoint: str, said: str) -> OpenEnvError:
    return Unauthorized(NO_TOKEN)


def _nothing(begin: str, endpoint: str, said: str) -> OpenEnvError:
    return _missing(begin, said, {"status": 404})


def _no_revision(begin: str, endpoint: str, said: str) -> OpenEnvError:
    return UsageError(
        f"{begin}it has no such revision: name a branch, a tag or a commit that is there", data={"status": 404}
    )


def _offline(begin: str, endpoint: str, said: str) -> OpenEnvError:
    return UsageError(f"{begin}HF_HUB_OFFLINE is set, so nothing is asked for: unset it")


def _late(begin: str, endpoint: str, said: str) -> OpenEnvError:
    return ConnectTimeout(
        f"{begin}{endpoint} (HF_ENDPOINT) does not answer in time: is it the right address, is the network up?"
    )


def _cut(begin: str, endpoint: str, said: str) -> OpenEnvError:
    return ConnectionFailed(
        f"{begin}{endpoint} (HF_ENDPOINT) cannot be reached ({said}): is the network up, is a proxy needed "
        "(HTTPS_PROXY)?"
    )


def _foreign(begin: str, endpoint: str, said: str) -> OpenEnvError:
    return UsageError(
        f"{begin}{endpoint} (HF_ENDPOINT) does not answer as the Hub does ({said}): is it the right address, and "
        "huggingface_hub up to date?"
    )


# Names of classes: which HTTP library is under huggingface_hub changes with its versions. 401 is the Hub's answer for
# what is not there, too, which huggingface_hub knows how to tell.
_BY_KIND: tuple[tuple[frozenset[str], Callable[[str, str, str], OpenEnvError]], ...] = (
    (frozenset({"LocalTokenNotFoundError"}), _no_token),
    (frozenset({"RevisionNotFoundError"}), _no_revision),
    (frozenset({"RepositoryNotFoundError"}), _nothing),
    (frozenset({"OfflineModeIsEnabled"}), _offline),
    (frozenset({"TimeoutException"}), _late),
    (frozenset({"TransportError", "ConnectionError", "ClientClosed"}), _cut),
    # Of answers that the library cannot read.
    (frozenset({"KeyError", "TypeError", "AttributeError", "JSONDecodeError"}), _foreign),
)


def _server_message(chain: list[BaseException]) -> str:
    """What it says itself, in one line."""
    told = next(filter(None, (getattr(each, "server_message", None) for each in chain)), None)
    if told is None or type(chain[0]) is ValueError:  # of the library's making: the README's front matter
        told = ": ".join(str(each) or type(each).__name__ for each in chain[: 1 + isinstance(chain[0], RuntimeError)])
    line = " ".join(str(told).split())
    return line if len(line) <= _MOST else f"{line[:_MOST]}..."


def _chain(error: Exception) -> list[BaseException]:
    """An error and what it came from."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None and len(chain) < 5:
        chain.append(cause)
    return chain


T = TypeVar("T")


def call_on_threads(calls: Sequence[Callable[[], T]], at_once: int) -> list[T | Exception]:
    """Makes calls, each on a thread, and waits for them.

    Args:
        calls: The calls.
        at_once: Most at one time.

    Returns:
        What came of each, in their order: what it returned, or what it raised.

    Raises:
        KeyboardInterrupt: This thread was interrupted. Nobody waits for calls that run, and no further one begins.
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
            except Exception as error:  # noqa: BLE001 - for whoever waits
                done.put((number, error))

    for _ in range(min(at_once, len(calls))):
        threading.Thread(target=work, name="openenv-hub", daemon=True).start()
    try:
        return [call_on_thread for _, call_on_thread in sorted((done.get() for _ in calls), key=lambda pair: pair[0])]
    finally:
        stopped.set()


def call_on_thread(call: Callable[[], T]) -> T:
    """Makes one call so, and returns or raises what came of it."""
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
    """Whose the token is.

    Attributes:
        name: The user.
        organizations: Those that the user is in.
        may_write: Whether the token may, as far as can be told.
    """

    name: str
    organizations: frozenset[str]
    may_write: bool

    @classmethod
    def of(cls, told: Any) -> Self:
        """Reads what the Hub tells (`whoami`)."""
        role = told.get("auth", {}).get("accessToken", {}).get("role")
        return cls(str(told["name"]), frozenset(str(each["name"]) for each in told.get("orgs", ())), role != "read")


class Hub:
    """The Hub, for the time of a `with` block. Its calls block; several threads may make them.

    Meanwhile the HTTP client that huggingface_hub has for the whole process is bounded, as `patience` says.

    Args:
        token: What it knows the user by; None takes that of huggingface_hub (`HF_TOKEN`, `hf auth login`).
        endpoint: Its address; None takes `HF_ENDPOINT`.
        patience: How long it is waited for.
        say: Told what is waited for.
        secrets: What may be read in no error, beside the token.

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
            raise MissingExtra(error.name or "huggingface_hub", "hub") from None
        self.endpoint = (endpoint or ClientSettings.read().hub_url).rstrip("/")
        _check_endpoint(self.endpoint)
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
        # Xet has an HTTP client of its own, whose requests nobody can bound.
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
            raise Unauthorized(NO_TOKEN)

    def check_public(self, variables: Mapping[str, str]) -> None:
        """Raises `UsageError` if a variable that everybody can read has the token or a secret in it."""
        kept = [secret for secret in self._secrets if len(secret) >= SHORTEST]
        for name, value in variables.items():
            if any(secret in value for secret in kept):
                raise UsageError(
                    f"the variable {name} has your token or the value of a --secret in it, and everybody can read "
                    f"the variables of a Space: give it as --secret {name}"
                )

    def user(self) -> HubUser:
        """Whose the token is.

        Raises:
            Unauthorized: There is no token, or the Hub does not take it.
            UsageError: What answers is no Hub.
        """
        self.check_token()
        return self.ask("asking whose the token is", lambda: HubUser.of(self.api.whoami()))

    def ask(self, what: str, call: Callable[[], T], *, again: bool = True) -> T:
        """Makes a call of the library, again if it fails and that may pass.

        Args:
            what: What is being done, for errors and for whoever watches.
            call: The call. When it is made again, it must not do anything twice.
            again: Whether it may be made again after it could have had its effect.

        Raises:
            OpenEnvError: What came of it; see `refusal.translated`.
        """
        patience = self._patience
        end = time.monotonic() + patience.trying_s
        for number in range(1, patience.attempts + 1):
            try:
                return self._once(what, call)
            except OpenEnvError as error:
                pause_s = (
                    error.retry_after_s if error.retry_after_s is not None else patience.pause_s * 2 ** (number - 1)
                )
                passes = error.retryable and (again or isinstance(error, CapacityError))
                late = time.monotonic() + pause_s > end or pause_s > patience.longest_pause_s
                if not passes or late or number == patience.attempts:
                    raise _with_attempts(error, number) from None
                self._say(
                    f"{what}: {_why(error)}; trying again in {pause_s:g} s ({number} of {patience.attempts - 1})"
                )
                time.sleep(pause_s)
        raise AssertionError

    def _once(self, what: str, call: Callable[[], T]) -> T:
        self._bound()
        try:
            return call()
        except OpenEnvError:
            raise
        except Exception as error:  # noqa: BLE001 - an edge: huggingface_hub, and the HTTP library it has this year
            raise hub_error(what, self.endpoint, error, self._secrets) from None

    def _bound(self) -> None:
        """Bounds the time of the library's requests, which it waits for without end, and takes over its retries."""
        with self._bounding:
            client: Any = self._library.get_session()
            hooks = client.event_hooks["response"]
            if _raise_if_transient not in hooks:
                patience = self._patience
                client.timeout = (patience.connect_s, patience.silence_s, patience.silence_s, patience.silence_s)
                client.event_hooks = {**client.event_hooks, "response": [*hooks, _raise_if_transient]}


class _TransientStatus(Exception):
    """Takes an answer that says "later" past the library, whose own retries last for as long as the Hub likes."""

    def __init__(self, response: Any):
        super().__init__(f"status {response.status_code}")
        self.response = response


def _raise_if_transient(response: Any) -> None:
    if response.status_code in _TRANSIENT:
        raise _TransientStatus(response)


def _why(error: OpenEnvError) -> str:
    status = error.data.get("status")
    return "no answer" if status is None else f"the Hub answers with status {status}"


def _with_attempts(error: OpenEnvError, times: int) -> OpenEnvError:
    if times > 1:
        error.message = f"{error.message} (tried {times} times)"
        error.args = (error.message,)
    return error


def _check_endpoint(endpoint: str) -> None:
    address = urlsplit(endpoint)
    if not (address.scheme == "https" or (address.scheme == "http" and is_loopback(address.hostname))):
        raise UsageError(f"HF_ENDPOINT is {endpoint!r}: it must begin with https://, for a token is sent there")
