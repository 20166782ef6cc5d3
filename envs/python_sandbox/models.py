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
    """Run code; write, read or list files; or submit the solution, which ends the episode."""

    kind: Literal["run", "write", "read", "list", "submit"] = Field(default="run", description="The kind of action")
    code: str = Field(
        default="",
        max_length=50_000,
        description="Python code to execute (run), or the solution (submit)",
    )
    path: str = Field(
        default="",
        max_length=1000,
        description="File (write, read) or folder (list); a relative path begins at /desk",
    )
    content: str = Field(
        default="",
        max_length=100_000,
        description="Text to write to the file",
    )

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.kind in ("write", "read") and not self.path:
            raise ValueError(f"kind {self.kind} needs a path")
        if self.kind in ("run", "submit") and not self.code:
            raise ValueError(f"kind {self.kind} needs code")
        return self


class PythonSandboxObservation(Observation):
    """The task, and the result of the action. `Observation` already has `reward` and `done`."""

    task: str = Field(description="The task in words, with examples")
    family: str = Field(default="", description="Name of the required function")
    status: Literal["ready", "ok", "error", "timeout", "crashed", "limit"] = Field(
        default="ready",
        description="ok; error: the code raised, or the file cannot be read or written; timeout: it was stopped; "
        "crashed: the interpreter ended; limit: it used too much memory, or too many processes or files",
    )
    reason: str = Field(default="", description="Why the status is not ok")
    output: str = Field(default="", description="Output of the code, with its errors; or the content of a file")
    output_cut: bool = Field(default=False, description="Whether the output was cut")
    value: str | None = Field(default=None, description="Value of the expression at the end of the code, if any")
    files: list[str] = Field(default_factory=list, description="Files of a folder and of its subfolders")
    exit_code: int | None = Field(
        default=None, description="Exit code of an interpreter that ended; negative for a signal"
    )
    restarted: bool = Field(default=False, description="The variables are lost: a new interpreter runs")
    files_lost: bool = Field(default=False, description="The files are lost too: a new sandbox runs")
    steps_left: int = Field(ge=0, description="Number of remaining actions")
    passed: float | None = Field(default=None, description="Share of hidden tests that the solution passed")
    terminated: bool = Field(default=False, description="A solution was submitted")
    truncated: bool = Field(default=False, description="The episode was cut short: no action remains")


class PythonSandboxState(State):
    """Data for the trainer, without the hidden tests."""

    split: str = Field(default="", description="Split of the task")
    index: int | None = Field(default=None, description="Index of the task in its split")
    family: str = Field(default="", description="Name of the required function")
    statuses: list[str] = Field(default_factory=list, description="Status of each action of the episode")
    passed: float | None = Field(default=None, description="Share of hidden tests that the solution passed")
