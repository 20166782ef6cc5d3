"""A client of a model that is served over HTTP: one request, its retries, and what is wrong with its answer."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from ..background import BackgroundLoop, shared_loop
from ..errors import ModelFailed, ModelUnavailable
from .client import LLMClient
from .retry import within
from .sender import Address, Reply, Sender, make_sender

__all__ = ["ServedModel"]

_TRY_AGAIN = frozenset({408, 409, 425, 429})


class ServedModel(LLMClient):
    """What the two clients have in common.

    A client may be used from any number of event loops and threads: its connections live on a loop of their own, one
    for the process, and are shared by all. It may be pickled, and used again in a forked child.

    Args:
        endpoint, port: As for `LLMClient`.
        model: Name of the model.
        api_key: Sent to the endpoint; it stands in no message and no repr.
        system_prompt: Begins each conversation that has no system message of its own.
        temperature, max_tokens: For calls that do not say otherwise.
        timeout_s: Seconds for an answer, attempts and pauses included.
        retries: How often a call is made again after a refused connection, 408, 409, 425, 429 or 5xx.
        backoff_s: A random part of `backoff_s * 2**n` lies between two attempts; or what Retry-After asks for.
        sdk: Send through the vendor's SDK; None: if it is installed.
    """

    def __init__(
        self,
        endpoint: str,
        port: int | None,
        model: str,
        api_key: str | None,
        system_prompt: str | None,
        temperature: float,
        max_tokens: int,
        *,
        timeout_s: float,
        retries: int,
        backoff_s: float,
        sdk: bool | None,
    ):
        super().__init__(endpoint, port)
        self.model = model
        self.system_prompt = system_prompt
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.timeout_s = timeout_s
        self.retries = retries
        self.backoff_s = backoff_s
        self._key = SecretStr(api_key or "")
        self._sdk = sdk
        self._home: BackgroundLoop | None = None
        self._sender: Sender | None = None
        self._address()  # a wrong endpoint is told now

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address().name!r}, model={self.model!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_home": None, "_sender": None}

    @abstractmethod
    def _address(self) -> Address:
        """Where this client sends to."""

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the JSON object that it is answered with."""
        answer = within(
            self.timeout_s,
            lambda: self._attempt(path, body),
            retries=self.retries,
            backoff_s=self.backoff_s,
            what=f"{self.model} at {self._address().name}",
        )
        return await asyncio.wrap_future(shared_loop().submit(answer))

    async def _attempt(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        home = shared_loop()
        if self._sender is None or self._home is not home:  # after a fork, connections are the parent's
            self._home, self._sender = home, make_sender(self._address(), self._sdk)
        return self._read(await self._sender.post(path, body))

    def _read(self, reply: Reply) -> dict[str, Any]:
        if 200 <= reply.status < 300:
            content = reply.content if isinstance(reply.content, dict) else _as_json(reply.content)
            if isinstance(content, dict):
                return content
            raise self._garbage("no JSON object", reply.content)
        cls = ModelUnavailable if reply.status in _TRY_AGAIN or reply.status >= 500 else ModelFailed
        said = self._without_key(_said(reply.content))
        raise cls(
            f"{self.model} at {self._address().name} answered {reply.status}: {said}{_advice(reply.status)}",
            status=reply.status,
            retry_after_s=_seconds(reply.headers.get("retry-after")),
        )

    def _garbage(self, what: str, content: Any) -> ModelFailed:
        shown = self._without_key(content if isinstance(content, str) else json.dumps(content, default=repr))
        return ModelFailed(
            f"{self.model} at {self._address().name} answered with {what}: {shown[:200]!r}; "
            "does the endpoint speak the API of this client?"
        )

    def _without_key(self, text: str) -> str:
        key = self._key.get_secret_value()
        return text.replace(key, "[key]") if key else text

    async def aclose(self) -> None:
        """Closes the connections. A later call opens new ones."""
        sender, home, self._sender = self._sender, self._home, None
        if sender is not None and home is not None and home is shared_loop():
            await asyncio.wrap_future(home.submit(sender.close()))


def _as_json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return None


def _said(content: Any) -> str:
    """The server's own words, from whichever of the usual places."""
    facts = content if isinstance(content, dict) else _as_json(content)
    if isinstance(facts, Mapping):
        error = facts.get("error", facts)
        told = error.get("message") or error.get("detail") if isinstance(error, Mapping) else error
        if told:
            return str(told)[:500]
    return str(content).strip()[:500] or "nothing"


def _advice(status: int) -> str:
    if status in (401, 403):
        return " (check api_key)"
    if status == 404:
        return " (check the endpoint and the name of the model)"
    return ""


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "")
    except ValueError:
        return None  # a date, or nothing
    return seconds if 0 <= seconds < float("inf") else None
