"""What an environment's author has the web UI show of an observation; found out where the environment runs.

What comes out is JSON text, since it may come out of another process, in which nobody is to be believed.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic_core import to_json

from ..execution import describe

__all__ = ["NOTHING", "Drawing", "draw", "read_drawing"]

# Pictures stand in it as data: URLs.
HTML_BYTES = 4 * 1024 * 1024
MOST_ACTIONS = 200
LABEL_LENGTH = 200
ACTION_BYTES = 64 * 1024


class Drawing(msgspec.Struct):
    """What there is to see.

    Attributes:
        html: As `render_web` returned it; None for the default view.
        actions: As `web_actions` returned them: a label and the fields of an action each.
        notes: What went wrong, for people to read.
    """

    html: str | None = None
    actions: list[tuple[str, dict[str, Any]]] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


NOTHING = b"{}"


class Seen(dict[str, Any]):
    """The fields of an observation, `reward` and `done` among them, as `render_web` and `web_actions` get them.

    A field is read as `obs["board"]`, or as `obs.board` unless dicts have a method of that name.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the observation has no field {name!r}: it has {', '.join(self)}") from None


def draw(environment: Any, fields: dict[str, Any]) -> str | Awaitable[str]:
    """The operation: asks `render_web` and `web_actions` about an observation, given as plain data.

    Returns:
        A `Drawing` as JSON; what asynchronous methods give is to be awaited, as steps are.
    """
    render, offer = getattr(environment, "render_web", None), getattr(environment, "web_actions", None)
    if inspect.iscoroutinefunction(render) or inspect.iscoroutinefunction(offer):
        return _drawn_async(render, offer, fields)
    drawing = Drawing()
    _show(drawing, *_asked(render, fields))
    _offer(drawing, *_asked(offer, fields))
    return _text(drawing)


def read_drawing(told: Any) -> Drawing:
    """What the operation said.

    Raises:
        ValueError: It is no drawing.
    """
    if not isinstance(told, str):
        raise ValueError("it is no text")
    try:
        return msgspec.json.decode(told, type=Drawing)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


async def _drawn_async(render: Any, offer: Any, fields: dict[str, Any]) -> str:
    drawing = Drawing()
    _show(drawing, *await _awaited(render, fields))
    _offer(drawing, *await _awaited(offer, fields))
    return _text(drawing)


def _asked(method: Callable[[Any], Any] | None, fields: dict[str, Any]) -> tuple[Any, Exception | None]:
    try:
        return None if method is None else method(Seen(fields)), None
    except Exception as error:  # noqa: BLE001 - the edge to foreign code: a picture fails no step
        return None, error


async def _awaited(method: Callable[[Any], Any] | None, fields: dict[str, Any]) -> tuple[Any, Exception | None]:
    outcome, error = _asked(method, fields)
    try:
        return await outcome if inspect.isawaitable(outcome) else outcome, error
    except Exception as failure:  # noqa: BLE001 - as above
        return None, failure


def _show(drawing: Drawing, html: Any, error: Exception | None) -> None:
    if error is not None:
        drawing.notes.append(_raised("render_web", error))
    elif html is None:
        pass
    elif not isinstance(html, str):
        drawing.notes.append(_returned("render_web", html, "HTML as text, or None for the default view"))
    elif len(html) > HTML_BYTES or len(text := html.encode("utf-8", "replace")) > HTML_BYTES:
        drawing.notes.append(f"render_web returned more than {HTML_BYTES >> 20} MiB, which is not shown")
    else:
        drawing.html = text.decode()


def _offer(drawing: Drawing, offered: Any, error: Exception | None) -> None:
    if error is not None:
        drawing.notes.append(_raised("web_actions", error))
        return
    if offered is None:
        return
    if not isinstance(offered, Sequence) or isinstance(offered, str):
        drawing.notes.append(_returned("web_actions", offered, "a list of (label, action) pairs"))
        return
    if len(offered) > MOST_ACTIONS:
        drawing.notes.append(
            f"web_actions returned {len(offered)} actions, of which the first {MOST_ACTIONS} are shown"
        )
    for place, pair in enumerate(offered[:MOST_ACTIONS], 1):
        try:
            drawing.actions.append(_pair(pair))
        except Exception as fault:  # noqa: BLE001 - foreign objects: reading them may raise anything
            drawing.notes.append(f"action {place} of web_actions is not shown: {describe(fault)[:500]}")


def _pair(pair: Any) -> tuple[str, dict[str, Any]]:
    label, action = pair
    if not isinstance(label, str):
        raise TypeError(f"its label is a {type(label).__name__}, and must be text")
    if not isinstance(action, (dict, BaseModel)):
        raise TypeError(f"a {type(action).__name__} stands where the fields of an action should, as a dict")
    text = to_json(action, inf_nan_mode="strings", bytes_mode="base64")
    if len(text) > ACTION_BYTES:
        raise ValueError(f"it has {len(text)} bytes, over the limit of {ACTION_BYTES}")
    fields: dict[str, Any] = msgspec.json.decode(text)
    return label[:LABEL_LENGTH].encode("utf-8", "replace").decode(), fields


def _raised(method: str, error: Exception) -> str:
    return f"{method} raised {type(error).__name__}: {describe(error)}"[:2000]


def _returned(method: str, value: Any, wanted: str) -> str:
    if inspect.iscoroutine(value):
        value.close()
    return f"{method} returned a {type(value).__name__}: it must return {wanted}"


def _text(drawing: Drawing) -> str:
    drawing.notes = [note.encode("utf-8", "replace").decode() for note in drawing.notes]
    return msgspec.json.encode(drawing).decode()
