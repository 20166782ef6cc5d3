"""The board as HTML, for the web page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from ..models import Row

__all__ = ["board_html"]

_STYLE = """
.wg { font-family: system-ui, sans-serif; display: flex; flex-wrap: wrap; gap: 1rem 2rem;
  justify-content: center; align-items: center; text-align: center; color: #1f2933 }
.wg .row { display: flex; justify-content: center; gap: .35rem; margin-bottom: .35rem }
.wg .tile { width: 2.4rem; height: 2.4rem; font-size: 1.3rem; font-weight: 700; border-radius: .35rem;
  background: #fff; border: 2px solid #d3d8de; box-sizing: border-box; line-height: calc(2.4rem - 4px) }
.wg .hit { background: #2f9e62; border-color: #2f9e62; color: #fff }
.wg .near { background: #d9a514; border-color: #d9a514; color: #fff }
.wg .miss { background: #7b8794; border-color: #7b8794; color: #fff }

.wg .keys .row { gap: .2rem; margin-bottom: .2rem }
.wg .key { min-width: 1.7rem; padding: .3rem 0; font-size: .85rem; font-weight: 600; border-radius: .25rem;
  background: #e4e8ec } .wg .key.hit, .wg .key.near, .wg .key.miss { border: 0 }
.wg .key.hit { background: #2f9e62 } .wg .key.near { background: #d9a514 } .wg .key.miss { background: #a7b0ba }
.wg .note { margin-top: .8rem; min-height: 1.4em }
.wg .won { color: #1d7a49; font-weight: 700 } .wg .lost, .wg .bad { color: #b3261e; font-weight: 600 }
"""
_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_BEST = {"hit": 2, "near": 1, "miss": 0}


def board_html(obs: Any, max_guesses: int) -> str:
    """The marked guesses, empty rows for the remaining ones, the keyboard, and a line with the state of the game."""
    # The web page passes the rows as plain data.
    board = [Row.model_validate(row) for row in obs.board]
    rows = [_row(list(zip(row.guess, row.marks, strict=True))) for row in board]
    empty = 0 if obs.done else max_guesses - len(rows)
    rows += [_row([("", "")] * obs.length)] * min(empty, obs.guesses_left)
    shown = f"<div>{''.join(rows)}</div><div>{_keyboard(board)}{_note(obs)}</div>"
    return f'<style>{_STYLE}</style><div class="wg">{shown}</div>'


def _row(tiles: list[tuple[str, str]]) -> str:
    shown = "".join(f'<div class="tile {mark}">{escape(letter.upper())}</div>' for letter, mark in tiles)
    return f'<div class="row">{shown}</div>'


def _keyboard(board: Sequence[Row]) -> str:
    best: dict[str, str] = {}
    for row in board:
        for letter, mark in zip(row.guess, row.marks, strict=True):
            best[letter] = max(mark, best.get(letter, mark), key=_BEST.__getitem__)
    lines = (
        "".join(f'<div class="key {best.get(letter, "")}">{letter.upper()}</div>' for letter in line)
        for line in _KEYS
    )
    return '<div class="keys">' + "".join(f'<div class="row">{line}</div>' for line in lines) + "</div>"


def _note(obs: Any) -> str:
    if obs.terminated:
        guesses = len(obs.board)
        return f'<p class="note won">Found with {guesses} {"guess" if guesses == 1 else "guesses"}.</p>'
    if obs.truncated:
        return f'<p class="note lost">No guess remains. The word was {escape(str(obs.answer).upper())}.</p>'
    left = f"{obs.guesses_left} {'guess' if obs.guesses_left == 1 else 'guesses'} left."
    if not obs.valid:
        return f'<p class="note"><span class="bad">That is not a word of the game; it cost a turn.</span> {left}</p>'
    return f'<p class="note">{left}</p>'
