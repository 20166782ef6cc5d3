"""The name of a Space, and the options of a push."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from ...errors import InvalidArgument
from ...settings import ClientSettings

# As huggingface_hub checks it, said in our words and before anything is asked for.
_PART = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_ADDRESS = re.compile(r"(?:https?://[^/]+/)?(?:spaces/)?(?P<name>[^?#]*?)(?:/(?:tree|blob)/.*)?/?(?:[?#].*)?")
LONGEST = 96


class SpaceName(NamedTuple):
    """The name of a Space.

    Attributes:
        owner: The user or organization; "" for the user of the token.
        name: What it is called there.
    """

    owner: str
    name: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Reads `name`, `owner/name`, or the address of a Space's page.

        Raises:
            InvalidArgument: It is none of them.
        """
        match = _ADDRESS.fullmatch(text.strip())
        owner, slash, name = match["name"].rpartition("/") if match else ("", "", "")
        faults = [part for part in ([owner] if slash else []) + [name] if not _PART.fullmatch(part)]
        if faults or name.endswith(".git") or len(f"{owner}/{name}") > LONGEST:
            raise InvalidArgument(
                f"{text!r} is no name of a Space: write owner/name, of letters, digits, '-', '_' and '.', with "
                f"'-' and '.' neither at an end nor twice in a row, and no longer than {LONGEST}"
            )
        return cls(owner, name)

    @classmethod
    def whole(cls, text: str) -> Self:
        """Reads the name of a Space that is there, with its owner.

        Raises:
            InvalidArgument: It is none.
        """
        name = cls.of(text)
        if not name.owner:
            raise InvalidArgument(f"{text!r} has no owner: write owner/{name.name}")
        return name

    def with_owner(self, owner: str) -> Self:
        """The same with an owner, if it has none."""
        return self if self.owner else self._replace(owner=owner)

    def numbered(self, number: int) -> Self:
        """One of several: its number is at the end of its name."""
        return type(self).of(str(self._replace(name=f"{self.name}-{number}")))

    @property
    def host(self) -> str:
        """The first part of the name of the host that serves it."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.owner}-{self.name}".lower()).strip("-")

    @property
    def url(self) -> str:
        """Where it is served."""
        return f"https://{self.host}.{ClientSettings.read().hub_registry.removeprefix('registry.')}"

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" if self.owner else self.name


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
        private: Whether others cannot see it. A Space that is public already is made private first.
        create_pr: Whether to open a pull request instead of changing the Space.
        exclude: File with a glob a line of what is not uploaded.
        delete: Globs of files of the Space to delete in the same commit.
        hardware: Its hardware; None leaves it as it is.
        count: How many Spaces: name-1 to name-N if there are several.
        variables: Public variables; they win over the `variables:` of the manifest.
        secrets: Variables that cannot be read there.
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
