"""Images: `RenderedImage`, and arrays of pixels as PNG, JPEG and WebP files, by Pillow."""

from __future__ import annotations

import io
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from .errors import InvalidArgument, MissingExtra

if TYPE_CHECKING:
    from numpy import uint8
    from numpy.typing import NDArray
    from PIL.Image import Image

__all__ = ["RenderedImage"]

Encoding = Literal["png", "jpeg", "webp"]
"""PNG and WebP keep every pixel; JPEG changes pixels, and has no transparency."""

# The settings that encode fastest: an environment encodes each observation while its client waits.
_FASTEST: dict[str, dict[str, Any]] = {
    "png": {"compress_level": 1},
    "jpeg": {"quality": 90},
    "webp": {"lossless": True, "quality": 0, "method": 0, "exact": True},
}
_LONGEST = {"png": 2**31 - 1, "jpeg": 65_500, "webp": 16_383}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_BEGINNINGS = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}
_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+(;[^,;]*)*;base64,", re.IGNORECASE)
_SMALLEST_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


def pillow() -> Any:
    """The module `PIL.Image`. Raises `MissingExtra` if it is not installed."""
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise MissingExtra("Pillow", "images") from None


def media_type_of(data: bytes) -> str | None:
    """The media type of a PNG, JPEG, GIF or WebP file, by its first bytes; None for other bytes."""
    return next((kind for kind, beginning in _BEGINNINGS.items() if beginning.match(data)), None)


def check_encoding(encoding: str, dtype: str, shape: tuple[int | None, ...]) -> None:
    """Checks that an image file can hold arrays of this type and shape.

    Raises:
        InvalidArgument: It cannot; the message names what is wrong.
        MissingExtra: Pillow is not installed.
    """
    if encoding not in _FASTEST:
        raise InvalidArgument(f"encoding is {encoding!r}: known are {', '.join(_FASTEST)}")
    channels = shape[2] if len(shape) == 3 else 1
    if dtype != "uint8" or len(shape) not in {2, 3} or channels not in _MODES:
        raise InvalidArgument(
            f"an image is uint8 of shape (height, width) or (height, width, 1, 3 or 4), not {dtype} of shape {shape}"
        )
    if encoding == "jpeg" and channels == 4:
        raise InvalidArgument("encoding='jpeg' has no fourth channel: use 'png' or 'webp', which keep all four")
    longest = _LONGEST[encoding]
    if not all(length is not None and 0 < length <= longest for length in shape[:2]):
        raise InvalidArgument(f"encoding={encoding!r} needs a height and width from 1 to {longest}, not {shape[:2]}")
    pillow()


def encode_pixels(pixels: NDArray[uint8], encoding: Encoding) -> bytes:
    """An array for which `check_encoding` passes, as a file."""
    return _written(pillow().fromarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels), encoding)


def decode_pixels(data: bytes, encoding: Encoding, shape: tuple[int, ...]) -> NDArray[uint8]:
    """The writable array of a file that `encode_pixels` wrote. Its size is checked before a pixel is decoded.

    Args:
        data: The file.
        encoding: The only format that is read.
        shape: The array's shape.

    Raises:
        InvalidArgument: The file has another format or size, or is damaged.
    """
    import numpy

    image = _opened(data, (encoding.upper(),))
    mode = _MODES[shape[2] if len(shape) == 3 else 1]
    # WebP has no grey, and omits the transparency of an opaque image.
    modes = {mode, "RGB"} if encoding == "webp" else {mode}
    if (image.height, image.width) != shape[:2] or image.mode not in modes:
        raise InvalidArgument(
            f"the image has {image.height} rows and {image.width} columns of {image.mode}: its array has the shape "
            f"{shape}, which is {shape[0]} rows and {shape[1]} columns of {mode}"
        )
    return numpy.array(_loaded(image).convert(mode)).reshape(shape)


class RenderedImage(BaseModel):
    """A picture, as a field of an observation, an action or a state, or as a value in `metadata`.

    In messages and records it is its `data:` URL, a string. The page shows it, and `openenv.adapters.trl` makes it a
    content part. A field of this type also takes the arguments of `of`.

        class Seen(Observation):
            screen: RenderedImage

        Seen(screen=RenderedImage.of(frame))

    Attributes:
        data: A PNG, JPEG, GIF or WebP file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: bytes = Field(repr=False)

    @classmethod
    def of(cls, picture: Any, encoding: Encoding = "png") -> Self:
        """The image of any picture.

        Args:
            picture: A uint8 array of shape (height, width) or (height, width, channels) with 1, 3 or 4 channels, or a
                `PIL.Image.Image`, which are encoded; or a `data:` URL or the bytes of a file, which are kept.
            encoding: The format of the file.

        Raises:
            InvalidArgument: The picture is none of these, or cannot have this encoding.
            MissingExtra: It must be encoded, and Pillow is not installed.
        """
        if isinstance(picture, RenderedImage):
            data = picture.data
        elif isinstance(picture, bytes | bytearray | memoryview):
            data = bytes(picture)
        elif isinstance(picture, str):
            data = _of_data_url(picture)
        elif hasattr(picture, "dtype") and hasattr(picture, "shape"):
            check_encoding(encoding, str(picture.dtype), tuple(picture.shape))
            data = encode_pixels(picture, encoding)
        elif (loaded := sys.modules.get("PIL.Image")) is not None and isinstance(picture, loaded.Image):
            data = _written(picture, encoding)
        else:
            raise InvalidArgument(
                f"an image is made of an array, a PIL image, a data: URL or bytes, not {type(picture).__name__}"
            )
        return cls.model_construct(data=cls._checked(data))

    @property
    def media_type(self) -> str:
        """`image/png`, `image/jpeg`, `image/gif` or `image/webp`, read from the file."""
        return media_type_of(self.data) or "application/octet-stream"

    def data_url(self) -> str:
        """The image as a `data:` URL in base64."""
        return f"data:{self.media_type};base64,{b64encode(self.data).decode()}"

    def to_pil(self) -> Image:
        """The image, decoded by Pillow.

        Raises:
            InvalidArgument: The file is damaged, or larger than Pillow permits (`PIL.Image.MAX_IMAGE_PIXELS`).
            MissingExtra: Pillow is not installed.
        """
        return _loaded(_opened(self.data, ("PNG", "JPEG", "GIF", "WEBP")))

    def to_array(self) -> NDArray[uint8]:
        """The pixels: a writable array of shape (height, width) if it is grey, else (height, width, 3 or 4).

        Raises:
            InvalidArgument, MissingExtra: As `to_pil` does.
        """
        import numpy

        image = self.to_pil()
        if image.mode not in _MODES.values():
            image = image.convert("RGBA" if image.has_transparency_data else "RGB")
        return numpy.array(image)

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [(None, f"{self.media_type}, {len(self.data)} bytes")]

    @model_validator(mode="before")
    @classmethod
    def _fields_of(cls, picture: Any) -> Any:
        return picture if isinstance(picture, Mapping) else {"data": cls.of(picture).data}

    @field_validator("data")
    @classmethod
    def _checked(cls, data: bytes) -> bytes:
        if media_type_of(data) is None:
            raise InvalidArgument(f"the picture is no PNG, JPEG, GIF or WebP file: it begins with {data[:12]!r}")
        return data

    @model_serializer
    def _serialized(self) -> str:
        return self.data_url()

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            "type": "string",
            "format": "data-url",
            "title": cls.__name__,
            "description": "A PNG, JPEG, GIF or WebP image as a data: URL",
            "examples": [f"data:image/png;base64,{_SMALLEST_PNG}"],
        }


def _of_data_url(text: str) -> bytes:
    beginning = _DATA_URL.match(text)
    if beginning is None:
        raise InvalidArgument(f"an image needs a data: URL in base64 (data:image/png;base64,...), not {text!r:.60}")
    try:
        return b64decode(text[beginning.end() :])
    except ValueError as error:
        raise InvalidArgument(f"an image needs a data: URL in base64: {error}") from None


def _written(image: Image, encoding: Encoding) -> bytes:
    file = io.BytesIO()
    try:
        image.save(file, encoding.upper(), **_FASTEST[encoding])
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"an image of mode {image.mode} and size {image.size} is not written as {encoding}: {error}"
        ) from None
    return file.getvalue()


def _opened(data: bytes, formats: tuple[str, ...]) -> Image:
    """An image of which only the header is read."""
    library = pillow()
    # The warning is raised where a program turns warnings into errors.
    bombs = (library.DecompressionBombError, library.DecompressionBombWarning)
    try:
        image: Image = library.open(io.BytesIO(data), formats=formats)
    except (OSError, SyntaxError, ValueError, *bombs) as error:
        what = error if isinstance(error, bombs) else f"they begin with {data[:12]!r}"
        raise InvalidArgument(f"{len(data)} bytes are no readable image ({', '.join(formats)}): {what}") from None
    return image


def _loaded(image: Image) -> Image:
    try:
        image.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise InvalidArgument(f"an image of {image.width} x {image.height} cannot be decoded: {error}") from None
    return image
