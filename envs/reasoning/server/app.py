"""The ASGI app. `openenv serve .` and other ASGI servers serve it."""

from __future__ import annotations

from openenv import create_app

from .bank import question, score
from .reasoning_environment import ReasoningEnvironment
from .tasks import MIXED

# Reads the words and pictures of all datasets now, in a second and a half. So no session waits for them, and sessions
# in processes share them.
for name in MIXED:
    score(question(name, "train", 0), "")

# Pass the class, not an instance: each session gets a new instance.
app = create_app(ReasoningEnvironment, name="reasoning")
