"""Looking at what was drawn."""

from __future__ import annotations

import struct

__all__ = ["EXTERNAL", "is_png", "size_of"]

# What would make a browser fetch something.
EXTERNAL = ("http://", "https://", "//", "<script", "<link", "@import", "url(")


def is_png(data):
    return data.startswith(b"\x89PNG\r\n\x1a\n") and data.rstrip().endswith(b"IEND\xaeB`\x82")


def size_of(png):
    """Width and height in pixels."""
    return struct.unpack(">II", png[16:24])
