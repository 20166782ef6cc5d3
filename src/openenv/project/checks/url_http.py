"""What a server answers over HTTP."""

from __future__ import annotations

import math
from typing import Any

from ...testing.probe import Doubt, Fault
from .url_schema import check_schema
from .url_site import Answer, Site, clipped

__all__ = ["check_payload", "health", "key", "mcp", "mcp_errors", "metadata", "mode", "openapi", "reach", "schema"]

_GIVE_KEY = "give a key of scope control by --api-key (OPENENV_API_KEY)"
# Whatever may be behind an address: what is not there, and what is there for others.
_ABSENT, _BARRED = {404, 405}, {401, 403}
_LIST_TOOLS = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
_CODES: dict[int, Any] = {
    -32601: {"jsonrpc": "2.0", "id": 2, "method": "no/such/method"},
    -32700: b"{",
    -32600: {"id": 3},
}


def reach(site: Site) -> str:
    answer = site.get("/health")
    site.learned.health = answer
    if 300 <= answer.status < 400:
        raise Fault(
            f"{answer.asked} redirects to {clipped(answer.location)} (status {answer.status})",
            "check the server that it leads to: openenv validate --url with that address",
        )
    return f"{site.place} answers HTTP in {answer.seconds * 1000:.0f} ms"


def health(site: Site) -> str:
    answer = site.learned.health
    assert answer is not None
    said = _object(answer, '200 and {"status": "healthy"}')
    if said.get("status") != "healthy":
        raise Fault(f"/health says {clipped(answer.body)}", 'answer {"status": "healthy"}, which launchers wait for')
    return "healthy"


def key(site: Site) -> str:
    answer = site.learned.metadata = site.get("/metadata")
    if answer.status in _BARRED:
        raise Fault(
            f"{answer.asked} answers with status {answer.status} to {'this key' if site.has_key else 'nobody'}",
            _GIVE_KEY,
        )
    return "this key is taken" if site.has_key else "no key is asked for"


def metadata(site: Site) -> str:
    answer = site.learned.metadata
    assert answer is not None
    said = _object(answer, "200 and an object with name and description")
    for name in ("name", "description"):
        if not isinstance(said.get(name), str) or not said[name]:
            raise Fault(f"/metadata has no {name}: {clipped(answer.body)}", f"say {name}, a text, in get_metadata()")
    return f"{clipped(said['name'])} {clipped(said.get('version') or 'without a version')}"


def openapi(site: Site) -> str:
    said = _object(site.get("/openapi.json"), "200 and the OpenAPI document")
    form, about, paths = said.get("openapi"), said.get("info"), said.get("paths")
    if not isinstance(form, str) or not form.startswith("3."):
        raise Fault(f"/openapi.json is of OpenAPI {clipped(repr(form))}", "serve a document of OpenAPI 3")
    version = about.get("version") if isinstance(about, dict) else None
    if not isinstance(version, str) or not version:
        raise Fault(f"/openapi.json has info.version {clipped(repr(version))}", "give the app a version, as a text")
    if not isinstance(paths, dict):
        raise Fault("/openapi.json has no paths", "list the routes that are served")
    site.learned.paths = paths.keys()
    return f"OpenAPI {clipped(form)}, version {clipped(version)}, {len(paths)} paths"


def schema(site: Site) -> str:
    said = _object(site.get("/schema"), "200 and JSON Schemas: {action, observation, state}")
    names = [*("action", "observation", "state"), *(["reset_observation"] if said.get("reset_observation") else [])]
    for name in names:
        if name not in said:
            raise Fault(f"/schema has no {name}, only {clipped(', '.join(said))}", f"add the JSON Schema of {name}")
        check_schema(name, said[name], site.seconds())
    site.learned.schemas = {name: said[name] for name in names}
    return f"{', '.join(names)} are JSON Schemas"


def mcp(site: Site) -> str:
    answer = site.post("/mcp", _LIST_TOOLS)
    if answer.status in _ABSENT:
        raise Doubt("there is no POST /mcp, so nobody can list or call tools", "serve JSON-RPC at /mcp")
    said = _rpc(answer, 1)
    if "error" in said:
        return f"no tools ({clipped(said['error'].get('message', ''))})"
    tools = said["result"].get("tools") if isinstance(said.get("result"), dict) else None
    if not isinstance(tools, list):
        raise Fault(f"tools/list answers {clipped(answer.body)}", 'answer {"result": {"tools": [...]}}')
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise Fault(f"tools/list has {clipped(tool)}", "give each tool a name")
        check_schema(f"inputSchema of {clipped(tool['name'])}", tool.get("inputSchema"), site.seconds())
    return f"{len(tools)} tools"


def mcp_errors(site: Site) -> str:
    for code, body in _CODES.items():
        answer = site.post("/mcp", body)
        if answer.status in _ABSENT:
            raise Doubt("there is no POST /mcp", "serve JSON-RPC at /mcp")
        error = _rpc(answer, body["id"] if code == -32601 else None).get("error")
        if not isinstance(error, dict) or error.get("code") != code:
            sent = body.decode() if isinstance(body, bytes) else body
            raise Fault(f"POST /mcp answers {sent} with {clipped(answer.body)}", f"answer an error of code {code}")
    return ", ".join(map(str, _CODES))


def mode(site: Site) -> str:
    """Whether all that controls an environment is served, or nothing of it, and whether the list of routes agrees."""
    answers = {
        "/reset": site.post("/reset", {}),
        "/step": site.post("/step", {}),
        "/state": site.get("/state"),
    }
    for answer in answers.values():
        if answer.status in _BARRED:
            raise Fault(f"{answer.asked} answers with status {answer.status}: this key may not", _GIVE_KEY)
    served = [path for path, answer in answers.items() if answer.status not in _ABSENT]
    site.learned.production = not served
    if served and len(served) < len(answers):
        absent = ", ".join(path for path in answers if path not in served)
        raise Fault(
            f"{', '.join(served)} is served, and {absent} is not",
            "serve all of /reset, /step and /state (simulation), or none of them (production)",
        )
    _agrees(site, served, list(answers))
    if not served:
        return "production: no reset, step or state"
    _control(answers)
    return "simulation: reset, step and state"


def _agrees(site: Site, served: list[str], control: list[str]) -> None:
    """Compares what is served with what is listed."""
    paths = site.learned.paths
    if paths is None:
        return
    listed = [path for path in control if path in paths]
    if listed and not served:
        raise Fault(f"{', '.join(listed)} is in /openapi.json, and not served", "list what is served")
    # In production a key of scope control is served what others are not told of.
    if served and len(listed) < len(control) and not site.has_key:
        raise Doubt(f"{', '.join(served)} is served, and not in /openapi.json", "list what is served")


def _control(answers: dict[str, Answer]) -> None:
    check_payload(_object(answers["/reset"], "200 and an observation"), "POST /reset", answers["/reset"].body)
    step = answers["/step"]
    if not 400 <= step.status < 500:
        raise step.fault("422 to a step without an action")
    _object(answers["/state"], "200 and the state")


def check_payload(payload: dict[str, Any], what: str, text: object) -> None:
    """Raises `Fault` unless it is what a reset or step gives: observation, reward, done."""
    reward = payload.get("reward")
    if not isinstance(payload.get("observation"), dict):
        raise Fault(f"{what} has no observation: {clipped(text)}", "answer {observation: {...}, reward, done}")
    if reward is not None and (not isinstance(reward, (bool, int, float)) or not math.isfinite(reward)):
        raise Fault(f"{what} has the reward {clipped(repr(reward))}", "give a number, or null where there is none")
    if not isinstance(payload.get("done"), bool):
        raise Fault(f"{what} has done {clipped(repr(payload.get('done')))}", "say true or false")


def _object(answer: Answer, expected: str) -> dict[str, Any]:
    if answer.status != 200:
        raise answer.fault(expected)
    said = answer.json()
    if not isinstance(said, dict):
        raise Fault(f"{answer.asked} answers {clipped(answer.body)}", f"answer {expected}")
    return said


def _rpc(answer: Answer, number: int | None) -> dict[str, Any]:
    """An answer of JSON-RPC: a result or an error, under the id of the request."""
    if answer.status >= 500:
        raise answer.fault("JSON-RPC, and its error codes for what goes wrong")
    said = answer.json()
    error = said.get("error") if isinstance(said, dict) else None
    if (
        not isinstance(said, dict)
        or said.get("jsonrpc") != "2.0"
        or (number is not None and said.get("id") != number)
        or (error is None and "result" not in said)
        or (error is not None and (not isinstance(error, dict) or not isinstance(error.get("code"), int)))
    ):
        raise Fault(
            f"{answer.asked} answers {clipped(answer.body)}",
            'answer JSON-RPC 2.0: {"jsonrpc": "2.0", "id": of the request, "result" or "error": {code, message}}',
        )
    return {name: value for name, value in said.items() if value is not None}
