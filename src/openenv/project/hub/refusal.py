"""What the Hub, or the road to it, refuses, in our words: from exceptions of huggingface_hub to ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ...errors import (
    CapacityError,
    ConnectionFailed,
    ConnectTimeout,
    Forbidden,
    OpenEnvError,
    ProviderFailed,
    Unauthorized,
    UsageError,
)
from ...providers.secrecy import masked

__all__ = ["NO_TOKEN", "missing", "translated", "wait_of"]

NO_TOKEN = "there is no token for the Hub: `hf auth login`, or set HF_TOKEN"  # noqa: S105 - words
_MOST = 400
_PERIOD = re.compile(r"\bt=(\d+)")


def translated(what: str, endpoint: str, error: Exception, secrets: Collection[str]) -> OpenEnvError:
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
    said = masked(_said(chain), sorted(secrets, key=len, reverse=True))
    for kinds, made in _BY_KIND:
        if names & kinds:
            return made(f"{what}: ", endpoint, said)
    if response is not None:
        return _of_status(int(response.status_code), f"{what}: ", said, wait_of(response))
    return (UsageError if isinstance(error, ValueError) else ProviderFailed)(f"{what}: {said}")


def missing(error: OpenEnvError) -> bool:
    """Whether the Hub says that there is no such thing, or hides it from this token."""
    return error.data.get("status") == 404


def wait_of(response: Any) -> float | None:
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


def _said(chain: list[BaseException]) -> str:
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
