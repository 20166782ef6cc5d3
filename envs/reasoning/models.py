"""The action, observation and state of the environment.

Client and server share these classes. From the type, bounds and description of each field come the JSON Schema
(`GET /schema`), the form of the web page, and the validation of actions.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field

from openenv.types import Action, Observation, State

__all__ = ["LONGEST_ANSWER", "MOST_TRIES", "ReasoningAction", "ReasoningObservation", "ReasoningState"]

LONGEST_ANSWER = 20_000
MOST_TRIES = 10


class ReasoningAction(Action):
    """An answer to the question."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"answer": "42"}, {"answer": "Yes"}, {"answer": "[1, 2]"}]}
    )

    answer: str = Field(
        max_length=LONGEST_ANSWER, description="The answer alone, in the form that the question asks for"
    )


class ReasoningObservation(Observation):
    """The question, and what the last answer was worth. `reward` and `done` are there already."""

    question: str = Field(description="The question, and in which form it wants its answer")
    task: str = Field(description="The dataset of the question, such as `leg_counting`")
    score: float = Field(default=0.0, ge=0, le=1, description="What the last answer is worth; 1 is right")
    best: float = Field(default=0.0, ge=0, le=1, description="The best score so far: the sum of the rewards")
    correct: bool = Field(default=False, description="Whether the last answer was right")
    tries_left: int = Field(default=1, ge=0, le=MOST_TRIES, description="How many answers may still be given")
    note: str = Field(default="", description="Why an answer could not be scored, and counts as wrong; else empty")
    terminated: bool = Field(default=False, description="Answered rightly, or as often as allowed")


class ReasoningState(State):
    """What a trainer may look at, and whoever answers is not shown."""

    id: str = Field(default="", description="Which question it is, such as `train/leg_counting/12`")
    task: str = Field(default="", description="The dataset")
    category: str = Field(default="", description="What kind of dataset, such as `arithmetic`")
    split: str = Field(default="", description="`train` or `test`")
    index: int = Field(default=0, description="Which question of the dataset in this split")
    answer: str | None = Field(default=None, description="A right answer; None where the dataset gives none")
    tries: int = Field(default=1, description="How often it may be answered")
    best: float = Field(default=0.0, description="The best score so far")
