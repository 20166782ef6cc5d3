"""What follows the end of an episode in a vector: Gymnasium's word for it, and ours."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Literal

from ...errors import InvalidArgument

__all__ = ["AutoresetMode", "Mode", "mode_of", "word_of"]

Mode = Literal["next_step", "same_step", "disabled"]

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode
else:
    try:
        from gymnasium.vector import AutoresetMode
    except ImportError:  # Gymnasium 1.0 knows only the first, and has no name for it

        class AutoresetMode(Enum):
            """The names that later versions of Gymnasium have."""

            NEXT_STEP = "NextStep"
            SAME_STEP = "SameStep"
            DISABLED = "Disabled"


_MODES: dict[str, Mode] = {"NextStep": "next_step", "SameStep": "same_step", "Disabled": "disabled"}


def mode_of(given: AutoresetMode | str) -> AutoresetMode:
    """A mode by itself, by its value, or by the client's word for it. Raises `InvalidArgument` for what is none."""
    if isinstance(given, AutoresetMode):
        return given
    for value, word in _MODES.items():
        if given in {value, word}:
            return AutoresetMode(value)
    raise InvalidArgument(
        f"autoreset_mode={given!r}: one of {', '.join(_MODES)}, or a gymnasium.vector.AutoresetMode"
    )


def word_of(mode: AutoresetMode) -> Mode:
    """What `VectorEnvClient` calls it."""
    return _MODES[str(mode.value)]
