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
        max_length=LONGEST_ANSWER, description="Only the answer, in the form that the question requires"
    )


class ReasoningObservation(Observation):
    """The question, and the score of the last answer. `Observation` already has `reward` and `done`."""

    question: str = Field(description="The question, with the form of the answer")
    task: str = Field(description="The dataset of the question, such as `leg_counting`")
    score: float = Field(default=0.0, ge=0, le=1, description="Score of the last answer; 1 is right")
    best: float = Field(default=0.0, ge=0, le=1, description="The best score so far: the sum of the rewards")
    correct: bool = Field(default=False, description="Whether the last answer was right")
    tries_left: int = Field(default=1, ge=0, le=MOST_TRIES, description="Number of remaining answers")
    note: str = Field(
        default="", description="Why an answer could not be scored, so that it is wrong; empty otherwise"
    )
    terminated: bool = Field(default=False, description="The answer was right, or no answer remains")


class ReasoningState(State):
    """Data for the trainer that the agent does not see."""

    id: str = Field(default="", description="Id of the question, such as `train/leg_counting/12`")
    task: str = Field(default="", description="The dataset")
    category: str = Field(default="", description="Category of the dataset, such as `arithmetic`")
    split: str = Field(default="", description="`train` or `test`")
    index: int = Field(default=0, description="Index of the question in the dataset and split")
    answer: str | None = Field(default=None, description="A right answer; None if the dataset has none")
    tries: int = Field(default=1, description="Number of allowed answers")
    best: float = Field(default=0.0, description="The best score so far")
