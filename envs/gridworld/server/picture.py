"""The level as a picture (SVG), for the web page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["picture"]

SIDE = 40
_GROUND = {"#": "#4a5568", "~": "#e4572e"}
_PLAIN = "#f4f1ea"
_SHAPES = {
    "~": '<path d="M6 16q7-7 14 0t14 0M6 27q7-7 14 0t14 0" fill="none" stroke="#ffd166" stroke-width="3"/>',
    "G": '<path d="M13 33V7l17 7-17 7" fill="#2f9e62" stroke="#1f6f45" stroke-width="2" stroke-linejoin="round"/>',
    "k": '<g fill="none" stroke="#b8860b" stroke-width="4"><circle cx="13" cy="20" r="6"/>'
    '<path d="M19 20h15M29 20v7M34 20v6"/></g>',
    "D": '<rect x="6" y="3" width="28" height="34" rx="2" fill="#8a5a2b"/>'
    '<circle cx="28" cy="21" r="3" fill="#ffd166"/>',
    "/": '<path d="M6 3h6v34H6z" fill="#8a5a2b"/>',
    "@": '<circle cx="20" cy="20" r="13" fill="#2b6cb0"/>'
    '<circle cx="15.5" cy="17" r="2.4" fill="#fff"/><circle cx="24.5" cy="17" r="2.4" fill="#fff"/>'
    '<path d="M14 24q6 5 12 0" fill="none" stroke="#fff" stroke-width="2"/>',
}


def picture(obs: Any) -> str:
    """An SVG of the observation, and a line with the state of the episode."""
    rows: Sequence[str] = obs.rows
    width = SIDE * len(rows)
    cells = "".join(_cell(sign, row, column) for row, signs in enumerate(rows) for column, sign in enumerate(signs))
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -2 {width + 4} {width + 4}" role="img" '
        f'aria-label="the level from above" style="width:100%;max-width:240px;background:#2d3748">'
        f"{cells}</svg>"
    )
    style = "font-family:system-ui,sans-serif;text-align:center;margin-top:-.3em"
    return f'<div style="{style}">{drawn}<p>{_note(obs)}</p></div>'


def _cell(sign: str, row: int, column: int) -> str:
    ground = _GROUND.get(sign, _PLAIN)
    return (
        f'<g transform="translate({column * SIDE} {row * SIDE})">'
        f'<rect x="1" y="1" width="{SIDE - 2}" height="{SIDE - 2}" fill="{ground}"/>{_SHAPES.get(sign, "")}</g>'
    )


def _note(obs: Any) -> str:
    if obs.terminated:
        won = tuple(obs.position) == tuple(obs.goal)
        return "<b>The flag is reached.</b>" if won else "<b>Burnt in the lava.</b>"
    if obs.truncated:
        return "<b>No step remains.</b>"
    return f"{'You carry the key. ' if obs.has_key else ''}{obs.steps_left} steps left."
