"""What tests of lost connections have in common."""

from __future__ import annotations

from .scripted import fault

__all__ = ["GONE", "OPENED", "SHORT_S", "WINDOW_S"]

WINDOW_S = 10
SHORT_S = 0.2
OPENED = {"ok": True, "seq": 0}
GONE = fault("UnknownSession", "no such session", "SESSION_ERROR")
