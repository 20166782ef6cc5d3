"""An image keeps its pixels, and a file that is no image is refused."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ValidationError

from openenv import Observation, RenderedImage
from openenv.errors import InvalidArgument, MissingExtra
from openenv.images import check_encoding, decode_pixels, encode_pixels

GREEN = (0, 128, 0)


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def file_of(kind: str, image: Image.Image | None = None) -> bytes:
    file = io.BytesIO()
    (image or Image.new("RGB", (12, 10), GREEN)).save(file, kind)
    return file.getvalue()


class Seen(Observation):
    screen: RenderedImage
    map: RenderedImage | None = None


@pytest.mark.parametrize("encoding", ["png", "webp"])
@pytest.mark.parametrize("shape", [(9, 12), (9, 12, 3), (9, 12, 4), (1, 1)])
def test_the_pixels_of_an_array_come_back(encoding: Any, shape: tuple[int, ...]) -> None:
    pixels = noise(*shape)
    for given in (pixels, np.asfortranarray(pixels), np.flip(pixels, 0)):
        image = RenderedImage.of(given, encoding)
        assert image.media_type == f"image/{encoding}"
        grey_as_colours = encoding == "webp" and len(shape) == 2
        expected = np.stack([given] * 3, -1) if grey_as_colours else given
        np.testing.assert_array_equal(image.to_array(), expected)


@pytest.mark.parametrize("encoding", ["png", "webp", "jpeg"])
@pytest.mark.parametrize("shape", [(9, 12), (9, 12, 1), (9, 12, 3), (9, 12, 4)])
def test_an_array_has_its_shape_again(encoding: Any, shape: tuple[int, ...]) -> None:
    if (encoding, shape[2:]) == ("jpeg", (4,)):
        with pytest.raises(InvalidArgument, match="'jpeg' has no fourth channel: use 'png' or 'webp'"):
            check_encoding(encoding, "uint8", shape)
        return
    check_encoding(encoding, "uint8", shape)
    for pixels in (noise(*shape), np.full(shape, 255, np.uint8)):
        decoded = decode_pixels(encode_pixels(pixels, encoding), encoding, shape)
        assert (decoded.shape, decoded.dtype, decoded.flags.writeable) == (shape, np.uint8, True)
        if encoding != "jpeg":
            np.testing.assert_array_equal(decoded, pixels)


def test_jpeg_keeps_what_is_seen() -> None:
    pixels = np.full((16, 16, 3), GREEN, np.uint8)
    decoded = decode_pixels(encode_pixels(pixels, "jpeg"), "jpeg", pixels.shape)
    assert np.abs(decoded.astype(int) - pixels).max() <= 3


@pytest.mark.parametrize(
    ("encoding", "dtype", "shape", "fault"),
    [
        ("gif", "uint8", (2, 2), "encoding is 'gif': known are png, jpeg, webp"),
        ("png", "float32", (2, 2, 3), r"not float32 of shape \(2, 2, 3\)"),
        ("png", "uint8", (2, 2, 2), r"not uint8 of shape \(2, 2, 2\)"),
        ("png", "uint8", (4, 2, 2, 3), r"not uint8 of shape \(4, 2, 2, 3\)"),
        ("png", "uint8", (0, 2, 3), r"from 1 to \d+, not \(0, 2\)"),
        ("webp", "uint8", (2, 16_384), r"from 1 to 16383, not \(2, 16384\)"),
    ],
)
def test_an_array_that_no_file_can_hold_is_refused(
    encoding: str, dtype: str, shape: tuple[int, ...], fault: str
) -> None:
    with pytest.raises(InvalidArgument, match=fault):
        check_encoding(encoding, dtype, shape)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (file_of("PNG", Image.new("RGB", (20_000, 9))), r"9 rows and 20000 columns of RGB.* 9 rows and 12 columns"),
        (file_of("PNG", Image.new("L", (12, 9))), r"of L: .* shape \(9, 12, 3\)"),
        (encode_pixels(noise(9, 12, 3), "png")[:-40], "an image of 12 x 9 cannot be decoded"),
        (encode_pixels(noise(9, 12, 3), "jpeg"), "no readable image.*PNG"),
        (b"", "0 bytes are no readable image"),
    ],
)
def test_a_file_of_another_array_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(InvalidArgument, match=fault):
        decode_pixels(data, "png", (9, 12, 3))


def test_a_picture_may_be_a_file_a_pil_image_or_a_data_url() -> None:
    red = Image.new("RGB", (12, 10), (255, 0, 0))
    for picture in (red, file_of("PNG", red), file_of("WEBP", red), bytearray(file_of("GIF", red))):
        image = RenderedImage.of(picture)
        assert image.to_pil().size == (12, 10)
        again = RenderedImage.of(image.data_url())
        assert (again, hash(again)) == (image, hash(image))
        assert RenderedImage.of(again) == image
    assert RenderedImage.of(red, "jpeg").media_type == "image/jpeg"
    assert RenderedImage.of(f"data:image/png;name=a.png;base64,{RenderedImage.of(red).data_url()[22:]}").to_pil()


def test_a_palette_is_read_as_colours() -> None:
    picture = Image.new("P", (2, 2))
    picture.putpalette([*GREEN, 0, 0, 0])
    np.testing.assert_array_equal(RenderedImage.of(picture).to_array(), np.full((2, 2, 3), GREEN, np.uint8))


def test_a_model_holds_images_and_its_json_has_data_urls() -> None:
    image = RenderedImage.of(noise(4, 4, 3))
    seen = Seen(screen=image, metadata={"before": image})
    assert seen.model_dump(mode="json")["screen"] == image.data_url()
    written = seen.model_dump_json()
    read = Seen.model_validate_json(written)
    assert (read.screen, read.map, read.metadata) == (image, None, {"before": image.data_url()})
    assert Seen.model_validate({"screen": image.to_array()}).screen == image
    assert pickle.loads(pickle.dumps(seen)) == copy.deepcopy(seen) == seen
    assert len(repr(seen)) < 300


def test_its_schema_is_a_string_with_an_example_that_is_valid() -> None:
    for mode in ("validation", "serialization"):
        schema = Seen.model_json_schema(mode=mode)["$defs"]["RenderedImage"]
        assert (schema["type"], schema["format"]) == ("string", "data-url")
        for example in schema["examples"]:
            assert RenderedImage.model_validate(example).to_array().size


@pytest.mark.parametrize(
    ("picture", "fault"),
    [
        ("look", "needs a data: URL in base64"),
        ("data:image/png;base64,QUJD", "no PNG, JPEG, GIF or WebP file: it begins with b'ABC'"),
        ("data:image/png;base64,Q", "needs a data: URL in base64"),
        (b"<svg/>", "no PNG, JPEG, GIF or WebP file"),
        ({"data": b"<svg/>"}, "no PNG, JPEG, GIF or WebP file"),
        (np.zeros((3, 3)), r"not float64 of shape \(3, 3\)"),
        (7, "made of an array, a PIL image, a data: URL or bytes, not int"),
        (None, "not NoneType"),
    ],
)
def test_what_is_no_picture_names_the_field(picture: Any, fault: str) -> None:
    with pytest.raises(ValidationError, match=rf"(?s)screen.*{fault}"):
        Seen(screen=picture)


def test_a_damaged_file_is_an_error_where_its_pixels_are_read() -> None:
    data = RenderedImage.of(noise(40, 40, 3)).data
    for image in (RenderedImage(data=data[:-60]), RenderedImage(data=data[:20])):
        for read in (image.to_pil, image.to_array):
            with pytest.raises(InvalidArgument, match="an image of 40 x 40 cannot be decoded|no readable image"):
                read()


def test_a_bomb_is_refused_before_its_pixels_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    image = RenderedImage.of(noise(40, 40))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InvalidArgument, match="exceeds limit of 200 pixels"):
        image.to_pil()


def test_without_pillow_files_pass_and_pixels_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    url = RenderedImage.of(noise(2, 2)).data_url()
    for name in ("PIL", "PIL.Image"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    image = RenderedImage.of(url)
    assert image.data_url() == url
    for read in (
        image.to_array,
        lambda: RenderedImage.of(noise(2, 2)),
        lambda: check_encoding("png", "uint8", (2, 2)),
    ):
        with pytest.raises(MissingExtra, match=r"pip install 'openenv\[images\]'"):
            read()


def test_a_subclass_keeps_its_class() -> None:
    class Photo(RenderedImage):
        pass

    class Album(BaseModel):
        photo: Photo

    assert type(Album.model_validate({"photo": noise(2, 2)}).photo) is Photo
