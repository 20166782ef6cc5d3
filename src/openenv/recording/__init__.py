"""Episodes on disk: one line for each transition, safe against a crash, off the path of the step."""

from typing import TYPE_CHECKING

from ..lazy import lazy
from .recorder import Limits, Recorder, check_folder
from .tap import Source, Subject, Tap, Tapping

if TYPE_CHECKING:
    from .reader import Episode, Recording, Transition

__all__ = [
    "Episode",
    "Limits",
    "Recorder",
    "Recording",
    "Source",
    "Subject",
    "Tap",
    "Tapping",
    "Transition",
    "check_folder",
]

# Who records reads nothing.
__getattr__, __dir__ = lazy(
    __name__, dict.fromkeys(("Episode", "Recording", "Transition"), "openenv.recording.reader")
)
