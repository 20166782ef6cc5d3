"""Who is let in: every route of an app, whatever the transport."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from openenv.server import HTTPEnvServer, create_app
from openenv.server.transports.uvicorn import FastPath, HTTPProtocol
from openenv.settings import ServerSettings

from .probe import ProbeAction, ProbeEnvironment, ProbeObservation, app_of
from .raw import read_until, shake_hands
from .wires import served

CONTROL, AGENT, VIEW = "the-key-of-those-in-control", "the-key-of-an-agent", "the-key-of-a-viewer"
KEYS = f"control:{CONTROL},agent:{AGENT},view:{VIEW}"
HANDSHAKE = "WEBSOCKET"
# What keys of less than control may do. Everything else is forbidden to them, whatever is added to an app.
FOR_AGENTS = {
    ("GET", path) for path in ("/metadata", "/schema", "/list_environments", "/web/metadata", "/web/panel")
} | {
    (HANDSHAKE, "/ws"),
    *((method, "/mcp") for method in ("GET", "POST", "DELETE", HANDSHAKE)),
}
FOR_VIEWERS = {
    ("GET", path)
    for path in (
        "/metadata",
        "/schema",
        "/list_environments",
        "/web/metadata",
        "/web/panel",
        "/metrics",
        "/docs",
        "/docs/oauth2-redirect",
        "/redoc",
        "/openapi.json",
    )
} | {("HEAD", path) for path in ("/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json")}
# Files that hold nothing of the server. What they lead to (another page, none, none of that name) is not 200.
PAGE = {
    (method, path)
    for method in ("GET", "HEAD")
    for path in ("/", "/web", "/web/", "/web/frame", "/web/assets/{name}")
}
FOR_ALL = {("GET", "/health"), ("GET", "/ready"), *PAGE}


def with_additions(app: FastAPI) -> FastAPI:
    """The app with what its owner may add."""

    @app.get("/mine")
    def mine() -> str:
        return "mine"

    @app.websocket("/chat")
    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_json([websocket.scope["subprotocols"], dict(websocket.headers)])
        await websocket.close()

    app.mount("/files", Starlette(routes=[Route("/one", lambda request: PlainTextResponse("1"))]))
    return app


def guarded(**settings: Any) -> FastAPI:
    settings = {"api_keys": KEYS, "max_key_failures": 100_000, **settings}
    return with_additions(app_of(max_sessions=64, **settings))


def requests_of(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Every request that the app knows, and some that it does not."""
    for route in app.routes:
        if isinstance(route, WebSocketRoute):
            yield HANDSHAKE, route.path
        elif isinstance(route, Mount):
            yield "GET", f"{route.path}/one"
        else:
            assert isinstance(route, Route) or hasattr(route, "methods")
            for method in sorted(route.methods):
                yield method, route.path
    yield from [("GET", "/nowhere"), ("DELETE", "/step"), ("OPTIONS", "/reset"), (HANDSHAKE, "/nowhere")]
    # Not quite what is open to all.
    yield from [
        ("GET", "/health/"),
        ("GET", "/Health"),
        ("GET", "/health//"),
        ("POST", "/health"),
        ("POST", "/ready"),
        ("GET", "/ready/"),
        (HANDSHAKE, "/health"),
        ("GET", "/"),
        ("POST", "/"),
        ("POST", "/web"),
        ("GET", "/web/frames"),
        ("GET", "/web/assets"),
        ("GET", "/web/assets/a/b"),
        ("GET", "/Web"),
        (HANDSHAKE, "/web"),
    ]


REQUESTS = list(requests_of(guarded()))


class Reply(NamedTuple):
    """An answer; 101 for a handshake that was accepted."""

    status: int
    headers: dict[str, str]
    body: bytes


Send = Callable[[str, str, dict[str, str]], Reply]


@contextlib.contextmanager
def under_test_client(app: FastAPI) -> Iterator[Send]:
    with TestClient(app, raise_server_exceptions=False) as client:

        def send(method: str, path: str, headers: dict[str, str]) -> Reply:
            if method != HANDSHAKE:
                answer = client.request(method, path, headers=headers, follow_redirects=False)
                client.cookies.clear()  # the other transport keeps none either
                return Reply(answer.status_code, dict(answer.headers), answer.content)
            try:
                with client.websocket_connect(path, headers=dict(headers)) as socket:
                    return Reply(101, {"sec-websocket-protocol": socket.accepted_subprotocol or ""}, b"")
            except WebSocketDenialResponse as denial:
                return Reply(denial.status_code, dict(denial.headers), denial.content)
            except WebSocketDisconnect:  # closed without an answer, where there is no route
                return Reply(404, {}, b"")

        yield send


def over(address: str) -> Send:
    def send(method: str, path: str, headers: dict[str, str]) -> Reply:
        if method != HANDSHAKE:
            connection = http.client.HTTPConnection(address, timeout=20)
            connection.request(method, path, headers={"Host": "localhost", **headers})
            answer = connection.getresponse()
            reply = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
            connection.close()
            return reply
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with shake_hands(address, more=more, path=path) as raw:
            head, *lines = read_until(raw, b"\r\n\r\n").decode().split("\r\n")
            fields = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines if line}
            status = int(head.split()[1])
            return Reply(status, fields, b"" if status == 101 else read_until(raw, b"never"))

    return send


SERVERS = {
    "stock": {"loop": "asyncio", "http": "h11", "ws": "websockets-sansio"},
    "fast": {"loop": "uvloop", "http": HTTPProtocol, "ws": FastPath},
}


@contextlib.contextmanager
def running(transport: str, app: FastAPI) -> Iterator[Send]:
    if transport == "asgi":
        with under_test_client(app) as send:
            yield send
    else:
        with served(app, **SERVERS[transport]) as address:
            yield over(address)


@pytest.fixture(scope="module", params=["asgi", *SERVERS])
def send(request) -> Iterator[Send]:
    with running(request.param, guarded()) as send:
        yield send


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def offer(key: str) -> str:
    return "openenv.key." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def refused(reply: Reply, status: int, error: str) -> bool:
    """Whether the answer is that refusal. All of it is compared, but of an answer to HEAD, which has no body."""
    if reply.status != status:
        return False
    if not reply.body:
        return True
    facts = json.loads(reply.body)
    return (facts["error"], facts["blame"], facts["detail"]) == (error, "client", facts["message"])


def came_in(reply: Reply) -> bool:
    """Whether the guard let it pass. (uvicorn answers 403 of its own to a handshake where there is no route.)"""
    return reply.status not in {401, 429} and not (
        reply.status == 403 and b"Forbidden" in reply.body and b"blame" in reply.body
    )


def let_in(reply: Reply, method: str, path: str) -> bool:
    """Whether what is for all was sent."""
    return reply.status in ({200, 307, 404, 501} if (method, path) in PAGE else {200})


every_request = pytest.mark.parametrize(("method", "path"), REQUESTS, ids=lambda part: part)


WITHOUT_A_KEY = [
    {},
    bearer("wrong"),
    bearer(""),
    bearer(CONTROL[:-1]),
    bearer(f"control:{CONTROL}"),
    {"Authorization": CONTROL},
    {"Authorization": f"Basic {base64.b64encode(f'user:{CONTROL}'.encode()).decode()}"},
    {"Cookie": f"key={CONTROL}; authorization=Bearer {CONTROL}"},
    {"X-Api-Key": CONTROL},
    {"Sec-WebSocket-Protocol": CONTROL},
    {"Sec-WebSocket-Protocol": f"openenv.v2.json, {offer('wrong')}"},
    {"Sec-WebSocket-Protocol": "openenv.key.!!!"},
    {"Sec-WebSocket-Protocol": "openenv.key."},
]


@every_request
def test_without_a_right_key_nobody_comes_in(send, method, path):
    for headers in WITHOUT_A_KEY:
        reply = send(method, path, headers)
        if (method, path) in FOR_ALL:
            assert let_in(reply, method, path), headers
        else:
            assert refused(reply, 401, "Unauthorized"), headers
            assert reply.headers["www-authenticate"] == "Bearer"


@every_request
def test_a_key_in_the_url_opens_nothing(send, method, path):
    reply = send(method, f"{path}?key={CONTROL}&api_key={CONTROL}", {})
    assert let_in(reply, method, path) if (method, path) in FOR_ALL else reply.status == 401


@every_request
@pytest.mark.parametrize(("key", "allowed"), [(AGENT, FOR_AGENTS), (VIEW, FOR_VIEWERS)], ids=["agent", "view"])
def test_a_key_opens_what_its_scope_allows_and_nothing_else(send, method, path, key, allowed):
    reply = send(method, path, bearer(key))
    if (method, path) in allowed | FOR_ALL:
        assert came_in(reply)
    else:
        assert refused(reply, 403, "Forbidden")


@every_request
def test_control_may_do_everything(send, method, path):
    assert came_in(send(method, path, bearer(CONTROL)))


@every_request
def test_behind_a_gateway_that_takes_the_usual_header_for_itself(send, method, path):
    assert came_in(send(method, path, {**bearer("for-the-gateway"), "X-OpenEnv-Key": CONTROL}))
    reply = send(method, path, {**bearer("for-the-gateway"), "X-OpenEnv-Key": "wrong"})
    assert let_in(reply, method, path) if (method, path) in FOR_ALL else refused(reply, 401, "Unauthorized")


@every_request
def test_with_a_right_key_from_a_page_elsewhere(send, method, path):
    for origin in ("http://evil.example", "null", "https://localhost:1", "http://localhost.evil.example"):
        reply = send(method, path, {**bearer(CONTROL), "Origin": origin})
        if (method, path) in FOR_ALL:
            assert let_in(reply, method, path)
        else:
            assert refused(reply, 403, "Forbidden"), origin
            assert not reply.body or "OPENENV_ALLOWED_ORIGINS" in json.loads(reply.body)["message"]


def test_browsers_show_their_key_among_the_subprotocols(send):
    reply = send(HANDSHAKE, "/ws", {"Sec-WebSocket-Protocol": f"openenv.v2.json, {offer(CONTROL)}"})
    assert reply.status == 101
    assert reply.headers["sec-websocket-protocol"] == "openenv.v2.json"
    reply = send(HANDSHAKE, "/ws", {"Sec-WebSocket-Protocol": offer(AGENT)})
    assert reply.status == 101
    assert not reply.headers.get("sec-websocket-protocol")


def test_one_right_key_of_two_suffices(send):
    headers = {
        **bearer("for the proxy before the server"),
        "Sec-WebSocket-Protocol": f"{offer(CONTROL)},openenv.v2.json",
    }
    assert send(HANDSHAKE, "/ws", headers).status == 101


@pytest.mark.parametrize("transport", ["asgi", *SERVERS])
def test_an_open_server_asks_for_nothing_but_keeps_pages_elsewhere_out(transport):
    with running(transport, guarded(api_keys=None)) as send:
        elsewhere = {"Origin": "http://evil.example"}
        for method, path in REQUESTS:
            assert came_in(send(method, path, {}))
            changes = method not in {"GET", "HEAD", "OPTIONS"} or path.endswith(("/state", "/splits"))
            assert came_in(send(method, path, elsewhere)) is not changes, (method, path)
            if method == "GET" and (method, path) not in FOR_ALL:
                assert send(method, path, {**elsewhere, "Cookie": "a=b"}).status == 403
        assert (
            send(
                HANDSHAKE, "/ws", {"Origin": "http://testserver" if transport == "asgi" else "http://localhost"}
            ).status
            == 101
        )


@pytest.mark.slow
@pytest.mark.parametrize("transport", SERVERS)
def test_an_open_server_on_loopback_knows_only_names_of_loopback(transport):
    """A page whose name was pointed to 127.0.0.1 sends no Origin with its GETs, and reads what they answer."""
    with running(transport, guarded(api_keys=None)) as send:
        for method, path in REQUESTS:
            known = (method, path) in FOR_ALL
            status = send(method, path, {"Host": "rebound.example:8000"}).status
            if method == HANDSHAKE:  # its head has a Host already: two are a name that no server has, or malformed
                assert status in {400, 403}
            else:
                assert (status == 403) is not known, (method, path)
                assert came_in(send(method, path, {"Host": "localhost.:8000"})), (method, path)
    with running(transport, guarded(api_keys=None, allowed_hosts="proxy.example")) as send:
        assert send("GET", "/metadata", {"Host": "proxy.example:8443"}).status == 200
        assert send("GET", "/metadata", {"Host": "rebound.example"}).status == 403
    with running(transport, guarded()) as send:  # a page that was re-pointed has no key
        assert send("GET", "/metadata", {**bearer(CONTROL), "Host": "proxy.example"}).status == 200


@pytest.mark.parametrize("transport", ["asgi", *SERVERS])
def test_a_picture_on_another_page_makes_no_environment(transport):
    with running(transport, guarded(api_keys=None)) as send:
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
            assert send("GET", "/state", {"Sec-Fetch-Site": site}).status == status
        assert send("GET", "/metadata", {"Sec-Fetch-Site": "cross-site"}).status == 200


@pytest.mark.parametrize("transport", ["asgi", *SERVERS])
def test_a_page_whose_origin_is_allowed_may_use_it(transport):
    with running(transport, guarded(allowed_origins="https://ui.example")) as send:
        headers = {**bearer(CONTROL), "Origin": "https://ui.example"}
        assert send(HANDSHAKE, "/ws", headers).status == 101
        assert send("POST", "/reset", headers).status == 200
        assert send("POST", "/reset", {**headers, "Origin": "https://evil.example"}).status == 403


@pytest.mark.parametrize("transport", ["asgi", *SERVERS])
def test_too_many_wrong_keys_are_told_to_wait_and_right_ones_come_in(transport):
    with running(transport, guarded(max_key_failures=3)) as send:
        wrong = bearer("wrong")
        for method, path in [("GET", "/metadata"), (HANDSHAKE, "/ws"), ("POST", "/step")]:
            assert refused(send(method, path, wrong), 401, "Unauthorized")
        for method, path in [("GET", "/metadata"), (HANDSHAKE, "/ws"), ("GET", "/nowhere")]:
            reply = send(method, path, wrong)
            assert refused(reply, 429, "TooManyFailures")
            assert 0 < int(reply.headers["retry-after"]) <= 60
            assert "OPENENV_MAX_KEY_FAILURES" in json.loads(reply.body)["message"]
        assert send("GET", "/metadata", {}).status == 401
        assert send("GET", "/metadata", bearer(CONTROL)).status == 200
        assert send(HANDSHAKE, "/ws", bearer(CONTROL)).status == 101


@pytest.mark.parametrize("transport", ["asgi", *SERVERS])
def test_keys_are_in_no_log_and_no_answer(transport, caplog):
    caplog.set_level(logging.DEBUG)
    with running(transport, guarded()) as send:
        wrong = "a-key-that-somebody-mistyped"
        replies = []
        for key in (CONTROL, AGENT, VIEW, wrong):
            for method, path in REQUESTS:
                replies.append(send(method, path, bearer(key)))
            replies.append(send(HANDSHAKE, "/chat", {"Sec-WebSocket-Protocol": f"chat, {offer(key)}"}))
    said = "".join(
        record.getMessage() for record in caplog.records if record.name.startswith(("openenv", "uvicorn.error"))
    )
    for reply in replies:
        said += reply.body.decode("latin-1") + str(reply.headers)
    for key in (CONTROL, AGENT, VIEW, wrong):
        assert key not in said
        assert offer(key) not in said


def test_what_an_owner_added_hears_of_no_key_among_the_subprotocols():
    with TestClient(guarded()) as client:
        offers = ["chat", offer(CONTROL)]
        with client.websocket_connect("/chat", subprotocols=offers) as socket:
            subprotocols, headers = socket.receive_json()
        assert subprotocols == ["chat"]
        assert headers["sec-websocket-protocol"] == "chat"


def test_an_app_of_ones_own_is_guarded_as_well():
    app = FastAPI()
    settings = ServerSettings.read({}, api_keys=KEYS)
    HTTPEnvServer(ProbeEnvironment, ProbeAction, ProbeObservation, settings=settings).register_routes(app)
    with_additions(app)
    with TestClient(app) as client:
        assert client.get("/mine").status_code == 401
        assert client.get("/mine", headers=bearer(CONTROL)).status_code == 200


def test_routes_that_are_added_when_the_app_has_started_are_guarded():
    app = FastAPI()
    settings = ServerSettings.read({}, api_keys=KEYS)
    with TestClient(app) as client:
        assert client.get("/metadata").status_code == 404
        HTTPEnvServer(ProbeEnvironment, ProbeAction, ProbeObservation, settings=settings).register_routes(app)
        assert client.get("/metadata").status_code == 401
        assert client.get("/metadata", headers=bearer(VIEW)).status_code == 200


def test_an_app_inside_another_is_guarded_under_its_prefix():
    outer = FastAPI()
    outer.mount("/inner", guarded())
    with TestClient(outer) as client:
        assert client.get("/inner/health").status_code == 200
        assert client.get("/inner/metadata").status_code == 401
        assert client.get("/inner/metadata", headers=bearer(VIEW)).status_code == 200
        assert client.get("/inner/mine", headers=bearer(VIEW)).status_code == 403


def test_routes_taken_out_of_their_app_check_for_themselves():
    inner = guarded()
    outer = FastAPI(exception_handlers=inner.exception_handlers)
    outer.state.openenv = inner.state.openenv
    outer.router.routes.extend(inner.routes)
    with TestClient(outer) as client:
        assert client.get("/metadata").status_code == 401
        assert client.post("/reset").status_code == 401
        assert client.get("/metadata", headers=bearer(VIEW)).status_code == 200


def test_refusals_have_the_headers_that_cors_adds():
    app = guarded(allowed_origins="https://ui.example")
    app.add_middleware(
        CORSMiddleware, allow_origins=["https://ui.example"], allow_methods=["POST"], allow_headers=["Authorization"]
    )
    with TestClient(app) as client:
        page = {"Origin": "https://ui.example"}
        reply = client.get("/metadata", headers=page)
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (401, "https://ui.example")
        asked = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        assert client.options("/reset", headers=asked).status_code == 200


async def handshake_without_an_answer(app: Any) -> list[dict[str, Any]]:
    """A handshake with a server that can refuse one, and cannot say why."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/ws", "headers": [], "subprotocols": [], "query_string": b"", "app": app}
    await app(scope, receive, send)
    return sent


def test_a_server_that_cannot_answer_a_handshake_closes_it():
    (message,) = asyncio.run(handshake_without_an_answer(guarded()))
    assert message == {"type": "websocket.close", "code": 1008, "reason": "Unauthorized"}


def large(size: int) -> bytes:
    return json.dumps({"action": {"kind": "ok"}, "padding": "x" * size}).encode()


@pytest.mark.parametrize("transport", ["asgi", *SERVERS])
@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
def test_a_body_over_the_limit_is_413_and_says_so(transport, chunked):
    app = app_of(max_message_mb=0.1)

    def post(path: str, body: bytes) -> tuple[int, Any]:
        content: Any = (body[place : place + 10_000] for place in range(0, len(body), 10_000)) if chunked else body
        if transport == "asgi":
            answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
            return answer.status_code, answer.json()
        connection = http.client.HTTPConnection(address, timeout=20)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", path, content, {"Content-Type": "application/json"}, encode_chunked=chunked)
        reply = connection.getresponse()
        facts = json.loads(reply.read())
        connection.close()
        return reply.status, facts

    with contextlib.ExitStack() as stack:
        if transport == "asgi":
            client = stack.enter_context(TestClient(app))
        else:
            address = stack.enter_context(served(app, **SERVERS[transport]))
        assert post("/step", large(90_000))[0] == 200
        for path in ("/step", "/reset"):
            status, facts = post(path, large(200_000))
            assert (status, facts["error"]) == (413, "MessageTooLarge")
            assert "104857 bytes (max_message_mb" in facts["message"]
        assert post("/step", large(10))[0] == 200
    assert app.state.openenv.active_sessions == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/state"), ("DELETE", "/sessions/5.x"), ("POST", "/sessions"), ("POST", "/mcp"), ("DELETE", "/mcp")],
)
def test_so_is_one_that_is_only_handed_on(method, path):
    with TestClient(app_of(max_message_mb=0.1)) as client:
        answer = client.request(method, path, content=large(200_000))
        assert (answer.status_code, answer.json()["error"]) == (413, "MessageTooLarge")


def test_what_an_owners_route_takes_is_not_limited():
    app = create_app(
        ProbeEnvironment, ProbeAction, ProbeObservation, settings=ServerSettings.read({}, max_message_mb=0.1)
    )

    @app.post("/upload")
    async def upload(body: dict[str, str]) -> int:
        return len(body["padding"])

    with TestClient(app) as client:
        assert client.post("/upload", json={"padding": "x" * 200_000}).json() == 200_000


def test_a_path_cannot_write_lines_into_the_log(caplog):
    caplog.set_level(logging.WARNING, "openenv.server")
    with TestClient(guarded()) as client:
        client.get("/a%0AERROR%20forged" + "x" * 10_000)
        client.get("/a%0AERROR%20forged", headers=bearer(VIEW))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert not any("\n" in line or len(line) > 1000 for line in said)
