"""Requests of agents over real sockets, without an SDK."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from ..model_server import logprob_of


class Agent:
    """An agent that speaks chat completions, and keeps its conversation."""

    def __init__(
        self, url: str, key: str, model: str = "echo", system: str = "", path: str = "/v1/chat/completions"
    ) -> None:
        self.url, self.key, self.model, self.path = url, key, model, path
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []

    def say(self, text: str, **fields: Any) -> dict[str, Any]:
        """Adds a message and the answer to it."""
        self.messages.append({"role": "user", "content": text})
        _, answer = self.send(**fields)
        message: dict[str, Any] = answer["choices"][0]["message"]
        self.messages.append({name: value for name, value in message.items() if value is not None})
        return message

    def send(self, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, dict[str, Any]]:
        body = {"model": self.model, "messages": self.messages, **fields}
        return ask(self.url, "POST", self.path, self.key, body, headers)


def ask(
    url: str, method: str, path: str, key: str = "", body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Sends a request; the status and the JSON of the answer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    given = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    data = body if isinstance(body, (bytes, str)) else None if body is None else json.dumps(body)
    connection.request(method, path, data, {**given, **(headers or {})})
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, json.loads(content)


def check_sequence(sequence: dict[str, Any]) -> None:
    """Every sampled token of a sequence has the log probability with which the engine samples it."""
    for token, mask, logprob in zip(sequence["input_ids"], sequence["loss_mask"], sequence["logprobs"], strict=True):
        assert logprob == (logprob_of(token) if mask else 0.0)
