"""The action, observation and state of the environment.

Client and server share these classes. From the type, bounds and description of each field come the JSON Schema
(`GET /schema`), the form of the web page, and the validation of actions.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from openenv.types import Action, Observation, State

__all__ = ["RepoRepairAction", "RepoRepairObservation", "RepoRepairState"]

NEEDED = {"read": ("path",), "replace": ("path", "old"), "write": ("path",), "run": ("command",)}


class RepoRepairAction(Action):
    """List, read or change files; run the tests or a command; or submit the repair, which ends the episode."""

    kind: Literal["list", "read", "replace", "write", "test", "run", "submit"] = Field(
        default="list", description="The kind of action"
    )
    path: str = Field(
        default="", max_length=200, description="File, relative to the repository (read, replace, write)"
    )
    old: str = Field(default="", max_length=20_000, description="Text that the file has exactly once (replace)")
    new: str = Field(default="", max_length=20_000, description="Text in its place (replace)")
    content: str = Field(default="", max_length=50_000, description="The whole new text of the file (write)")
    command: str = Field(
        default="", max_length=20_000, description="Shell command that runs in a copy of the repository (run)"
    )

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        for name in NEEDED.get(self.kind, ()):
            if not getattr(self, name):
                raise ValueError(f"kind {self.kind} needs {name}")
        return self


class RepoRepairObservation(Observation):
    """The task, and the result of the action. `Observation` already has `reward` and `done`."""

    task: str = Field(description="The report of the fault")
    status: Literal["ready", "ok", "error", "timeout"] = Field(
        default="ready",
        description="ok; error: the action is not possible, or tests or command failed; timeout: it was stopped",
    )
    output: str = Field(default="", description="List of files, text of a file, what was printed, or why it failed")
    exit_code: int | None = Field(default=None, description="Exit code of the tests or the command")
    steps_left: int = Field(ge=0, description="Number of remaining actions")
    passed: float | None = Field(default=None, description="Share of hidden tests that the repair passed")
    terminated: bool = Field(default=False, description="A repair was submitted")
    truncated: bool = Field(default=False, description="No action remains, and the last one was not `submit`")


class RepoRepairState(State):
    """Data for the trainer, without the hidden tests."""

    split: str = Field(default="", description="Split of the task")
    index: int | None = Field(default=None, description="Index of the task in its split")
    changed: list[str] = Field(default_factory=list, description="Files that differ from those of the task")
    passed: float | None = Field(default=None, description="Share of hidden tests that the repair passed")
