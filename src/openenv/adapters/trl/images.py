"""Convert images in observations to content parts for a vision model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InvalidArgument, StepFailed
from ...images import RenderedImage, media_type_of, pillow

# How base64 of PNG, JPEG, GIF and WebP files begins.
_BASE64 = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR")
# A shorter string is a word that happens to begin like an image in base64.
_SHORTEST = 60
# An array with fewer rows or columns is not an image but a board.
_SMALLEST = 8
_DEEPEST = 6


def take_images(value: Any, images: list[Any], depth: int = 0) -> Any:
    """Separates the images of a value from the rest.

    An image is a `RenderedImage`, a `data:` URL, base64 or bytes of a PNG, JPEG, GIF or WebP file, a block of MCP
    content, or a uint8 array of shape (height, width, 3 or 4), as in Gymnasium's pixel environments.

    Args:
        value: Data of an observation.
        images: List to which the images (`PIL.Image.Image`) are appended, in order.
        depth: Nesting depth of the value in the observation.

    Returns:
        The value, with `image 1` and so on in place of each image; a field that is an image is left out.

    Raises:
        StepFailed: An image cannot be read.
        MissingExtra: The value contains an image and Pillow is not installed.
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
    shape, dtype = tuple(getattr(value, "shape", ())), str(getattr(value, "dtype", ""))
    if dtype == "uint8" and len(shape) == 3 and min(shape[:2]) >= _SMALLEST and shape[2] in {3, 4}:
        return pillow().fromarray(value)
    try:
        image = _rendered(value)
        return None if image is None else image.to_pil()
    except InvalidArgument as error:
        raise StepFailed(
            f"an image of the observation cannot be shown to a model ({error}): give environment_factory render="
        ) from None


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
