"""What is wanted of the Hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import InvalidArgument

__all__ = ["SHORTEST", "SpaceRequest", "check_variables"]

SHORTEST = 8
"""Characters of a secret that is looked for in what others can read: shorter ones are in many a word."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class SpaceRequest:
    """How a project is to be published.

    Attributes:
        repo_id: Name of the Space, with or without its owner; None: as the manifest says, of the token's user.
        base_image: Image to build on; None: the Dockerfile's own.
        interface: Whether it has the web UI.
        private: Whether nobody else may see it. A Space that is public already is made private first.
        create_pr: Whether to open a pull request instead of changing the Space.
        exclude: File with a glob a line of what is not uploaded.
        delete: Globs of files of the Space to delete in the same commit.
        hardware: Its hardware; None leaves it as it is.
        count: How many Spaces: name-1 to name-N if there are several.
        variables: Public variables; they win over the `variables:` of the manifest.
        secrets: Variables that nobody can read there.
        check: Whether the project is checked first.
    """

    repo_id: str | None = None
    base_image: str | None = None
    interface: bool = True
    private: bool = False
    create_pr: bool = False
    exclude: Path | None = None
    delete: tuple[str, ...] = ()
    hardware: str | None = None
    count: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    check: bool = True

    def __post_init__(self) -> None:
        check_variables(self.variables, self.secrets)
        if self.count < 1:
            raise InvalidArgument(f"count must be at least 1, got {self.count}")
        if self.create_pr and (self.variables or self.secrets or self.hardware):
            raise InvalidArgument(
                "a pull request changes files only: leave out --create-pr, or --env-var, --secret and --hardware"
            )


def check_variables(variables: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Raises `InvalidArgument` for names that are none, and for a name that is both."""
    for name in (*variables, *secrets):
        if not _VARIABLE.fullmatch(name):
            raise InvalidArgument(f"{name!r} is no name of a variable: write letters, digits and '_', as MODEL_ID")
    if both := sorted(variables.keys() & secrets.keys()):
        raise InvalidArgument(f"{', '.join(both)}: a variable cannot be public and secret: leave out one of the two")
