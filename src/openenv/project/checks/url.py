"""Checks of a running server of any implementation, over HTTP and over its WebSocket (protocol v1)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from ...testing.check import Check, CheckFailure, CheckSkip, CheckWarning
from .findings import Finding, ValidationReport, run
from .url_schema import action_of, check_schema, check_value
from .url_server import ProbeConnection, ProbeConnectionClosed, ServerAnswer, ServerUnderTest, excerpt

_GIVE_KEY = "give a key of scope control by --api-key (OPENENV_API_KEY)"
# Status codes of missing routes, and of routes that need another key.
_ABSENT, _BARRED = {404, 405}, {401, 403}
_LIST_TOOLS = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
_CODES: dict[int, Any] = {
    -32601: {"jsonrpc": "2.0", "id": 2, "method": "no/such/method"},
    -32700: b"{",
    -32600: {"id": 3},
}


@Check.of("url.reach", "Is there an HTTP server at the address?")
def url_reach(site: ServerUnderTest) -> str:
    answer = site.health = site.get("/health")
    if 300 <= answer.status < 400:
        raise CheckFailure(
            f"{answer.asked} redirects to {excerpt(answer.location)} (status {answer.status})",
            "check the server behind the redirect: run openenv validate --url with that address",
        )
    return f"{site.place} answers HTTP in {answer.seconds * 1000:.0f} ms"


@Check.of("url.health", "Does /health report a healthy server?", "url.reach")
def url_health(site: ServerUnderTest) -> str:
    said = _object(site.health, '200 and {"status": "healthy"}')
    if said.get("status") != "healthy":
        raise CheckFailure(
            f"/health answers {excerpt(site.health.body)}", 'answer {"status": "healthy"}: launchers wait for it'
        )
    return "healthy"


@Check.of("url.key", "Does the server answer a client with this key?", "url.reach")
def url_key(site: ServerUnderTest) -> str:
    answer = site.metadata = site.get("/metadata")
    if answer.status in _BARRED:
        key = "to this key" if site.has_key else "without a key"
        raise CheckFailure(f"{answer.asked} answers with status {answer.status} {key}", _GIVE_KEY)
    return "the server accepts this key" if site.has_key else "the server needs no key"


@Check.of("url.openapi", "Is /openapi.json an OpenAPI 3 document with a version?", "url.key")
def url_openapi(site: ServerUnderTest) -> str:
    said = _object(site.get("/openapi.json"), "200 and the OpenAPI document")
    form, about, paths = said.get("openapi"), said.get("info"), said.get("paths")
    if not isinstance(form, str) or not form.startswith("3."):
        raise CheckFailure(f"/openapi.json has openapi {excerpt(repr(form))}", "serve an OpenAPI 3 document")
    version = about.get("version") if isinstance(about, dict) else None
    if not isinstance(version, str) or not version:
        raise CheckFailure(
            f"/openapi.json has info.version {excerpt(repr(version))}", "give the app a version, a string"
        )
    if not isinstance(paths, dict):
        raise CheckFailure("/openapi.json has no paths", "list the served routes")
    site.paths = paths.keys()
    return f"OpenAPI {excerpt(form)}, version {excerpt(version)}, {len(paths)} paths"


@Check.of("url.metadata", "Does /metadata have a name and a description?", "url.key")
def url_metadata(site: ServerUnderTest) -> str:
    said = _object(site.metadata, "200 and an object with name and description")
    for name in ("name", "description"):
        if not isinstance(said.get(name), str) or not said[name]:
            raise CheckFailure(
                f"/metadata has no {name}: {excerpt(site.metadata.body)}",
                f"return {name}, a string, from get_metadata()",
            )
    return f"{excerpt(said['name'])} {excerpt(said.get('version') or 'without a version')}"


@Check.of("url.schema", "Does /schema answer valid JSON Schemas of objects?", "url.key")
def url_schema(site: ServerUnderTest) -> str:
    said = _object(site.get("/schema"), "200 and JSON Schemas: {action, observation, state}")
    names = [*("action", "observation", "state"), *(["reset_observation"] if said.get("reset_observation") else [])]
    for name in names:
        if name not in said:
            raise CheckFailure(
                f"/schema has no {name}, only {excerpt(', '.join(said))}", f"add the JSON Schema of {name}"
            )
        check_schema(name, said[name], site.seconds())
    site.schemas = {name: said[name] for name in names}
    return f"{', '.join(names)} are JSON Schemas"


@Check.of("url.mcp", "Does /mcp answer tools/list in JSON-RPC?", "url.key")
def url_mcp(site: ServerUnderTest) -> str:
    answer = site.post("/mcp", _LIST_TOOLS)
    if answer.status in _ABSENT:
        raise CheckWarning("there is no POST /mcp, so no client can list or call tools", "serve JSON-RPC at /mcp")
    said = _rpc(answer, 1)
    if "error" in said:
        return f"no tools ({excerpt(said['error'].get('message', ''))})"
    tools = said["result"].get("tools") if isinstance(said.get("result"), dict) else None
    if not isinstance(tools, list):
        raise CheckFailure(f"tools/list answers {excerpt(answer.body)}", 'answer {"result": {"tools": [...]}}')
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise CheckFailure(f"tools/list has {excerpt(tool)}", "give each tool a name")
        check_schema(f"inputSchema of {excerpt(tool['name'])}", tool.get("inputSchema"), site.seconds())
    return f"{len(tools)} tools"


@Check.of("url.mcp-errors", "Does /mcp use the error codes of JSON-RPC?", "url.key")
def url_mcp_errors(site: ServerUnderTest) -> str:
    for code, body in _CODES.items():
        answer = site.post("/mcp", body)
        if answer.status in _ABSENT:
            raise CheckWarning("there is no POST /mcp", "serve JSON-RPC at /mcp")
        error = _rpc(answer, body["id"] if code == -32601 else None).get("error")
        if not isinstance(error, dict) or error.get("code") != code:
            sent = body.decode() if isinstance(body, bytes) else body
            raise CheckFailure(
                f"POST /mcp answers {sent} with {excerpt(answer.body)}", f"answer an error of code {code}"
            )
    return ", ".join(map(str, _CODES))


@Check.of("url.mode", "Does the server have all of reset, step and state, or none of them?", "url.key")
def url_mode(site: ServerUnderTest) -> str:
    """Checks that all or none of the routes that control an environment are served, and that /openapi.json agrees."""
    answers = {
        "/reset": site.post("/reset", {}),
        "/step": site.post("/step", {}),
        "/state": site.get("/state"),
    }
    for answer in answers.values():
        if answer.status in _BARRED:
            raise CheckFailure(f"{answer.asked} answers with status {answer.status} to this key", _GIVE_KEY)
    served = [path for path, answer in answers.items() if answer.status not in _ABSENT]
    site.production = not served
    if served and len(served) < len(answers):
        absent = ", ".join(path for path in answers if path not in served)
        raise CheckFailure(
            f"{', '.join(served)} is served, but {absent} is not",
            "serve all of /reset, /step and /state (simulation), or none of them (production)",
        )
    if site.paths is not None:
        listed = [path for path in answers if path in site.paths]
        if listed and not served:
            raise CheckFailure(f"{', '.join(listed)} is in /openapi.json, but not served", "list only served routes")
        # In production, a key of scope control may use routes that the document does not list.
        if served and len(listed) < len(answers) and not site.has_key:
            raise CheckWarning(f"{', '.join(served)} is served, but not in /openapi.json", "list all served routes")
    if not served:
        return "production: no reset, step or state"
    reset, step = answers["/reset"], answers["/step"]
    check_payload(_object(reset, "200 and an observation"), "POST /reset", reset.body)
    if not 400 <= step.status < 500:
        raise step.fault("422 to a step without an action")
    _object(answers["/state"], "200 and the state")
    return "simulation: reset, step and state"


def check_payload(payload: dict[str, Any], what: str, text: object) -> None:
    """Raises `CheckFailure` unless it is the answer to a reset or step: observation, reward, done."""
    reward = payload.get("reward")
    if not isinstance(payload.get("observation"), dict):
        raise CheckFailure(f"{what} has no observation: {excerpt(text)}", "answer {observation: {...}, reward, done}")
    if reward is not None and (not isinstance(reward, (bool, int, float)) or not math.isfinite(reward)):
        raise CheckFailure(f"{what} has the reward {excerpt(repr(reward))}", "use a number, or null for no reward")
    if not isinstance(payload.get("done"), bool):
        raise CheckFailure(f"{what} has done {excerpt(repr(payload.get('done')))}", "use true or false")


def _object(answer: ServerAnswer, expected: str) -> dict[str, Any]:
    if answer.status != 200:
        raise answer.fault(expected)
    said = answer.json()
    if not isinstance(said, dict):
        raise CheckFailure(f"{answer.asked} answers {excerpt(answer.body)}", f"answer {expected}")
    return said


def _rpc(answer: ServerAnswer, number: int | None) -> dict[str, Any]:
    """The result or error of a JSON-RPC answer, whose id must be that of the request."""
    if answer.status >= 500:
        raise answer.fault("JSON-RPC, with its error codes")
    said = answer.json()
    error = said.get("error") if isinstance(said, dict) else None
    if (
        not isinstance(said, dict)
        or said.get("jsonrpc") != "2.0"
        or (number is not None and said.get("id") != number)
        or (error is None and "result" not in said)
        or (error is not None and (not isinstance(error, dict) or not isinstance(error.get("code"), int)))
    ):
        raise CheckFailure(
            f"{answer.asked} answers {excerpt(answer.body)}",
            'answer JSON-RPC 2.0: {"jsonrpc": "2.0", "id": ID of the request, "result" or "error": {code, message}}',
        )
    return {name: value for name, value in said.items() if value is not None}


# Seconds between two attempts to open a session at a full server.
RETRY_S = 0.2
_RESET = {"type": "reset", "data": {}}
_STATE = {"type": "state"}
_ODD = ("3", "[]", '{"type": "reset", "data": [1]}')
# Messages that are sent together, and their answers.
_AT_ONCE: tuple[tuple[dict[str, Any] | str, str], ...] = (
    (_STATE, "state"),
    (_RESET, "observation"),
    (_STATE, "state"),
    ("{", "error"),
    (_STATE, "state"),
)


@Check.of("url.production", "In production, does /ws refuse control without a key?", "url.mode")
def url_production(site: ServerUnderTest) -> str:
    if not site.production:
        raise CheckSkip("it is not in production mode")
    try:
        talk = ProbeConnection.begin(site)
        try:
            for frame in (_RESET, _STATE):
                answer = talk.ask(frame)
                if answer["type"] != "error":
                    raise CheckWarning(
                        f"/reset and /state are not served over HTTP, but /ws needs no key to {frame['type']}",
                        "set OPENENV_API_KEYS, so that only control keys may",
                    )
        finally:
            talk.end()
    except ProbeConnectionClosed as closed:
        return f"no client can reset an environment: {closed.saw}"
    return "neither reset nor state over /ws"


@Check.of("url.reset", "Does reset over /ws return an observation?", "url.key")
def url_reset(site: ServerUnderTest) -> str:
    _only_in_simulation(site)
    talk, answer = _begun(site)
    site.talk = talk
    payload = _payload(answer, "reset")
    own = "reset_observation" in site.schemas
    _keep(site, "the observation of reset", payload, "reset_observation" if own else "observation")
    return f"observation with {excerpt(', '.join(payload['observation']) or 'no fields')}"


@Check.of("url.state", "Does state return a state?", "url.reset")
def url_state(site: ServerUnderTest) -> str:
    answer = _talk(site).ask(_STATE)
    data: dict[str, Any] = _of_type(answer, "state", "state")
    count = data.get("step_count", 0)
    if not isinstance(count, int) or count < 0:
        raise CheckFailure(
            f"the state has step_count {excerpt(repr(count))}",
            "count steps from 0",
        )
    site.values.append(("the state", data, "state"))
    return f"state with {excerpt(', '.join(data) or 'no fields')}"


@Check.of("url.step", "Does step return an observation?", "url.reset")
def url_step(site: ServerUnderTest) -> str:
    talk = _talk(site)
    if "action" not in site.schemas:
        raise CheckSkip("there is no valid schema to generate an action from")
    action = action_of(site.schemas["action"], site.seconds())
    answer = talk.ask({"type": "step", "data": action})
    if answer["type"] == "error" and answer["data"].get("code") in {"EXECUTION_ERROR", "VALIDATION_ERROR"}:
        raise CheckWarning(
            f"the generated action {excerpt(action)} is refused: {excerpt(answer['data'].get('message'))}",
            "ignore this if the action is invalid in this environment; otherwise see the server's log",
        )
    payload = _payload(answer, "step")
    _keep(site, "the observation of step", payload, "observation")
    return f"{excerpt(action)} gives reward {payload.get('reward')}, done {payload['done']}"


@Check.of("url.truth", "Do observations and state match the schemas of /schema?", "url.reset")
def url_truth(site: ServerUnderTest) -> str:
    """Checks the messages against the schemas of `/schema`."""
    schemas = site.schemas
    if not schemas:
        raise CheckSkip("there are no valid schemas")
    for name, value, schema in site.values:
        check_value(name, value, schemas[schema], site.seconds())
    return ", ".join(name for name, _, _ in site.values)


@Check.of("url.bad-frames", "Do invalid frames get errors with the right codes?", "url.reset")
def url_bad_frames(site: ServerUnderTest) -> str:
    talk = _talk(site)
    expected = {"{": "INVALID_JSON", '{"type": "dance"}': "UNKNOWN_TYPE", '{"type": "step"}': "VALIDATION_ERROR"}
    schema = site.schemas.get("action", {})
    if schema.get("additionalProperties") is False:
        expected['{"type": "step", "data": {"openenv_no_such_field": 1}}'] = "VALIDATION_ERROR"
    for frame, code in expected.items():
        answer = talk.ask(frame)
        data = _of_type(answer, "error", frame)
        if data.get("code") != code or not isinstance(data.get("message"), str):
            raise CheckFailure(
                f"{frame} is answered by {excerpt(data)}", f"answer an error with code {code} and a message"
            )
    _of_type(talk.ask(_STATE), "state", "state after bad frames")
    return f"{', '.join(dict.fromkeys(expected.values()))}, and the session goes on"


@Check.of("url.order", "Does each frame get one answer, in order?", "url.reset")
def url_order(site: ServerUnderTest) -> str:
    talk = _talk(site)
    for frame, _ in _AT_ONCE:
        talk.say(frame)
    wanted = [kind for _, kind in _AT_ONCE]
    said = [talk.take(f"{len(wanted)} frames at once")["type"] for _ in wanted]
    if said != wanted:
        raise CheckFailure(
            f"requests for {', '.join(wanted)} are answered by {excerpt(', '.join(said))}",
            "answer each frame once, in the order of arrival",
        )
    return f"{len(wanted)} frames sent together, {len(said)} answers in order"


@Check.of("url.close", "Does close end the connection with code 1000?", "url.reset")
def url_close(site: ServerUnderTest) -> str:
    talk = _talk(site)
    talk.say({"type": "close"})
    site.talk = None
    try:
        answer = talk.take("close")
    except ProbeConnectionClosed as closed:
        if closed.code != 1000:
            raise CheckFailure(closed.saw, "answer close by ending the connection with code 1000") from None
        return "code 1000"
    finally:
        talk.end()
    raise CheckFailure(
        f"close is answered by {excerpt(answer)}", "answer close by ending the connection with code 1000"
    )


@Check.of("url.odd-frames", "Does a session survive JSON that is not a message?", "url.reset")
def url_odd_frames(site: ServerUnderTest) -> str:
    _only_in_simulation(site)
    talk, _ = _begun(site)
    try:
        for frame in _ODD:
            try:
                answer = talk.ask(frame)
                alive = answer["type"] == "error" and talk.ask(_STATE)["type"] == "state"
            except ProbeConnectionClosed:
                alive = False
            if not alive:
                raise CheckWarning(
                    f"{frame}, which is JSON but not a message, ends the session",
                    "answer an error (INVALID_JSON or VALIDATION_ERROR), and continue the session",
                )
    finally:
        talk.end()
    return "errors, and the session goes on"


def _only_in_simulation(site: ServerUnderTest) -> None:
    if site.production:
        raise CheckSkip("in production mode no client can reset an environment")


def _talk(site: ServerUnderTest) -> ProbeConnection:
    """The current connection, or a new one if a check has ended it."""
    if site.talk is None:
        site.talk, answer = _begun(site)
        _payload(answer, "reset")
    return site.talk


def _begun(site: ServerUnderTest) -> tuple[ProbeConnection, dict[str, Any]]:
    """A new session, and the answer to its reset. Retries for some seconds if the server is full."""
    limit = time.monotonic() + site.seconds()
    while True:
        talk = ProbeConnection.begin(site)
        try:
            answer = talk.ask(_RESET)
        except BaseException:
            talk.end()
            raise
        if answer["type"] != "error" or answer["data"].get("code") != "CAPACITY_REACHED":
            return talk, answer
        talk.end()
        if time.monotonic() > limit:
            raise CheckFailure(
                f"the server is full: {excerpt(answer['data'].get('message'))}",
                "run the check again when a session is free, or allow more (--max-sessions, OPENENV_MAX_SESSIONS)",
            )
        time.sleep(RETRY_S)


def _payload(answer: dict[str, Any], asked: str) -> dict[str, Any]:
    data: dict[str, Any] = _of_type(answer, "observation", asked)
    check_payload(data, f"the answer to {asked}", data)
    return data


def _of_type(answer: dict[str, Any], kind: str, asked: str) -> dict[str, Any]:
    data: dict[str, Any] = answer["data"]
    if answer["type"] != kind:
        said = data.get("message", data) if answer["type"] == "error" else data
        raise CheckFailure(
            f"{asked} is answered by {excerpt(answer['type'])} {excerpt(data.get('code', ''))}: {excerpt(said)}",
            f"answer a frame of type {kind}; the server's log has the reason for this answer",
        )
    return data


def _keep(site: ServerUnderTest, name: str, payload: dict[str, Any], schema: str) -> None:
    # Messages have these two next to the observation.
    whole = {**payload["observation"], "reward": payload.get("reward"), "done": payload["done"]}
    site.values.append((name, whole, schema))


TIMEOUT_S = 5.0

CHECKS = Check.all_in(globals())


def check_url(
    url: str,
    *,
    timeout_s: float = TIMEOUT_S,
    api_key: str | None = None,
    heard: Callable[[Finding], None] = lambda _: None,
) -> ValidationReport:
    """Checks a running server of any implementation, in bounded time.

    Args:
        url: Its address: `http(s)://`, `ws(s)://`, or a bare `host:port`.
        timeout_s: Seconds for one call; all calls together take at most twelve times as long.
        api_key: Key for each call. Without scope control, some checks fail or are skipped.
        heard: Called with each finding as soon as it exists.

    Raises:
        UsageError: The address or the key is invalid.
        MissingExtra: httpx or jsonschema is not installed.
    """
    with ServerUnderTest(url, timeout_s, api_key) as site:
        return ValidationReport(target=site.place, findings=run(CHECKS, site, heard))
