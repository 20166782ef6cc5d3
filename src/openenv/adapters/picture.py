"""What an environment renders, as HTML for the web UI: frames as pictures, text as text."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["as_html", "png"]

# Larger pictures are thinned out: the page shows none that is wider, and has a limit for the whole.
MOST_PIXELS = 1024
MOST_BYTES = 2 * 1024 * 1024
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # by the number of channels: grey, grey and alpha, RGB, RGBA


def as_html(rendered: Any) -> str | None:
    """What `render()` returned, as HTML.

    Args:
        rendered: A frame (an array of height x width, with 1 to 4 channels or none), a list of frames, of which
            the last is shown, or text.

    Returns:
        A picture, or the text; None where there is nothing to show.

    Raises:
        ValueError: An array of another shape.
    """
    if isinstance(rendered, list | tuple):
        return as_html(rendered[-1]) if rendered else None
    if isinstance(rendered, str):
        return f"<pre>{html.escape(rendered)}</pre>"
    if not isinstance(rendered, np.ndarray):
        return None
    frame = _eight_bits(rendered)
    step = max(1, -(-max(frame.shape[:2]) // MOST_PIXELS))
    written = png(frame[::step, ::step])
    while len(written) > MOST_BYTES:
        step *= 2
        written = png(frame[::step, ::step])
    text = base64.b64encode(written).decode()
    return f'<img alt="the environment" style="max-width: 100%" src="data:image/png;base64,{text}">'


def png(frame: NDArray[np.uint8]) -> bytes:
    """A frame as a PNG file.

    Args:
        frame: Of shape (height, width, channels), with 1 to 4 channels.
    """
    height, width, channels = frame.shape
    # Each row begins with the number of its filter: 0, none.
    rows = np.zeros((height, 1 + width * channels), dtype=np.uint8)
    rows[:, 1:] = frame.reshape(height, width * channels)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    parts = (_part(b"IHDR", header), _part(b"IDAT", zlib.compress(rows.tobytes(), 1)), _part(b"IEND", b""))
    return _SIGNATURE + b"".join(parts)


def _part(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _eight_bits(frame: NDArray[Any]) -> NDArray[np.uint8]:
    """A frame with channels, of bytes. Fractions are taken for shares of the full brightness."""
    if frame.ndim == 2:
        frame = frame[:, :, np.newaxis]
    if frame.ndim != 3 or frame.shape[2] not in _COLOUR_TYPES or 0 in frame.shape:
        raise ValueError(f"render() returned an array of shape {frame.shape}: it is no picture")
    if frame.dtype == np.bool_ or frame.dtype.kind == "f":
        frame = np.clip(np.nan_to_num(frame.astype(np.float64)), 0, 1) * 255
    bytes_alone: NDArray[np.uint8] = np.clip(frame, 0, 255).astype(np.uint8)
    return bytes_alone
