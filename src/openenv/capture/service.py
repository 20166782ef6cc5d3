"""The proxy: its routes, the keys that they need, and the worker that a session belongs to."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import msgspec

from ..errors import InvalidArgument, JournalFailed, ModelFailed, OpenEnvError, UnreadableRecord
from ..llm.http import HttpAnswer, HttpClient
from .calls import begin, sample, stop, training_sampling
from .dialects import DIALECTS, RequestRefused, detect
from .dialects.base import Json, encode, read_object
from .export import export_session, summarise, to_trace_entries
from .http import MOST_BODY_BYTES, Exchange
from .sessions import CaptureSession, SessionOpened, SessionStore, rollout_type_for
from .upstream import CaptureLevel, EngineTable, InferenceClient

logger = logging.getLogger("openenv.capture")
_IN_ADDRESS = "/s/"
_SESSIONS = "/sessions"
_COUNTS = ("/messages/count_tokens", ":countTokens", "/responses/input_tokens")
_KEY_HEADERS = ("x-openenv-key", "x-api-key", "x-goog-api-key")
_CHARACTERS_OF_A_TOKEN = 4
_WORKER_START_S = 10.0
_WORKER_PAUSE_S = 0.05


@dataclass(kw_only=True)
class CaptureOptions:
    """How a proxy works.

    Attributes:
        llm_url, model: The engine, and the model's name there; empty: sessions name theirs, and agents the model.
        api_key, auth_header: The engine's key, and its header.
        capture_level: What the engine returns: `tokens`, `logprobs` or `text`.
        admin_key: Key of those who open and read sessions; empty: a random one.
        folder: Where sessions are recorded; None: nowhere beyond the end of the proxy.
        memory_mb: Sessions beyond that are read from their files again.
        max_output_tokens: Most tokens of one answer; 0 for no limit.
        max_model_calls: Most calls of a session; 0 for no limit.
        require_registered: Whether an agent's key must be that of an opened session. False: any key opens one.
        retry_window_s: Seconds in which the same request counts as a retry if its client does not say otherwise.
        timeout_s: Seconds for the engine's answer, with all attempts.
        retries: Most retries of a request to the engine.
        workers, worker: Number of worker processes, and the number of this one.
    """

    llm_url: str = ""
    model: str | None = None
    api_key: str | None = None
    auth_header: str = "Authorization"
    capture_level: CaptureLevel = "tokens"
    admin_key: str | None = None
    folder: str | Path | None = None
    memory_mb: float = 512.0
    max_output_tokens: int = 0
    max_model_calls: int = 0
    require_registered: bool = True
    retry_window_s: float = 10.0
    timeout_s: float = 900.0
    retries: int = 4
    workers: int = 1
    worker: int = 0


class CaptureService:
    """Answers the requests of agents and of those who train them.

    Args:
        options: How it works.

    Raises:
        InvalidArgument: The engine's URL is none, or an option has another value.
        JournalInUse: Another proxy records into the folder.

    Attributes:
        store: The sessions of this worker.
        admin_key: Key of the routes under `/sessions`.
    """

    def __init__(self, options: CaptureOptions):
        if options.workers > 1 and options.folder is None:
            raise InvalidArgument("several workers share a folder: name it with folder")
        self.options = options
        self.admin_key = options.admin_key or secrets.token_urlsafe(24)
        self.engines = EngineTable(timeout_s=options.timeout_s, retries=options.retries)
        if options.llm_url:
            InferenceClient(options.llm_url, capture_level=options.capture_level)  # raises for an invalid one
        self.store = SessionStore(options.folder, options.memory_mb, lock=options.workers == 1)
        self._others: dict[int, HttpClient] = {}
        self._calls: set[asyncio.Task[Any]] = set()

    async def handle(self, exchange: Exchange) -> None:
        """Answers a request of a client, here or by the worker that has its session."""
        await self._answer(exchange, self._route)

    async def handle_here(self, exchange: Exchange) -> None:
        """Answers a request that another worker passes on."""
        await self._answer(exchange, self._route_here)

    async def _answer(self, exchange: Exchange, route: Callable[[Exchange], Awaitable[None]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        status, kind = 500, "server_error"
        try:
            await route(exchange)
            return
        except RequestRefused as refusal:
            status, kind, message = refusal.status, refusal.kind, str(refusal)
        except ModelFailed as error:
            status, message = 502, error.message
        except (JournalFailed, UnreadableRecord) as error:
            status, message = 507 if isinstance(error, JournalFailed) else 500, error.message
        except OpenEnvError as error:
            status, kind, message = 400, "invalid_request_error", error.message
        except Exception:
            logger.exception("a request for %s failed", exchange.path)
            message = "the proxy failed; its log says why"
        finally:
            self._calls.discard(task)
        if exchange.begun:
            exchange.finish(whole=False)
            return
        dialect = detect(exchange.path) or DIALECTS["chat"]
        exchange.reply(status, dialect.error(status, message, kind))

    async def close(self, grace_s: float = 10.0) -> None:
        """Waits for calls in flight, ends those that take longer than `grace_s`, and closes the files."""
        calls = self._calls - {asyncio.current_task()}
        if calls:
            _, late = await asyncio.wait(calls, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self.engines.close()
        for other in self._others.values():
            await other.close()
        self.store.close()

    # Routes.

    async def _route(self, exchange: Exchange) -> None:
        # Every worker can list all sessions, from their files.
        if self.options.workers > 1 and (exchange.method, exchange.path) != ("GET", _SESSIONS):
            owner = self._owner(exchange)
            if owner != self.options.worker:
                await self._forward(exchange, owner)
                return
        await self._route_here(exchange)

    async def _route_here(self, exchange: Exchange) -> None:
        path = exchange.path
        if path == "/health":
            exchange.reply(200, encode(self._health()))
        elif path == _SESSIONS or path.startswith(f"{_SESSIONS}/"):
            await self._sessions(exchange)
        elif exchange.method == "POST" and path.endswith(_COUNTS):
            self._session(exchange)
            counter = DIALECTS["google"] if path.endswith(":countTokens") else DIALECTS["anthropic"]
            exchange.reply(200, counter.count(max(1, len(exchange.body) // _CHARACTERS_OF_A_TOKEN)))
        elif exchange.method == "POST" and (dialect := detect(path)) is not None:
            session = self._session(exchange)
            pending = begin(session, exchange, dialect, self.options.retry_window_s)
            if pending is None:
                return
            limit = session.opened.max_model_calls or self.options.max_model_calls
            if (limit and session.model_calls >= limit) or session.spent:
                stop(session, pending)
                return
            try:
                await sample(session, pending, self.engine_of(session), self.options.max_output_tokens)
            finally:
                self.store.changed(session)
        elif exchange.method == "GET" and path.endswith("/models"):
            models = await self.engine_of(self._session(exchange)).list_models()
            listed = [{"id": name, "object": "model", "created": 0, "owned_by": "engine"} for name in models]
            exchange.reply(200, encode({"object": "list", "data": listed}))
        else:
            raise RequestRefused(
                404,
                f"no route {exchange.method} {path:.200}: this proxy takes chat completions, responses, Anthropic's "
                "messages and Google's generateContent",
                "not_found_error",
            )

    def engine_of(self, session: CaptureSession) -> InferenceClient:
        """The engine of a session. Raises `RequestRefused` if it has none."""
        options, opened = self.options, session.opened
        if not (opened.llm_url or options.llm_url):
            raise RequestRefused(
                503, "there is no engine: give llm_url to the proxy, or to the session", "server_error"
            )
        if opened.llm_url and not session.engine_key:
            key, header = "", "Authorization"
        elif opened.llm_url:
            key, header = session.engine_key, session.engine_header
        else:
            key, header = options.api_key or "", options.auth_header
        url = opened.llm_url or options.llm_url
        return self.engines.get(url, opened.model or options.model, key, header, opened.capture_level)

    def _health(self) -> Json:
        return {
            "status": "ok",
            "sessions": len(self.store),
            "model": self.options.model,
            "require_registered": self.options.require_registered,
            "capture_level": self.options.capture_level,
            "rollout_type": rollout_type_for("auto", self.options.capture_level),
            "worker": self.options.worker,
        }

    def _key(self, exchange: Exchange) -> str:
        """The key of a request: in its address, which loses it, or in a header."""
        if exchange.path.startswith(_IN_ADDRESS):
            key, slash, rest = exchange.path.removeprefix(_IN_ADDRESS).partition("/")
            exchange.path = slash + rest
            exchange.headers = {**exchange.headers, _KEY_HEADERS[0]: key}
        for name in _KEY_HEADERS:
            if exchange.headers.get(name):
                return exchange.headers[name]
        scheme, _, key = exchange.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and key:
            return key.strip()
        return parse_qs(exchange.query).get("key", [""])[0]

    def _session(self, exchange: Exchange) -> CaptureSession:
        key = self._key(exchange)
        session = self.store.with_key(key) if key else None
        if session is None and key and not self.options.require_registered:
            session = self.store.create(SessionOpened(key, capture_level=self.options.capture_level))
        if session is None:
            raise RequestRefused(
                401,
                "the API key is that of no session: open one with POST /sessions, and give the agent its id or key",
                "authentication_error",
            )
        return session

    def _check_admin(self, exchange: Exchange) -> None:
        if not hmac.compare_digest(self._key(exchange).encode(), self.admin_key.encode()):
            raise RequestRefused(
                401, "this needs the admin key of the proxy, as a bearer token", "authentication_error"
            )

    async def _sessions(self, exchange: Exchange) -> None:  # noqa: C901 - a table of routes
        self._check_admin(exchange)
        _, _, name, *more = [*exchange.path.split("/"), ""]
        method, what = exchange.method, "/".join(more).rstrip("/")
        if not name and method == "POST":
            exchange.reply(200, encode(self._open(read_object(exchange.body or b"{}"))))
            return
        if not name and method == "GET":
            exchange.reply(200, encode({"sessions": self._listing()}))
            return
        session = self.store.get(name)
        if session is None:
            if method == "DELETE":
                exchange.reply(200, encode({"deleted": False}))
                return
            raise RequestRefused(404, f"there is no session {name!r:.80}", "not_found_error")
        query = {each: values[0] not in ("0", "false") for each, values in parse_qs(exchange.query).items()}
        if method == "DELETE":
            if session.calls and not query.get("force"):
                raise RequestRefused(
                    409, f"{len(session.calls)} calls are in flight: wait for them, or give ?force=1 to drop them"
                )
            self.store.delete(session)
            exchange.reply(200, encode({"deleted": True}))
        elif method == "GET" and what == "rollout":
            document = await asyncio.to_thread(
                export_session, session, query.get("include_discarded", False), query.get("include_messages", False)
            )
            exchange.reply(200, encode(document))
        elif method == "GET" and what == "trace_entries":
            if session.rollout_type != "train":
                raise RequestRefused(409, f"session {name} is for evaluation: it has no training trace")
            document = export_session(session)
            entries = await asyncio.to_thread(to_trace_entries, session.graph, document)
            exchange.reply(200, encode({"session_id": session.session_id, "entries": entries}))
        elif method == "GET" and not what:
            facts = {"session_id": session.session_id, "calls": len(session.calls), "touched": session.touched}
            facts["upstream_errors"] = session.count("upstream_error")
            exchange.reply(200, encode({**facts, **summarise(session.graph)}))
        else:
            raise RequestRefused(405, f"{method} {exchange.path:.200} is no route", "invalid_request_error")

    def _open(self, asked: Json) -> Json:
        options = self.options
        key, engine_key = asked.pop("key", None), asked.pop("api_key", None)
        header = asked.pop("auth_header", None) or "Authorization"
        sampling, evaluation = asked.pop("sampling", None), asked.pop("eval_sampling", None)
        try:
            opened = msgspec.convert({"capture_level": options.capture_level, **asked}, SessionOpened)
        except msgspec.ValidationError as error:
            raise RequestRefused(400, f"the session cannot be opened: {error}") from None
        rollout_type = rollout_type_for(opened.purpose, opened.capture_level)
        if opened.llm_url:
            InferenceClient(opened.llm_url)  # raises for an invalid one
        if sampling is not None:
            opened.sampling = training_sampling(sampling)
        elif evaluation is not None:
            if rollout_type == "train" or not isinstance(evaluation, dict):
                raise RequestRefused(400, "eval_sampling is for sessions with purpose=eval, and an object")
            opened.sampling = {
                name: evaluation[name] for name in ("temperature", "top_p", "top_k") if name in evaluation
            }
        session = self.store.create(opened, key)
        session.engine_key, session.engine_header = engine_key or "", header
        return {
            "session_id": session.session_id,
            "capture_level": opened.capture_level,
            "rollout_type": rollout_type,
            "max_model_calls": opened.max_model_calls or options.max_model_calls,
            "llm_url": opened.llm_url or options.llm_url,
            "model": opened.model or options.model,
        }

    def _listing(self) -> list[Json]:
        return [
            {
                **session.opened.metadata,
                "session_id": session.session_id,
                "turns": len(session.graph.turns),
                "roots": sum(turn.parent < 0 for turn in session.graph.turns),
                "touched": session.touched,
                "upstream_errors": session.count("upstream_error"),
            }
            for session in self.store.all()
        ]

    # Workers.

    def _owner(self, exchange: Exchange) -> int:
        """The worker of a request's session; this one for requests without a session."""
        if exchange.path == "/health":
            return self.options.worker
        parts = exchange.path.split("/")
        if parts[1] == "sessions":
            name = parts[2] if len(parts) > 2 else ""
            if not name:  # a session is opened: its id decides, and is chosen here if it is not given
                asked = read_object(exchange.body or b"{}")
                if not isinstance(asked.get("key"), str) and not asked.get("session_id"):
                    asked["session_id"] = secrets.token_hex(12)
                    exchange.body = encode(asked)
                name = str(asked.get("key") or asked["session_id"])
            return int(self.store.stem(name)[:8], 16) % self.options.workers
        return int(self.store.stem(self._key(exchange))[:8], 16) % self.options.workers

    async def _forward(self, exchange: Exchange, owner: int) -> None:
        client = self._others.get(owner)
        if client is None:
            path = worker_socket(Path(self.options.folder or ""), owner)
            client = self._others[owner] = HttpClient("http://worker", {}, 0, MOST_BODY_BYTES, str(path))
        begun = False

        def pass_on(answer: HttpAnswer, data: bytes) -> None:
            nonlocal begun
            kind = answer.headers.get("content-type", "")
            if answer.status == 200 and "transfer-encoding" in answer.headers:
                if not begun:
                    exchange.begin(kind)
                begun = True
                exchange.write(data)

        dropped = {"host", "content-length", "transfer-encoding", "connection", "expect"}
        headers = {name: value for name, value in exchange.headers.items() if name not in dropped}
        target = quote(exchange.path) + (f"?{exchange.query}" if exchange.query else "")
        asking = asyncio.ensure_future(
            self._ask_worker(client, exchange.method, target, exchange.body, headers, pass_on)
        )
        exchange.on_gone = asking.cancel
        try:
            reply = await asking
        except asyncio.CancelledError:
            if not exchange.gone:
                raise
            return
        except OSError as error:
            if begun:
                exchange.finish(whole=False)
                return
            raise RequestRefused(
                503, f"the worker process of this session ended before it answered: {error}", "server_error"
            ) from error
        if begun:
            exchange.finish()
            return
        after = [("retry-after", reply.headers["retry-after"])] if "retry-after" in reply.headers else []
        exchange.reply(reply.status, reply.body, reply.headers.get("content-type", ""), after)

    async def _ask_worker(self, client: HttpClient, *request: Any) -> HttpAnswer:
        """Asks another worker, and waits for it if it is starting."""
        method, target, body, headers, pass_on = request
        loop = asyncio.get_running_loop()
        patience = loop.time() + _WORKER_START_S
        while True:
            try:
                return await client.send(method, target, body, headers, None, pass_on)
            except (FileNotFoundError, ConnectionRefusedError):  # it has taken no request
                if loop.time() > patience:
                    raise
            await asyncio.sleep(_WORKER_PAUSE_S)


def worker_socket(folder: Path, worker: int) -> Path:
    """The Unix socket on which a worker takes requests of other workers."""
    return folder / f"worker-{worker}.sock"
