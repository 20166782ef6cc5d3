"""The action, observation and state of the environment.

Client and server share these classes. From the type, bounds and description of each field come the JSON Schema
(`GET /schema`), the form of the web page, and the validation of actions.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from openenv.types import Action, Observation, State

__all__ = ["LONGEST_GUESS", "Mark", "Row", "WordGameAction", "WordGameObservation", "WordGameState"]

LONGEST_GUESS = 64

Mark = Literal["hit", "near", "miss"]
"""`hit`: the letter is in its place; `near`: it is elsewhere in the word; `miss`: it is not, or not once more."""


class WordGameAction(Action):
    """One guess."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"guess": "crane"}, {"guess": "moist"}, {"guess": "pulse"}]}
    )

    guess: str = Field(
        max_length=LONGEST_GUESS,
        description="A word. Case and surrounding spaces do not matter; a guess that is not a word of the game also "
        "costs a turn",
    )


class Row(BaseModel):
    """A guess that was marked."""

    guess: str = Field(description="The word, in small letters")
    marks: list[Mark] = Field(description="One for each letter")


class WordGameObservation(Observation):
    """The answer to a command. `Observation` already has `reward` and `done`."""

    text: str = Field(description="The same in words, as a prompt for a language model")
    valid: bool = Field(default=True, description="Whether the last guess was a word of the game")
    board: list[Row] = Field(default_factory=list, description="The marked guesses, the first one first")
    length: int = Field(default=5, ge=3, le=5, description="Letters of the hidden word")
    guesses_left: int = Field(default=6, ge=0, le=20, description="Number of remaining guesses")
    terminated: bool = Field(default=False, description="The word was found")
    truncated: bool = Field(default=False, description="No guess remains")
    answer: str | None = Field(default=None, description="The hidden word, once the game is over")


class WordGameState(State):
    """Data for the trainer that the player does not see."""

    answer: str = Field(default="", description="The hidden word; empty before the first reset")
    task: str | None = Field(default=None, description="Which task it is, such as `train/12`; None without a split")
    length: int = Field(default=5, description="Letters of the hidden word")
    lexicon: int = Field(default=0, description="How many words the game has")
    max_guesses: int = Field(default=6, description="How many guesses there were at the beginning")
    words_only: bool = Field(default=True, description="Whether a guess must be a word of the game")
    candidates: int = Field(default=0, description="How many words would explain all marks so far")
