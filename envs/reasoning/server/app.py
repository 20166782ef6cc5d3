"""The app: `openenv serve .` serves it, and so does any other ASGI server."""

from __future__ import annotations

from openenv import create_app

from .bank import question, score
from .reasoning_environment import ReasoningEnvironment
from .tasks import MIXED

# The words and pictures of all datasets are read now, in a second and a half: no session waits for them, and those in
# processes share them.
for name in MIXED:
    score(question(name, "train", 0), "")

# The class, and not an instance: each session gets one of its own.
app = create_app(ReasoningEnvironment, name="reasoning")
