"""The Hub, by huggingface_hub: every call ends in time, and what goes wrong is said in our words. (Extra `hub`.)"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from ...errors import CapacityError, MissingExtra, OpenEnvError, Unauthorized, UsageError
from ...providers.sandbox.hub import is_loopback
from ...settings import ClientSettings
from .refusal import NO_TOKEN, translated
from .request import SHORTEST

__all__ = ["Hub", "Patience", "User"]

T = TypeVar("T")
# Answers after which the same request may be made again.
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


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


class User(NamedTuple):
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
        _check(self.endpoint)
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

    def user(self) -> User:
        """Whose the token is.

        Raises:
            Unauthorized: There is no token, or the Hub does not take it.
            UsageError: What answers is no Hub.
        """
        self.check_token()
        return self.ask("asking whose the token is", lambda: User.of(self.api.whoami()))

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
                    raise _tried(error, number) from None
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
            raise translated(what, self.endpoint, error, self._secrets) from None

    def _bound(self) -> None:
        """Bounds the time of the library's requests, which it waits for without end, and takes over its retries."""
        with self._bounding:
            client: Any = self._library.get_session()
            hooks = client.event_hooks["response"]
            if _stop_if_passing not in hooks:
                patience = self._patience
                client.timeout = (patience.connect_s, patience.silence_s, patience.silence_s, patience.silence_s)
                client.event_hooks = {**client.event_hooks, "response": [*hooks, _stop_if_passing]}


class _Passing(Exception):
    """Takes an answer that says "later" past the library, whose own retries last for as long as the Hub likes."""

    def __init__(self, response: Any):
        super().__init__(f"status {response.status_code}")
        self.response = response


def _stop_if_passing(response: Any) -> None:
    if response.status_code in _PASSING:
        raise _Passing(response)


def _why(error: OpenEnvError) -> str:
    status = error.data.get("status")
    return "no answer" if status is None else f"the Hub answers with status {status}"


def _tried(error: OpenEnvError, times: int) -> OpenEnvError:
    if times > 1:
        error.message = f"{error.message} (tried {times} times)"
        error.args = (error.message,)
    return error


def _check(endpoint: str) -> None:
    address = urlsplit(endpoint)
    if not (address.scheme == "https" or (address.scheme == "http" and is_loopback(address.hostname))):
        raise UsageError(f"HF_ENDPOINT is {endpoint!r}: it must begin with https://, for a token is sent there")
