"""One call of an agent: whether it is a retry, what the engine gets, and what is recorded before it is answered."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from ..errors import ContextOverflow, InvalidArgument, JournalFailed, ModelFailed, ModelTimeout, ModelUnavailable
from .dialects.base import Dialect, EngineAnswer, EventWriter, Json, ModelCall, RequestRefused, chunks_of, encode
from .graph import TurnRecord, count_of
from .http import EVENTS_TYPE, JSON_TYPE, Exchange
from .sessions import CaptureSession
from .upstream import InferenceClient

BUDGET_STOP_MESSAGE = "The budget of this session is used up. Stop here, and answer with what you have."
"""What a session without budget is answered, so that its agent ends in good order."""
_PASSED_ON = frozenset({400, 404, 413, 422, 429})
_LIMITS = ("max_tokens", "max_completion_tokens")
_CONSTRAINTS = ("logit_bias", "response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
NON_POLICY_SAMPLING = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Fields that change the distribution, with the values at which they do not."""
# Beside digits and commas, ids have nothing.
_ID_BYTES = b"0123456789,"


def training_sampling(sampling: Any) -> Json:
    """The sampling that every call of a session gets: the given temperature, and all else neutral.

    Args:
        sampling: `temperature`; others of `NON_POLICY_SAMPLING` only with their neutral values (`top_k` also 0).

    Raises:
        InvalidArgument: It has other fields or values, or no finite temperature above 0.
    """
    if not isinstance(sampling, dict) or set(sampling) - {"temperature", *NON_POLICY_SAMPLING}:
        raise InvalidArgument("sampling must be an object with `temperature`: all else is neutral")
    temperature = sampling.get("temperature", 1.0)
    if not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
        raise InvalidArgument(f"the temperature of a training policy is {temperature!r:.40}: it must be above 0")
    for name, neutral in NON_POLICY_SAMPLING.items():
        value = sampling.get(name, neutral)
        if value != neutral and (name, value) != ("top_k", 0):
            raise InvalidArgument(f"{name} is {value!r:.40}: a session to train on samples with {name}={neutral:g}")
    return {"temperature": float(temperature), **NON_POLICY_SAMPLING}


@dataclass
class CallInFlight:
    """A call in flight, with every client that waits for its answer.

    Attributes:
        call, dialect: The request.
        key: Its idempotency key, also towards the engine.
        named: Whether the agent gave that key.
        overtaking: Whether it is a retry that arrived before its first attempt.
        exchanges: The clients: the first one, and retries.
        parts: Events so far.
    """

    call: ModelCall
    dialect: Dialect
    key: str
    named: bool
    overtaking: bool
    rest: int
    exchanges: list[Exchange]
    events: EventWriter | None = None
    parts: list[bytes] = field(default_factory=list)
    held: list[bytes] = field(default_factory=list)

    @property
    def abandoned(self) -> bool:
        """Whether no client waits for it any more."""
        return all(exchange.gone for exchange in self.exchanges)

    def join(self, exchange: Exchange) -> None:
        """Has a retry wait for the same answer; it gets what the first client has got."""
        self.overtaking = False
        self.exchanges.append(exchange)
        if self.parts:
            exchange.begin(self._kind)
            exchange.write(b"".join(self.parts))

    def take(self, chunk: Json) -> None:
        """Passes a chunk of the engine's stream on. The last ones wait until the turn is recorded."""
        assert self.events is not None
        data = self.events.chunk(chunk)
        ending = self.held or any(choice.get("finish_reason") for choice in chunk.get("choices") or ())
        if ending:
            self.held.append(data)
        elif data:
            self._emit(data)

    def answer(self, answer: EngineAnswer) -> None:
        """Answers every client."""
        if self.events is None:
            body = self.dialect.answer(answer, self.call)
            for exchange in self.exchanges:
                exchange.reply(200, body)
            return
        if not self.parts and not self.held:  # the engine did not stream, or the answer is a recorded one
            self.held += [self.events.chunk(chunk) for chunk in chunks_of(answer)]
        self._emit(b"".join(self.held) + self.events.end())
        for exchange in self.exchanges:
            exchange.finish()

    def fail(self, status: int, message: str, kind: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Tells every client that there is no answer."""
        if self.events is not None and self.parts:
            self._emit(self.events.failure(message))
            for exchange in self.exchanges:
                exchange.finish(whole=False)
            return
        body = self.dialect.error(status, message, kind)
        for exchange in self.exchanges:
            exchange.reply(status, body, headers=headers)

    def _emit(self, data: bytes) -> None:
        for exchange in self.exchanges:
            if not self.parts:
                exchange.begin(self._kind)
            exchange.write(data)
        self.parts.append(data)

    @property
    def _kind(self) -> str:
        return JSON_TYPE if self.call.request.get("sse") is False else EVENTS_TYPE


def begin(
    session: CaptureSession, exchange: Exchange, dialect: Dialect, retry_window_s: float
) -> CallInFlight | None:
    """Reads a call; None if it is a retry, which is answered from the record or waits for the first one.

    A request is a retry if it has the idempotency key of another one, or the same body and: its SDK says so
    (`x-stainless-retry-count`), or the first one's client has disconnected, or it does not say that it is none and
    the first one is in flight or was answered within the window. A first attempt that its own retry has overtaken
    counts as the retry.

    Raises:
        RequestRefused: It is malformed, or the key is that of another request.
    """
    target = f"{exchange.path}?{exchange.query}" if exchange.query else exchange.path
    call = dialect.read(exchange.body, target, session.graph.end_of_messages, session.graph.calls)
    exchange.body = b""  # the call has it: while the engine answers, one copy is enough
    name = exchange.headers.get("idempotency-key", "")
    rest = call.rest
    key = hashlib.sha256(name.encode()).hexdigest()[:32] if name else _key_of(session, call, rest)
    retries = exchange.headers.get("x-stainless-retry-count", "")
    pending = CallInFlight(call, dialect, key, bool(name), retries not in ("", "0"), rest, [exchange])
    if call.stream:
        pending.events = dialect.events(call)
    for other in session.calls:
        same = (other.call.messages, other.rest) == (call.messages, pending.rest)
        if name and other.key == key and not same:
            raise RequestRefused(409, f"idempotency-key {name!r:.60} is that of another request: use a new one")
        again = retries != "0" or other.abandoned or other.overtaking
        if same and (other.key == key if name else not other.named and again):
            other.join(exchange)
            return None
    number = _answered(session, pending, name, retries, retry_window_s)
    if number < 0:
        return pending
    turn = session.graph.turns[number]
    pending.answer(EngineAnswer(bytes(turn.message), bytes(turn.head), turn.finish))
    session.overtaking.discard(number)
    if not exchange.gone:
        session.undelivered.discard(number)
    return None


def _key_of(session: CaptureSession, call: ModelCall, rest: int) -> str:
    """The key of a call that has none: the same as before a crash, if the call was not recorded then.

    So an engine that knows idempotency keys samples a call once, also if the proxy is killed while it waits.
    """
    digest = hashlib.blake2b(f"{session.session_id} {session.opened.time} {rest} ".encode(), digest_size=12)
    digest.update(call.messages)
    used = {other.key for other in session.calls}
    keys = (f"{digest.hexdigest()}-{number}" for number in count())
    return next(key for key in keys if key not in used and key not in session.answered)


def _answered(session: CaptureSession, pending: CallInFlight, name: str, retries: str, window_s: float) -> int:
    """The turn that a retry asks for; -1 if the request is none."""
    graph, call = session.graph, pending.call
    if name:
        number = session.answered.get(pending.key, -1)
        if number >= 0 and (
            number not in graph.same_messages(call.messages) or graph.turns[number].rest != pending.rest
        ):
            raise RequestRefused(409, f"idempotency-key {name!r:.60} is that of another request: use a new one")
        return number
    for number in graph.same_messages(call.messages):
        turn = graph.turns[number]
        if turn.rest != pending.rest:
            continue
        recent = time.time() - turn.time < window_s
        overtaken = number in session.overtaking or not retries
        if retries not in ("", "0") or number in session.undelivered or (overtaken and recent):
            return number
    return -1


async def sample(session: CaptureSession, pending: CallInFlight, engine: InferenceClient, max_tokens: int) -> None:
    """Has the engine answer a call, records the turn, and then answers the clients.

    A client that disconnects changes nothing: the turn is recorded all the same.

    Raises:
        RequestRefused: The session's sampling does not allow the request.
    """
    began = time.perf_counter()
    call = pending.call
    params = _params(session, call, max_tokens)
    session.calls.append(pending)
    try:
        answer = await engine.sample(call, params, pending.key, None if pending.events is None else pending.take)
        if session.deleted:
            pending.fail(410, "the session was deleted while the model answered: open another one", "not_found_error")
            return
        turn = _record_of(session, pending, answer, params, time.perf_counter() - began)
        if (found := _check_tokens(session, answer, engine.capture_level)) is not None:
            session.note("finding", found)
        if answer.logprobs:
            turn.logprobs = msgspec.Raw(encode(answer.logprobs))
        number = session.add(turn, call, answer)
        pending.answer(answer)
        if pending.abandoned:
            session.undelivered.add(number)
        if pending.overtaking:
            session.overtaking.add(number)
    except ContextOverflow as error:
        session.note("finding", f"WARN: {error.message}")
        stop(session, pending)
    except ModelFailed as error:
        session.note("upstream_error", error.message)
        status, kind = _status_of(error)
        after = [] if error.retry_after_s is None else [("retry-after", f"{math.ceil(error.retry_after_s)}")]
        pending.fail(status, error.message, kind, after)
    except asyncio.CancelledError:
        pending.fail(503, "the proxy ends: send the call again in a moment", "server_error", [("retry-after", "1")])
        raise
    except JournalFailed as error:
        pending.fail(507, error.message, "server_error")
    finally:
        session.calls.remove(pending)


def _record_of(
    session: CaptureSession, pending: CallInFlight, answer: EngineAnswer, params: Json, seconds: float
) -> TurnRecord:
    """The turn of an answer, without its tokens and its place in the graph."""
    call = pending.call
    turn = TurnRecord(
        call=pending.key,
        rest=pending.rest,
        messages_base=-1,
        messages_shared=0,
        messages=msgspec.Raw(b"[]"),
        message=msgspec.Raw(answer.message),
        head=msgspec.Raw(answer.head),
        n_tools=call.n_tools,
        params=msgspec.Raw(encode(call.params)),
        finish=answer.finish,
        model=call.model,
        dialect=pending.dialect.name,
        agent=_agent_of(pending.exchanges[0].headers),
        time=time.time(),
        seconds=round(seconds, 6),
    )
    if params != call.params:
        turn.sent = msgspec.Raw(encode(params))
    if call.tools != session.graph.last_tools():
        turn.tools = msgspec.Raw(b"[" + call.tools + b"]")
    return turn


def stop(session: CaptureSession, pending: CallInFlight) -> None:
    """Answers a call of a session without budget. Such an answer is no turn."""
    session.note("budget_stop")
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    choice = {"index": 0, "message": None, "finish_reason": "stop"}
    head = {"id": f"stop-{pending.key}", "object": "chat.completion", "created": int(time.time())}
    head |= {"model": pending.call.model, "choices": [choice], "usage": usage}
    message = encode({"role": "assistant", "content": BUDGET_STOP_MESSAGE})
    pending.answer(EngineAnswer(message, encode(head), "stop"))


def _status_of(error: ModelFailed) -> tuple[int, str]:
    if isinstance(error, ModelTimeout):
        return 504, "server_error"
    if error.status in _PASSED_ON:
        return error.status or 400, "rate_limit_error" if error.status == 429 else "invalid_request_error"
    return (503 if isinstance(error, ModelUnavailable) else 502), "server_error"


def _params(session: CaptureSession, call: ModelCall, max_tokens: int) -> Json:
    """The fields that the engine gets: those of the agent, with the limits and the sampling of the session."""
    params: Json = dict(call.params)
    if not call.tools:
        for name in ("tool_choice", "parallel_tool_calls", "functions"):
            params.pop(name, None)
    most = min(filter(None, (max_tokens, session.opened.max_output_tokens)), default=0)
    if most:
        named = [name for name in _LIMITS if name in params]
        for name in named or ("max_tokens",):
            asked = msgspec.json.decode(encode(params[name])) if name in params else most
            params[name] = min(asked, most) if isinstance(asked, int) and asked > 0 else most
    if session.opened.sampling:
        constrained = [name for name in _CONSTRAINTS if name in params]
        if constrained and session.rollout_type == "train":
            raise RequestRefused(
                400, f"{constrained[0]} changes the distribution that this session trains on: leave it out"
            )
        params |= session.opened.sampling
    return params


def _agent_of(headers: Any) -> str | None:
    """The agent's own name for a conversation, by the headers of the agents in use."""
    for name in ("x-openenv-session", "x-session-id", "session_id", "x-claude-code-session-id", "x-opencode-session"):
        if headers.get(name):
            return str(headers[name])[:200]
    return None


def _check_tokens(session: CaptureSession, answer: EngineAnswer, level: str) -> str | None:
    """Why the turn cannot be trained on, if the engine was to give token ids; it keeps no half of them then."""
    if level != "tokens":
        answer.prompt_ids = answer.completion_ids = b""
        return None
    found = None
    new_ids = answer.prompt_ids[max(0, session.graph.end_of_ids(answer.prompt_ids)) :]
    if not answer.completion_ids or not answer.prompt_ids:
        found = "FATAL: the engine gave no token ids"
        answer.prompt_ids, answer.completion_ids, answer.logprobs = b"", b"", ()
    elif new_ids.translate(None, _ID_BYTES) or answer.completion_ids.translate(None, _ID_BYTES):
        found = "FATAL: the engine gave token ids that are no numbers"
        answer.prompt_ids, answer.completion_ids, answer.logprobs = b"", b"", ()
    elif (given := len(answer.logprobs)) != (ids := count_of(answer.completion_ids)):
        found = f"FATAL: the engine gave {given} log probabilities for {ids} tokens"
        answer.logprobs = ()
    return found
