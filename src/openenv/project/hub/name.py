"""What Spaces are called."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from ...errors import InvalidArgument
from ...settings import ClientSettings

__all__ = ["SpaceName"]

# As huggingface_hub checks it, said in our words and before anything is asked for.
_PART = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_ADDRESS = re.compile(r"(?:https?://[^/]+/)?(?:spaces/)?(?P<name>[^?#]*?)(?:/(?:tree|blob)/.*)?/?(?:[?#].*)?")
LONGEST = 96


class SpaceName(NamedTuple):
    """The name of a Space.

    Attributes:
        owner: The user or organization; "" for whoever asks.
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
        """Reads the name of a Space that is there, which says whose it is.

        Raises:
            InvalidArgument: It is none.
        """
        name = cls.of(text)
        if not name.owner:
            raise InvalidArgument(f"{text!r} has no owner: write owner/{name.name}")
        return name

    def of_owner(self, owner: str) -> Self:
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
