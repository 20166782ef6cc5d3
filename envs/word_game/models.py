"""The action, observation and state of the environment.

Client and server share these classes. The JSON Schema (`GET /schema`), the form of the web page and the validation of
actions use the type, bounds and description of each field.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from openenv.types import Action, Observation, State

__all__ = ["LONGEST_GUESS", "Mark", "Row", "WordGameAction", "WordGameObservation", "WordGameState"]

LONGEST_GUESS = 64

Mark = Literal["hit", "near", "miss"]
"""`hit`: the letter is in its place; `near`: it is elsewhere in the word; `miss`: it is not in the word, or not a
further time."""


class WordGameAction(Action):
    """One guess."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"guess": "crane"}, {"guess": "moist"}, {"guess": "pulse"}]}
    )

    guess: str = Field(
        max_length=LONGEST_GUESS,
        description="A word. Case and surrounding spaces do not matter. A guess that is not a word of the game also "
        "costs a turn",
    )


class Row(BaseModel):
    """A marked guess."""

    guess: str = Field(description="The word, in lower case")
    marks: list[Mark] = Field(description="The mark of each letter")


class WordGameObservation(Observation):
    """The board after a reset or a guess. `Observation` already has `reward` and `done`."""

    text: str = Field(description="The whole observation as text, for the prompt of a language model")
    valid: bool = Field(default=True, description="Whether the last guess was a word of the game")
    board: list[Row] = Field(default_factory=list, description="The marked guesses, in order")
    length: int = Field(default=5, ge=3, le=5, description="Number of letters of the hidden word")
    guesses_left: int = Field(default=6, ge=0, le=20, description="Number of remaining guesses")
    terminated: bool = Field(default=False, description="The word was found")
    truncated: bool = Field(default=False, description="No guess remains, and the word was not found")
    answer: str | None = Field(default=None, description="The hidden word, once the game is over")


class WordGameState(State):
    """Data for the trainer that the player does not see."""

    answer: str = Field(default="", description="The hidden word; empty before the first reset")
    task: str | None = Field(default=None, description="Id of the task, such as `train/12`; None without a split")
    length: int = Field(default=5, description="Number of letters of the hidden word")
    lexicon: int = Field(default=0, description="Number of words in the game")
    max_guesses: int = Field(default=6, description="Number of guesses in a game")
    words_only: bool = Field(default=True, description="Whether a guess must be a word of the game")
    candidates: int = Field(default=0, description="Number of words that fit all marks so far")
