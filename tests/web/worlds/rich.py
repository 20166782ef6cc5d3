"""An environment with every kind of field, whose text tries to be a script wherever it is shown."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from enum import StrEnum
from typing import Any, Literal
from uuid import uuid4

from pydantic import BaseModel, Field, field_validator

from openenv.environment import Environment
from openenv.server import create_app
from openenv.types import Action, EnvironmentMetadata, Observation, State

MOST_STEPS = 12
# Sets what tests look for in the page, if it ever runs there.
ATTACK = "<img src=x onerror='window.top.attacked=1;window.attacked=1'><script>window.attacked=1</script>"
README = f"""---
title: Rich
---
# Rich

A world for the *page*. {ATTACK} <a href="javascript:window.attacked=1">click</a>

| field | kind |
|---|---|
| move | enum |

```python
env.step({{"move": "north"}})
```
<iframe srcdoc="<script>top.attacked=1</script>"></iframe><style>body{{display:none}}</style>
"""


class Move(StrEnum):
    """Where to."""

    NORTH = "north"
    SOUTH = "south"
    WAIT = "wait"


class Point(BaseModel):
    """A place on the board."""

    x: int = Field(ge=0, le=9, description="Column")
    y: int = Field(ge=0, le=9, description="Row")


class RichAction(Action):
    """One of everything."""

    move: Move = Move.WAIT
    steps: int = Field(default=1, ge=1, le=5, description="How far")
    force: float | None = Field(default=None, gt=0, lt=10)
    careful: bool = Field(default=False, description="Look first")
    target: Point | None = None
    path: list[Point] = Field(default_factory=list, max_length=4)
    tags: list[str] = Field(default_factory=list)
    kind: Literal["real", "dream"] = "real"
    message: str = Field(default="", description="Said aloud")
    extra: dict[str, Any] = Field(default_factory=dict)

    @field_validator("message")
    @classmethod
    def _is_polite(cls, message: str) -> str:
        if message == "rude":
            raise ValueError("that is rude")
        return message


class RichObservation(Observation):
    """What came of it."""

    said: str
    careful: bool
    board: list[list[int]]
    frame: str = Field(json_schema_extra={"contentMediaType": "image/png", "contentEncoding": "base64"})
    heard: dict[str, Any] = Field(default_factory=dict)


class RichEnvironment(Environment[RichAction, RichObservation, State]):
    """Walks a small board."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def __init__(self) -> None:
        super().__init__()
        self._state = State(episode_id=uuid4().hex, step_count=0)
        self._random = random.Random(0)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        difficulty: int = 1,
        name: str = "walker",
        **kwargs: Any,
    ) -> RichObservation:
        """Begins a walk.

        Args:
            difficulty: How hard it is.
            name: Who walks.
        """
        self._random = random.Random(seed)
        self._state = State(episode_id=episode_id or uuid4().hex, step_count=0)
        self._state.name = name
        return self._see(f"{name} begins at difficulty {difficulty}", False, None)

    def step(self, action: RichAction, timeout_s: float | None = None, **kwargs: Any) -> RichObservation:
        """Walks."""
        if action.message == "fail":
            raise RuntimeError("the walker fell")
        self._state.step_count += 1
        heard = action.model_dump(mode="json", exclude={"metadata"})
        return self._see(action.message or ATTACK, action.careful, self._random.random() - 0.3, heard)

    @property
    def state(self) -> State:
        return self._state

    def render_web(self, obs: RichObservation) -> str:
        rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in obs.board)
        return f"<h3>Board</h3><table>{rows}</table><p id=said>{obs.said}</p>{ATTACK}<script>top.attacked=2</script>"

    def web_actions(self, obs: RichObservation) -> list[tuple[str, dict[str, Any]]]:
        return [("North", {"move": "north"}), ("Far south", {"move": "south", "steps": 5})]

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(
            name="rich", description="One of everything", version="0.3.0", author="tests", readme_content=README
        )

    def _see(
        self, said: str, careful: bool, reward: float | None, heard: dict[str, Any] | None = None
    ) -> RichObservation:
        board = [[self._random.randrange(10) for _ in range(6)] for _ in range(4)]
        return RichObservation(
            said=said,
            careful=careful,
            board=board,
            frame=_picture(board),
            heard=heard or {},
            reward=reward,
            done=self._state.step_count >= MOST_STEPS,
        )


def _picture(board: list[list[int]]) -> str:
    """A PNG of eight pixels a cell, in base64."""
    rows = [b"\0" + b"".join(bytes((cell * 25, 120, 180)) * 8 for cell in row) for row in board for _ in range(8)]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", len(board[0]) * 8, len(rows), 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


app = create_app(RichEnvironment, RichAction, RichObservation, env_name="rich", max_concurrent_envs=16)
