"""What a model reads of an observation: text, images, and the results of tools."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import to_json

from ..chat import Chat, value_at
from ..errors import ConnectionLost, InvalidArgument, StepFailed
from ..images import RenderedImage, media_type_of

# Fields that the model does not see.
_BESIDE = frozenset({"reward", "done", "metadata", "truncated", "terminated"})
# Fields with text for a reader.
_WORDS = ("text", "message", "observation", "content", "output", "prompt", "response")
# How base64 of PNG, JPEG, GIF and WebP files begins.
_BASE64 = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR")
# A shorter string is a word that happens to begin like an image in base64.
_SHORTEST = 60
# An array with fewer rows or columns is not an image but a board.
_SMALLEST = 8
_DEEPEST = 6
# Known at once to be no image: large observations consist of them.
_NUMBERS = frozenset({int, float, bool, type(None)})
_ADVICE = "name the fields that a model reads in `chat` of the environment"


class ModelContent(NamedTuple):
    """What a model reads.

    Attributes:
        text: The text; empty if there is none.
        images: `RenderedImage`s and uint8 arrays of shape (height, width, 3 or 4), in order.
    """

    text: str
    images: list[Any]


def content_of(observation: Any, chat: Chat | None = None) -> ModelContent:
    """What a model reads of an observation; of an MCP environment's tool call, the result of the tool.

    Args:
        observation: A mapping or a model.
        chat: How it reads; None for text and images as they are found.

    Raises:
        StepFailed: A field of the template is missing, a value cannot be written as JSON, or an image cannot be read.
    """
    called = _called(observation)
    if "result" not in called:
        return _found_in(observation) if chat is None else _declared_in(observation, chat)
    result = called["result"]
    data = part_of(result, "data")
    if data is not None:
        return _found_in(data)
    blocks = part_of(result, "content")
    if isinstance(blocks, list) and all(part_of(block, "type") in {"text", "image"} for block in blocks):
        images: list[Any] = []
        take_images([part_of(block, "data") for block in blocks if part_of(block, "type") == "image"], images)
        text = "\n".join(str(part_of(block, "text")) for block in blocks if part_of(block, "type") == "text")
        return ModelContent(text, images)
    return ModelContent("", []) if result is None else _found_in(result)


def refusal_of(observation: Any) -> str | None:
    """The error that a tool of an MCP environment reports in its result, for the model; None without an error.

    Raises:
        ConnectionLost: The infrastructure failed, so that the tool could not be reached.
    """
    error = _called(observation).get("error")
    if not error:
        return None
    kind, message = (part_of(error, name) for name in ("error_type", "message"))
    kind = str(getattr(kind, "value", kind))
    if kind == "transport_error":
        raise ConnectionLost(f"the tool could not be reached: {message}")
    return f"{kind}: {message}"


def text_of(observation: Any) -> str:
    """An observation as text: a field such as `text` or `message`, its only string, or all of it as JSON.

    Reward, done and metadata are left out.

    Returns:
        The text; empty if nothing else is in the observation.

    Raises:
        StepFailed: A value cannot be written as JSON.
    """
    if isinstance(observation, str):
        return observation
    fields = _fields(observation)
    if fields is None:
        return _json(observation)
    for name in _WORDS:
        if isinstance(fields.get(name), str) and fields[name]:
            return str(fields[name])
    if len(fields) == 1:
        (only,) = fields.values()
        if isinstance(only, str):
            return only
    return _json(fields) if fields else ""


def part_of(value: Any, name: str) -> Any:
    """An item of a mapping, or an attribute of any other object; None if it is missing."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def take_images(value: Any, images: list[Any], depth: int = 0) -> Any:
    """Separates the images of a value from the rest.

    An image is a `RenderedImage`, a `data:` URL, base64 or bytes of a PNG, JPEG, GIF or WebP file, a block of MCP
    content, or a uint8 array of shape (height, width, 3 or 4), as in Gymnasium's pixel environments.

    Args:
        value: Data of an observation.
        images: List to which the images are appended, in order, as in `ModelContent`.
        depth: Nesting depth of the value in the observation.

    Returns:
        The value, with `image 1` and so on in place of each image; a field that is an image is left out.

    Raises:
        StepFailed: An image cannot be read.
    """
    if depth > _DEEPEST or type(value) in _NUMBERS or (type(value) is str and len(value) < _SHORTEST):
        return value
    if isinstance(value, dict | Mapping) and not (
        value.get("type") == "image" and isinstance(value.get("data"), str)
    ):
        parts = {name: take_images(each, images, depth + 1) for name, each in value.items()}
        return {name: each for name, each in parts.items() if not isinstance(each, _Place)}
    if isinstance(value, list | tuple):
        return [take_images(each, images, depth + 1) for each in value]
    image = _image(value)
    if image is None:
        return value
    images.append(image)
    return _Place(f"image {len(images)}")


class _Place(str):
    """Placeholder for an image."""

    __slots__ = ()


def _called(observation: Any) -> Mapping[str, Any]:
    """The fields of a tool call's observation; empty for any other."""
    fields = observation if isinstance(observation, Mapping) else getattr(observation, "__dict__", {})
    return fields if {"tool_name", "result"} <= fields.keys() else {}


def _found_in(observation: Any) -> ModelContent:
    images: list[Any] = []
    fields = _fields(observation)
    rest = take_images(observation if fields is None else fields, images)
    if not images:
        return ModelContent(text_of(observation), [])
    return ModelContent("" if rest == "image 1" else text_of(rest), images)


def _declared_in(observation: Any, chat: Chat) -> ModelContent:
    """The content as the author declares it."""
    if chat.observation is None and not chat.images:
        return _found_in(observation)
    fields = _fields(observation) or {}
    if not chat.images:
        images: list[Any] = []
        fields = take_images(fields, images)
    else:
        images = [_as_image(name, _value(name, fields)) for name in chat.images]
        images = [image for image in images if image is not None]
    if chat.observation is None:
        return ModelContent(text_of({name: fields[name] for name in fields if name not in chat.images}), images)
    parts = []
    for text, name, _, _ in Formatter().parse(chat.observation):
        parts.append(text)
        if name is not None:
            value = _value(name, fields)
            if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
                value = "\n".join(value)
            parts.append(value if isinstance(value, str) else "" if value is None else _json(value))
    return ModelContent("".join(parts).rstrip(), images)


def _value(name: str, fields: Mapping[str, Any]) -> Any:
    try:
        return value_at(name, fields)
    except LookupError:
        raise StepFailed(
            f"the observation has no {name!r}, which the environment's `chat` names; it has {', '.join(fields)}"
        ) from None


def _fields(observation: Any) -> dict[str, Any] | None:
    if isinstance(observation, BaseModel):
        fields = {**observation.__dict__, **(observation.__pydantic_extra__ or {})}
    elif isinstance(observation, Mapping):
        fields = dict(observation)
    else:
        return None
    return {name: value for name, value in fields.items() if name not in _BESIDE}


def _json(value: Any) -> str:
    try:
        # Arrays, tensors and numpy's numbers share the method `tolist`.
        return to_json(
            value, fallback=lambda value: value.tolist(), inf_nan_mode="constants", bytes_mode="base64"
        ).decode()
    except ValueError as error:
        raise StepFailed(f"a value is no JSON ({error}): {_ADVICE}") from error


def _image(value: Any) -> Any:
    """A value that is an image, or None."""
    shape, dtype = tuple(getattr(value, "shape", ())), str(getattr(value, "dtype", ""))
    if dtype == "uint8" and len(shape) == 3 and min(shape[:2]) >= _SMALLEST and shape[2] in {3, 4}:
        return value
    try:
        return _rendered(value)
    except InvalidArgument as error:
        raise StepFailed(f"an image cannot be read ({error}): {_ADVICE}") from None


def _as_image(name: str, value: Any) -> Any:
    """The value of a field that is declared as an image."""
    if value is None:
        return None
    image = _image(value)
    try:
        return RenderedImage.of(value) if image is None else image
    except InvalidArgument as error:
        raise StepFailed(f"{name!r} is no image, as the environment's `chat` says: {error}") from None


def _rendered(value: Any) -> RenderedImage | None:
    if isinstance(value, RenderedImage):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return RenderedImage.of(value) if media_type_of(bytes(value)) is not None else None
    text = value["data"] if isinstance(value, Mapping) else value
    if not isinstance(text, str):
        return None
    if text[:11].lower() == "data:image/" and ";base64," in text[:_SHORTEST]:
        return RenderedImage.of(text)
    if isinstance(value, Mapping) or (len(text) >= _SHORTEST and text.startswith(_BASE64)):
        return RenderedImage.of(f"data:image/png;base64,{text}")
    return None
