"""Record episodes on disk: one line per transition, written off the path of the step, that survives a crash."""

from typing import TYPE_CHECKING

from .._imports import lazy
from .recorder import Recorder, RecordingLimits, check_folder
from .tap import DeferredRecords, Source, Subject, Tap, TapFactory

if TYPE_CHECKING:
    from .reader import Episode, Recording
    from .transition import Transition

__all__ = [
    "DeferredRecords",
    "Episode",
    "Recorder",
    "Recording",
    "RecordingLimits",
    "Source",
    "Subject",
    "Tap",
    "TapFactory",
    "Transition",
    "check_folder",
]

# A recorder does not need the reader.
__getattr__, __dir__ = lazy(
    __name__, dict.fromkeys(("Episode", "Recording", "Transition"), "openenv.recording.reader")
)
