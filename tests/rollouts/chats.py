"""Environments that speak with a model, one for each way in which an answer becomes an action."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from openenv import Action, Chat, Environment, JsonAnswer, Observation, RegexAnswer, State, TagAnswer


class Mark(Action):
    """Marks a field of the board."""

    row: int = Field(ge=0, le=2, description="From the top")
    column: int = Field(ge=0, le=2)
    note: str | None = None


class Board(Observation):
    board: str = "..."
    turn: dict[str, int] = {}
    hint: str | None = None


class Undeclared(Environment[Mark, Board, State]):
    """A board to mark."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self._state = State()

    def reset(self, seed: int | None = None, **kwargs: Any) -> Board:
        self._state = State()
        return Board(turn={"number": 0})

    def step(self, action: Mark, **kwargs: Any) -> Board:
        self._state.step_count += 1
        board = f"{action.row}{action.column}{action.note or ''}"
        done = self._state.step_count >= 3
        return Board(board=board, turn={"number": self._state.step_count}, done=done, reward=1.0)

    @property
    def state(self) -> State:
        return self._state


class Tag(Undeclared):
    """A board to mark."""

    chat = Chat(
        system="Mark the board. End with <mark>{...}</mark>.",
        observation="Board {board}\n{{turn}} {turn.number} {hint}",
        answer=TagAnswer(tag="mark"),
    )


class Json(Tag):
    chat = Chat(answer=JsonAnswer(), max_invalid=1, invalid="No: {error} {{}}")


class Regex(Tag):
    chat = Chat(answer=RegexAnswer(pattern=r"mark (?P<row>\S+) (?P<column>\S+)(?: as (?P<note>\w+))?"))


class Say(Action):
    """Says something."""

    kind: Literal["say"] = "say"
    words: str


class StepAction(Action):
    """Goes somewhere."""

    kind: Literal["go"]
    way: list[tuple[int, int]]


Words = Annotated[Say | StepAction, Field(discriminator="kind")]


class Talk(Environment[Any, Board, State]):
    """Says and goes."""

    chat = Chat()

    def reset(self, **kwargs: Any) -> Board:
        return Board()

    def step(self, action: Say | StepAction, **kwargs: Any) -> Board:
        return Board(board=repr(action), done=True)

    @property
    def state(self) -> State:
        return State()
