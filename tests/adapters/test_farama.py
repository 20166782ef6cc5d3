"""Frames as pictures: any decoder reads what was drawn, and none is too large for the page."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image

from openenv.adapters.farama import MOST_BYTES, MOST_PIXELS, as_html


def shown(html: str | None) -> NDArray[np.uint8]:
    """The picture that a browser would draw."""
    assert html is not None
    found = re.search(r'src="data:image/png;base64,([^"]*)"', html)
    assert found is not None
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(found[1]))))


@given(arrays.arrays(np.uint8, arrays.array_shapes(min_dims=3, max_dims=3, max_side=4)))
def test_a_frame_comes_out_of_the_file_as_it_went_in(frame: NDArray[np.uint8]) -> None:
    grey_with_transparency = frame[:, :, [0, 0, 0, 1]] if frame.shape[2] == 2 else frame
    np.testing.assert_array_equal(
        shown(as_html(frame)), grey_with_transparency.squeeze(2) if frame.shape[2] == 1 else grey_with_transparency
    )


def test_fractions_are_shares_of_the_full_brightness() -> None:
    frame = np.array([[0.0, 0.5], [1.0, np.nan]])
    assert shown(as_html(frame)).tolist() == [[0, 127], [255, 0]]
    assert shown(as_html(np.array([[np.inf, -np.inf]]))).tolist() == [[255, 0]]
    assert shown(as_html(np.array([[True, False]]))).tolist() == [[255, 0]]


def test_the_last_of_many_frames_is_shown() -> None:
    assert shown(as_html([np.zeros((2, 2), np.uint8), np.full((1, 1), 9, np.uint8)])).tolist() == [[9]]
    assert as_html([]) is None


def test_text_is_shown_as_text() -> None:
    assert as_html("<b>&") == "<pre>&lt;b&gt;&amp;</pre>"


def test_what_is_no_picture_is_not_shown() -> None:
    assert as_html(None) is None
    with pytest.raises(ValueError, match=r"an array of shape \(2, 2, 7\), which is not a picture"):
        as_html(np.zeros((2, 2, 7), np.uint8))
    with pytest.raises(ValueError, match="which is not a picture"):
        as_html(np.zeros((0, 2, 3), np.uint8))


def test_a_large_frame_is_thinned_out() -> None:
    drawn = shown(as_html(np.zeros((10, 3 * MOST_PIXELS, 3), np.uint8)))
    assert drawn.shape == (4, MOST_PIXELS, 3)


def test_noise_that_cannot_be_pressed_is_thinned_out_further() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (MOST_PIXELS, MOST_PIXELS, 3), np.uint8)
    html = as_html(noise)
    assert html is not None
    assert len(html) < MOST_BYTES * 4 / 3 + 200
    assert shown(html).shape == (MOST_PIXELS // 2, MOST_PIXELS // 2, 3)
