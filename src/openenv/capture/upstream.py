"""The engine behind the proxy: one OpenAI-compatible endpoint, asked for token ids and log probabilities."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from pydantic import SecretStr

from ..errors import ContextOverflow, InvalidArgument, ModelFailed, ModelTimeout, ModelUnavailable
from ..llm.http import HttpAnswer
from ..llm.sender import Address, HttpSender, ModelReply, as_json, failure_of, read_json, unreadable
from ..llm.service import within
from ..llm.vendors import openai_address
from ..rollouts.streams import chat_answer, error_in
from .dialects.base import EngineAnswer, Json, ModelCall, encode
from .dialects.chat import read_head

CaptureLevel = Literal["tokens", "logprobs", "text"]
# Failures of an engine under their older names.
UpstreamError, UpstreamTransportError, UpstreamTimeoutError = ModelFailed, ModelUnavailable, ModelTimeout
CAPTURE_LEVELS: tuple[CaptureLevel, ...] = ("tokens", "logprobs", "text")
"""What an engine returns: ids with log probabilities, log probabilities alone, or neither."""
_ASKED: dict[str, Json] = {
    "tokens": {"logprobs": True, "return_token_ids": True},
    "logprobs": {"logprobs": True},
    "text": {},
}
_PROMPT = b'"prompt_token_ids":['
_PROTECTED = frozenset({"model", "messages", "stream", "tools", "tool_choice", "logprobs", "return_token_ids"})
MAX_FIXES = 6


class _SampledToken(msgspec.Struct, gc=False):
    logprob: float


class _SampledTokens(msgspec.Struct, gc=False):
    content: list[_SampledToken] | None = None


_read_logprobs = msgspec.json.Decoder(_SampledTokens | None).decode
_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_choices = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_read_finish = msgspec.json.Decoder(str | None).decode


@dataclass(frozen=True)
class ParamFix:
    """What an engine wants changed in a request.

    Attributes:
        param: The field that it does not take.
        replacement: The name that it takes instead; empty: the field is left out.
    """

    param: str
    replacement: str = ""


_INSTEAD = re.compile(r"'(\w+)' is not supported[^']*(?:use|Use) '(\w+)' instead")
_UNKNOWN = re.compile(
    r"(?:unknown|unrecognized|unsupported|unexpected|extra)[^'\"`]*(?:parameter|field|argument|input)s?[^'\"`]*"
    r"['\"`](\w+)['\"`]",
    re.IGNORECASE,
)


def diagnose(message: str, sent: Mapping[str, Any]) -> ParamFix | None:
    """Reads from the words of a 400 what a request must not have.

    Args:
        message: The engine's words.
        sent: The fields of the request.
    """
    if (found := _INSTEAD.search(message)) is not None:
        fix = ParamFix(found[1], found[2])
    elif (found := _UNKNOWN.search(message)) is not None:
        fix = ParamFix(found[1])
    else:
        return None
    return fix if fix.param in sent and fix.param not in _PROTECTED else None


class InferenceClient:
    """Asks one engine. Belongs to the running event loop.

    Args:
        base_url: URL of the engine. One without a path gets `/v1`.
        served_model: The model's name there; None: as the agent names it.
        api_key: Key for the engine; messages, reprs and records do not contain it.
        auth_header: Header of the key.
        capture_level: What to ask for: `tokens`, `logprobs` or `text`.
        timeout_s: Seconds for a call with all its attempts.
        retries: Most retries after failures that may pass.
        backoff_s: Base of the pause before a retry, as in `EndpointModel`.

    Raises:
        InvalidArgument: The URL is none, or the level is another word.

    Attributes:
        renames: Fields that the engine wants under another name; learnt from its refusals.
    """

    def __init__(
        self,
        base_url: str,
        *,
        served_model: str | None = None,
        api_key: str | None = None,
        auth_header: str = "Authorization",
        capture_level: CaptureLevel = "tokens",
        timeout_s: float = 900.0,
        retries: int = 4,
        backoff_s: float = 0.5,
    ):
        if not re.match(r"https?://[^/]", base_url):
            raise InvalidArgument(f"llm_url must be a URL such as http://localhost:8000/v1, not {base_url!r:.100}")
        if capture_level not in CAPTURE_LEVELS:
            raise InvalidArgument(f"capture_level must be one of {', '.join(CAPTURE_LEVELS)}, not {capture_level!r}")
        self.base_url = base_url.rstrip("/")
        self.served_model = served_model
        self.capture_level: CaptureLevel = capture_level
        self.renames: dict[str, str] = {}
        self._key = SecretStr(api_key or "")
        address = openai_address(self.base_url, api_key or "")
        if api_key and auth_header.lower() != "authorization":
            address = Address(address.root, address.sdk, api_key, {auth_header: api_key}, {})
        self.address = address
        self._sender: HttpSender | None = None
        self._timeout_s, self._retries, self._backoff_s = timeout_s, retries, backoff_s

    def __repr__(self) -> str:
        return f"InferenceClient({self.address.name!r}, {self.served_model!r})"

    @property
    def param_fixes(self) -> list[ParamFix]:
        """The renames as fixes."""
        return [ParamFix(name, other) for name, other in self.renames.items()]

    async def sample(
        self, call: ModelCall, params: Json, key: str, on_chunk: Callable[[Json], None] | None = None
    ) -> EngineAnswer:
        """Samples the answer of a call.

        Args:
            call: The call.
            params: Its fields, as the session wants them.
            key: Idempotency key, the same for each attempt.
            on_chunk: Gets each chunk of a stream as it arrives, and so has the answer streamed.

        Raises:
            ContextOverflow: The prompt is too long.
            ModelFailed: The engine refuses the call, or its answer cannot be read.
            ModelUnavailable: It does not answer, retries included; or a stream broke off, which is not repeated.
        """
        fixes: dict[str, str] = dict(self.renames)
        streaming = on_chunk is not None
        for number in range(MAX_FIXES + 1):
            fields = {fixes.get(name, name): value for name, value in params.items() if fixes.get(name) != ""}
            fields |= _ASKED[self.capture_level]
            if streaming:
                fields |= {"stream": True, "stream_options": {"include_usage": True}}
            body = self._body(call, fields)
            try:
                reply, chunks = await self._ask(body, key, on_chunk)
            except ModelFailed as error:
                fix = diagnose(error.message, fields) if error.status in (400, 422) else None
                if fix is None or number == MAX_FIXES or isinstance(error, ContextOverflow):
                    raise
                # A name is the engine's own affair; a field that it lacks is that of this one request.
                fixes[fix.param] = fix.replacement
                if fix.replacement:
                    self.renames[fix.param] = fix.replacement
                continue
            return self._streamed(reply, chunks, call) if chunks is not None else self._read(reply, call)
        raise AssertionError("the last attempt returns or raises")

    async def completion(self, request: Mapping[str, Any]) -> Json:
        """Sends a chat completion, with the fields that the level asks for. Raises the errors of `sample`."""
        model = {"model": self.served_model or request.get("model")}
        body = encode({**request, **_ASKED[self.capture_level], **model})
        reply, _ = await self._ask(body, "", None)
        answer: Json = read_json(reply, str(model["model"]), self.address)
        return answer

    async def list_models(self) -> list[str]:
        """Names of the engine's models. Raises `ModelFailed` and `ModelUnavailable`."""
        answer = read_json(await self.sender.get("/models"), "models", self.address)
        return [str(each.get("id")) for each in answer.get("data") or () if isinstance(each, dict)]

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._sender is not None:
            await self._sender.close()

    @property
    def sender(self) -> HttpSender:
        """Sends requests, on the running event loop."""
        if self._sender is None:
            self._sender = HttpSender(self.address, connections=0)
        return self._sender

    def _body(self, call: ModelCall, fields: Json) -> bytes:
        model = encode(self.served_model or call.model)
        tools = b',"tools":[%b]' % call.tools if call.tools else b""
        rest = encode(fields)[1:]
        return b'{"model":%b,"messages":[%b]%b%b%b' % (model, call.messages, tools, b"," if fields else b"", rest)

    async def _ask(
        self, body: bytes, key: str, on_chunk: Callable[[Json], None] | None
    ) -> tuple[ModelReply, list[Json] | None]:
        """The engine's answer, and the chunks if it is a stream."""
        headers = {"idempotency-key": key} if key else {}

        async def attempt() -> tuple[ModelReply, list[Json] | None]:
            stream = None if on_chunk is None else _ChunkReader(on_chunk)
            try:
                feed = None if stream is None else stream.feed
                reply = await self.sender.post("/chat/completions", body, headers=headers, on_part=feed)
            except ModelUnavailable as error:
                if stream is not None and stream.chunks:  # the agent has a part of the answer
                    raise _StreamBroken(error.message) from error
                raise
            if reply.status != 200:
                raise failure_of(reply.status, reply.content, self._name, self.address, reply.headers)
            if stream is None or not reply.headers.get("content-type", "").startswith("text/event-stream"):
                return reply, None
            if (failure := error_in(stream.chunks)) is not None:
                broken = failure_of(500, failure, self._name, self.address)
                raise _StreamBroken(broken.message) if len(stream.chunks) > 1 else broken
            return reply, stream.chunks

        return await within(
            self._timeout_s, attempt, retries=self._retries, backoff_s=self._backoff_s, what=self._name
        )

    @property
    def _name(self) -> str:
        return f"{self.served_model or 'the model'} at {self.address.name}"

    def _read(self, reply: ModelReply, call: ModelCall) -> EngineAnswer:
        content = reply.content
        prompt_ids, place = b"", content.find(_PROMPT)
        if place > 0 and content[place - 1] != 92:  # no backslash: a key, since quotes in a text have one
            end = content.find(b"]", place)
            prompt_ids = content[place + len(_PROMPT) : end].replace(b" ", b"")
            content = content[: place + len(_PROMPT)] + content[end:]
        try:
            fields = _read_fields(content)
            choice = _read_choices(fields["choices"])[0]
            message = bytes(choice["message"])
            finish = _read_finish(choice.get("finish_reason", b"null")) or "stop"
            ids = _items(choice.get("token_ids") or choice.get("response_token_ids"))
            head = read_head({**fields, "choices": [choice]}, call)
            if not message.startswith(b"{"):
                raise ValueError
        except (KeyError, IndexError, ValueError, TypeError, msgspec.DecodeError) as error:
            raise unreadable("no chat completion", reply.content, self._name, self.address) from error
        logprobs = _logprobs_of(choice.get("logprobs", b"null"))
        return EngineAnswer(message, head, finish, prompt_ids if ids else b"", ids, logprobs)

    def _streamed(self, reply: ModelReply, chunks: list[Json], call: ModelCall) -> EngineAnswer:
        try:
            merged = chat_answer(chunks)
            if merged is None:
                raise _StreamBroken(f"{self._name} ended its stream before the end of its answer")
            choice = merged["choices"][0]
            head = {"id": "", "object": "chat.completion", **_first(chunks, "id", "created", "model"), **merged}
            kept = {"index": 0, "finish_reason": choice["finish_reason"], "logprobs": choice.get("logprobs")}
            head["choices"] = [{name: value for name, value in kept.items() if value is not None}]
            prompt_ids = merged.get("prompt_token_ids") or choice.get("prompt_token_ids") or []
            content = (choice.get("logprobs") or {}).get("content") or ()
            return EngineAnswer(
                encode(choice["message"]),
                read_head(head, call),
                choice["finish_reason"],
                encode(prompt_ids)[1:-1] if choice.get("token_ids") else b"",
                encode(choice.get("token_ids") or [])[1:-1],
                [each["logprob"] for each in content],
            )
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise unreadable("no chat completion", reply.content, self._name, self.address) from error


class _StreamBroken(ModelFailed):
    """A stream broke off after the agent had a part of it."""


def _items(raw: msgspec.Raw | None) -> bytes:
    text = b"" if raw is None else bytes(raw)
    return text[1:-1].replace(b" ", b"") if text.startswith(b"[") else b""


def _logprobs_of(raw: bytes) -> list[float]:
    """The log probabilities of the sampled tokens; empty if they have another form."""
    try:
        found = _read_logprobs(raw)
    except msgspec.DecodeError:
        return []
    return [each.logprob for each in found.content or ()] if found else []


def _first(chunks: list[Json], *names: str) -> Json:
    return {name: chunks[0][name] for name in names if chunks and name in chunks[0]}


class _ChunkReader:
    """Reads the JSON of server-sent events as their bytes arrive."""

    def __init__(self, on_chunk: Callable[[Json], None]):
        self.chunks: list[Json] = []
        self._on_chunk = on_chunk
        self._rest = b""

    def feed(self, answer: HttpAnswer, data: bytes) -> None:
        if answer.status != 200 or not answer.headers.get("content-type", "").startswith("text/event-stream"):
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and isinstance(chunk := as_json(line[5:]), dict):
                self.chunks.append(chunk)
                if not chunk.get("error"):
                    self._on_chunk(chunk)


class EngineTable:
    """The engines of one worker: that of the proxy, and those that sessions name.

    Args:
        settings: Further arguments of `InferenceClient`.
    """

    def __init__(self, **settings: Any):
        self._settings = settings
        self._engines: dict[tuple[Any, ...], InferenceClient] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self, url: str, model: str | None, key: str, header: str, level: CaptureLevel) -> InferenceClient:
        """The engine for these facts, with connections of the running event loop."""
        if self._loop is not asyncio.get_running_loop():
            self._engines.clear()
            self._loop = asyncio.get_running_loop()
        facts = (url, model, key, header, level)
        engine = self._engines.get(facts)
        if engine is None:
            engine = self._engines[facts] = InferenceClient(
                url,
                served_model=model,
                api_key=key,
                auth_header=header,
                capture_level=level,
                **self._settings,
            )
        return engine

    async def close(self) -> None:
        """Closes all connections."""
        for engine in self._engines.values():
            await engine.aclose()
