"""Where one environment runs: on the event loop, or on a thread of its own."""

from .executor import Done, Executor, Operation, describe
from .forking import Copied, Seed, load, save
from .inline import InlineExecutor
from .loop import LoopExecutor
from .mailbox import Mailbox
from .profile import EnvironmentProfile, Execution, class_of, profile_of
from .scheduling import give_way
from .thread import ThreadExecutor

__all__ = [
    "Copied",
    "Done",
    "EnvironmentProfile",
    "Execution",
    "Executor",
    "InlineExecutor",
    "LoopExecutor",
    "Mailbox",
    "Operation",
    "Seed",
    "ThreadExecutor",
    "class_of",
    "describe",
    "give_way",
    "load",
    "profile_of",
    "save",
]
