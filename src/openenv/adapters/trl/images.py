"""Convert images in observations to content parts for a vision model."""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ...errors import StepFailed, UsageError

_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
# Image formats, recognised by the first bytes of a file or of its base64.
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"RIFF")
_BASE64 = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR")
# A shorter string is a word that happens to begin like an image in base64.
_SHORTEST = 60
# An array with fewer rows or columns is not an image but a board.
_SMALLEST = 8
_DEEPEST = 6


def take_images(value: Any, images: list[Any], depth: int = 0) -> Any:
    """Separates the images of a value from the rest.

    An image is a `data:` URL, base64 or bytes of a PNG, JPEG, GIF or WebP file, a block of MCP content, or a uint8
    array of shape (height, width, 3 or 4), as in Gymnasium's pixel environments.

    Args:
        value: Data of an observation.
        images: List to which the images (`PIL.Image.Image`) are appended, in order.
        depth: Nesting depth of the value in the observation.

    Returns:
        The value, with `image 1` and so on in place of each image; a field that is an image is left out.

    Raises:
        StepFailed: An image cannot be read.
        UsageError: The value contains an image and Pillow is not installed.
    """
    if depth > _DEEPEST:
        return value
    if isinstance(value, Mapping) and not (value.get("type") == "image" and isinstance(value.get("data"), str)):
        parts = {name: take_images(each, images, depth + 1) for name, each in value.items()}
        return {name: each for name, each in parts.items() if not isinstance(each, _Place)}
    if isinstance(value, list | tuple):
        return [take_images(each, images, depth + 1) for each in value]
    image = _image(value)
    if image is None:
        return value
    images.append(image)
    return _Place(f"image {len(images)}")


def image_parts(images: list[Any], text: str) -> list[dict[str, Any]]:
    """The content of a message with images and a text."""
    parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    return [*parts, {"type": "text", "text": text}] if text else parts


class _Place(str):
    """Placeholder for an image."""

    __slots__ = ()


def _image(value: Any) -> Any:
    """Decodes a value that is an image; None for any other value."""
    if isinstance(value, Mapping):
        return _decoded(value["data"])
    if isinstance(value, str):
        url = _DATA_URL.match(value)
        if url is not None or (len(value) >= _SHORTEST and value.startswith(_BASE64)):
            return _decoded(value[url.end() if url is not None else 0 :])
    elif isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return _opened(data) if data.startswith(_BEGINNINGS) else None
    else:
        shape, dtype = tuple(getattr(value, "shape", ())), str(getattr(value, "dtype", ""))
        if dtype == "uint8" and len(shape) == 3 and min(shape[:2]) >= _SMALLEST and shape[2] in {3, 4}:
            return _pillow().fromarray(value)
    return None


def _decoded(text: str) -> Any:
    try:
        return _opened(base64.b64decode(text))
    except binascii.Error as error:
        raise _unreadable(error) from None


def _opened(data: bytes) -> Any:
    pillow = _pillow()
    try:
        image = pillow.open(io.BytesIO(data), formats=_FORMATS)
        image.load()
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise _unreadable(error) from None
    return image


def _unreadable(error: Exception) -> StepFailed:
    return StepFailed(
        f"an image of the observation cannot be shown to a model ({error}): give environment_factory render="
    )


def _pillow() -> Any:
    try:
        return import_module("PIL.Image")  # only observations with images need it
    except ImportError:
        raise UsageError(
            "the observation has an image: pip install pillow, or give environment_factory render="
        ) from None
