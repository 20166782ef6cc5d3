"""What a server says in a conversation of protocol v1, over its WebSocket."""

from __future__ import annotations

import time
from typing import Any

from ...testing.probe import CannotTell, Doubt, Fault
from .url_http import check_payload
from .url_schema import action_of, check_value
from .url_site import Site, clipped
from .url_talk import AGAIN_S, Closed, Refused, Talk

__all__ = ["bad_frames", "close", "odd_frames", "order", "production", "reset", "state", "step", "truth"]

_RESET = {"type": "reset", "data": {}}
_STATE = {"type": "state"}
_ODD = ("3", "[]", '{"type": "reset", "data": [1]}')
# What is sent at once, and what answers it.
_AT_ONCE: tuple[tuple[dict[str, Any] | str, str], ...] = (
    (_STATE, "state"),
    (_RESET, "observation"),
    (_STATE, "state"),
    ("{", "error"),
    (_STATE, "state"),
)


def production(site: Site) -> str:
    if not site.learned.production:
        raise CannotTell("it is not in production mode")
    try:
        talk = Talk.begin(site)
    except Refused as refusal:
        return f"nobody resets an environment: {refusal.saw}"
    try:
        for frame in (_RESET, _STATE):
            answer = talk.ask(frame)
            if answer["type"] != "error":
                raise Doubt(
                    f"/reset and /state are not served over HTTP, but anyone may {frame['type']} over /ws",
                    "set OPENENV_API_KEYS, so that only control keys reset",
                )
    except Closed as closed:
        return f"nobody resets an environment: {closed.saw}"
    finally:
        talk.end()
    return "neither reset nor state over /ws"


def reset(site: Site) -> str:
    _only_in_simulation(site)
    talk, answer = _begun(site)
    site.learned.talk = talk
    payload = _payload(answer, "reset")
    own = "reset_observation" in site.learned.schemas
    _keep(site, "the observation of reset", payload, "reset_observation" if own else "observation")
    return f"observation with {clipped(', '.join(payload['observation']) or 'no fields')}"


def state(site: Site) -> str:
    answer = _talk(site).ask(_STATE)
    data: dict[str, Any] = _of_type(answer, "state", "state")
    count = data.get("step_count", 0)
    if not isinstance(count, int) or count < 0:
        raise Fault(f"the state has step_count {clipped(repr(count))}", "count steps from 0")
    site.learned.values.append(("the state", data, "state"))
    return f"state with {clipped(', '.join(data) or 'no fields')}"


def step(site: Site) -> str:
    talk = _talk(site)
    if "action" not in site.learned.schemas:
        raise CannotTell("there is no valid schema to make an action from")
    action = action_of(site.learned.schemas["action"], site.seconds())
    answer = talk.ask({"type": "step", "data": action})
    if answer["type"] == "error" and answer["data"].get("code") in {"EXECUTION_ERROR", "VALIDATION_ERROR"}:
        raise Doubt(
            f"a made-up action, {clipped(action)}, is refused: {clipped(answer['data'].get('message'))}",
            "nothing, if it is no action of this environment; else see the server's log",
        )
    payload = _payload(answer, "step")
    _keep(site, "the observation of step", payload, "observation")
    return f"{clipped(action)} gives reward {payload.get('reward')}, done {payload['done']}"


def truth(site: Site) -> str:
    """Whether what was said is of the schemas of `/schema`."""
    schemas = site.learned.schemas
    if not schemas:
        raise CannotTell("there are no valid schemas")
    for name, value, schema in site.learned.values:
        check_value(name, value, schemas[schema], site.seconds())
    return ", ".join(name for name, _, _ in site.learned.values)


def bad_frames(site: Site) -> str:
    talk = _talk(site)
    expected = {"{": "INVALID_JSON", '{"type": "dance"}': "UNKNOWN_TYPE", '{"type": "step"}': "VALIDATION_ERROR"}
    schema = site.learned.schemas.get("action", {})
    if schema.get("additionalProperties") is False:
        expected['{"type": "step", "data": {"openenv_no_such_field": 1}}'] = "VALIDATION_ERROR"
    for frame, code in expected.items():
        answer = talk.ask(frame)
        data = _of_type(answer, "error", frame)
        if data.get("code") != code or not isinstance(data.get("message"), str):
            raise Fault(f"{frame} is answered by {clipped(data)}", f"answer an error of code {code}, with a message")
    _of_type(talk.ask(_STATE), "state", "state after bad frames")
    return f"{', '.join(dict.fromkeys(expected.values()))}, and the session goes on"


def order(site: Site) -> str:
    talk = _talk(site)
    for frame, _ in _AT_ONCE:
        talk.say(frame)
    wanted = [kind for _, kind in _AT_ONCE]
    said = [talk.take(f"{len(wanted)} frames at once")["type"] for _ in wanted]
    if said != wanted:
        raise Fault(
            f"frames that ask for {', '.join(wanted)} are answered by {clipped(', '.join(said))}",
            "answer each frame once, in the order in which they came",
        )
    return f"{len(wanted)} frames at once, {len(said)} answers in their order"


def close(site: Site) -> str:
    talk = _talk(site)
    talk.say({"type": "close"})
    site.learned.talk = None
    try:
        answer = talk.take("close")
    except Closed as closed:
        if closed.code != 1000:
            raise Fault(closed.saw, "answer close by ending the connection with code 1000") from None
        return "code 1000"
    finally:
        talk.end()
    raise Fault(f"close is answered by {clipped(answer)}", "answer close by ending the connection with code 1000")


def odd_frames(site: Site) -> str:
    _only_in_simulation(site)
    talk, _ = _begun(site)
    try:
        for frame in _ODD:
            try:
                answer = talk.ask(frame)
                alive = answer["type"] == "error" and talk.ask(_STATE)["type"] == "state"
            except Closed:
                alive = False
            if not alive:
                raise Doubt(
                    f"{frame}, which is JSON and no message, ends the session",
                    "answer an error (INVALID_JSON or VALIDATION_ERROR), and go on",
                )
    finally:
        talk.end()
    return "errors, and the session goes on"


def _only_in_simulation(site: Site) -> None:
    if site.learned.production:
        raise CannotTell("in production mode nobody resets an environment")


def _talk(site: Site) -> Talk:
    """The conversation that goes on; a new one where a probe has spoilt it."""
    if site.learned.talk is None:
        site.learned.talk, answer = _begun(site)
        _payload(answer, "reset")
    return site.learned.talk


def _begun(site: Site) -> tuple[Talk, dict[str, Any]]:
    """A new session, and what its reset gave. A server that is full is asked again for a while."""
    limit = time.monotonic() + site.seconds()
    while True:
        talk = Talk.begin(site)
        try:
            answer = talk.ask(_RESET)
        except BaseException:
            talk.end()
            raise
        if answer["type"] != "error" or answer["data"].get("code") != "CAPACITY_REACHED":
            return talk, answer
        talk.end()
        if time.monotonic() > limit:
            raise Fault(
                f"the server is full: {clipped(answer['data'].get('message'))}",
                "check it when a session is free, or let it have more (--max-sessions, MAX_CONCURRENT_ENVS)",
            )
        time.sleep(AGAIN_S)


def _payload(answer: dict[str, Any], asked: str) -> dict[str, Any]:
    data: dict[str, Any] = _of_type(answer, "observation", asked)
    check_payload(data, f"the answer to {asked}", data)
    return data


def _of_type(answer: dict[str, Any], kind: str, asked: str) -> dict[str, Any]:
    data: dict[str, Any] = answer["data"]
    if answer["type"] != kind:
        said = data.get("message", data) if answer["type"] == "error" else data
        raise Fault(
            f"{asked} is answered by {clipped(answer['type'])} {clipped(data.get('code', ''))}: {clipped(said)}",
            f"answer a frame of type {kind}; the server's log says why it did not",
        )
    return data


def _keep(site: Site, name: str, payload: dict[str, Any], schema: str) -> None:
    # The wire has these two beside it.
    whole = {**payload["observation"], "reward": payload.get("reward"), "done": payload["done"]}
    site.learned.values.append((name, whole, schema))
