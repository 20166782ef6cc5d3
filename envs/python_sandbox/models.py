"""The action, observation and state of the environment.

Client and server share these classes. From the type, bounds and description of each field come the JSON Schema
(`GET /schema`), the form of the web page, and the validation of actions.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from openenv.types import Action, Observation, State

__all__ = ["PythonSandboxAction", "PythonSandboxObservation", "PythonSandboxState"]


class PythonSandboxAction(Action):
    """One of: run code, write, read or list files, submit the solution, which ends the episode."""

    kind: Literal["run", "write", "read", "list", "submit"] = Field(default="run", description="What is to be done")
    code: str = Field(
        default="",
        max_length=50_000,
        description="Python: to be executed (run), or the solution (submit)",
    )
    path: str = Field(default="", max_length=1000, description="A file (write, read) or folder (list), from /desk on")
    content: str = Field(
        default="",
        max_length=100_000,
        description="What to write to the file",
    )

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.kind in ("write", "read") and not self.path:
            raise ValueError(f"kind {self.kind} needs a path")
        if self.kind in ("run", "submit") and not self.code:
            raise ValueError(f"kind {self.kind} needs code")
        return self


class PythonSandboxObservation(Observation):
    """The task, and what became of the action. `reward` and `done` are there: every `Observation` has them."""

    task: str = Field(description="What the solution must do, in words, with examples")
    family: str = Field(default="", description="The name of the function that is asked for")
    status: Literal["ready", "ok", "error", "timeout", "crashed", "limit"] = Field(
        default="ready",
        description="ok; error: the code raised, or the file cannot be had; timeout: it was stopped; crashed: the "
        "interpreter ended; limit: it took too much memory, or too many processes or files",
    )
    reason: str = Field(default="", description="Why it is not ok")
    output: str = Field(default="", description="What the code printed, errors included; what a file contains")
    output_cut: bool = Field(default=False, description="There was more")
    value: str | None = Field(default=None, description="Of the expression that the code ends with, as at a prompt")
    files: list[str] = Field(default_factory=list, description="What a folder contains, with all folders in it")
    exit_code: int | None = Field(default=None, description="Of an interpreter that ended; negative: of a signal")
    restarted: bool = Field(default=False, description="The variables are gone: the interpreter is a new one")
    files_lost: bool = Field(default=False, description="The files are gone too: the sandbox is a new one")
    steps_left: int = Field(ge=0, description="How many actions remain")
    passed: float | None = Field(default=None, description="The share of hidden tests that the solution passed")
    terminated: bool = Field(default=False, description="A solution was submitted")
    truncated: bool = Field(default=False, description="The episode was cut short: no action remains")


class PythonSandboxState(State):
    """What a trainer may look at. The hidden tests are nowhere here."""

    split: str = Field(default="", description="Of the task")
    index: int | None = Field(default=None, description="Of the task in its split")
    family: str = Field(default="", description="The name of the function that is asked for")
    statuses: list[str] = Field(default_factory=list, description="Of the episode's actions")
    passed: float | None = Field(default=None, description="The share of hidden tests that the solution passed")
