"""A Space of somebody's becomes one of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import Forbidden, OpenEnvError, UsageError
from .crew import outcome
from .hub import Hub, Patience
from .name import SpaceName
from .refusal import missing
from .request import check_variables
from .space import Settings, Space, with_hardware

__all__ = ["Forked", "fork"]


@dataclass(frozen=True)
class Forked:
    """A copy of a Space.

    Attributes:
        name: Its name, with its owner.
        page: Its page on the Hub.
        url: Where it is served, when it has been built.
        notes: What a user should know about it.
    """

    name: SpaceName
    page: str
    url: str
    notes: list[str]


def fork(
    source: str,
    target: str | None = None,
    *,
    private: bool = False,
    hardware: str | None = None,
    variables: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    token: str | None = None,
    patience: Patience | None = None,
    say: Callable[[str], None] | None = None,
) -> Forked:
    """Copies a Space on the Hub, with its history. Blocks for as long as that takes.

    Args:
        source: The Space: `owner/name`, or the address of its page.
        target: Name of the copy, with or without an owner; None: that of the source, of the token's user.
        private: Whether nobody else may see the copy.
        hardware: Its hardware; None: the Hub's default.
        variables: Public variables of the copy.
        secrets: Variables that nobody can read there. Those of the source are not copied.
        token: What the Hub knows the user by; None takes that of huggingface_hub.
        patience: How long the Hub is waited for.
        say: Told what is being done.

    Raises:
        OpenEnvError: There is no such Space, the name is taken, or the Hub refuses it.
    """
    origin = SpaceName.whole(source)
    wanted = SpaceName.of(target) if target is not None else SpaceName("", origin.name)
    settings = Settings(private or None, hardware, variables or {}, secrets or {})
    check_variables(settings.variables or {}, settings.secrets or {})
    with Hub(token=token, patience=patience, say=say, secrets=(secrets or {}).values()) as hub:
        hub.check_public(variables or {})
        return outcome(lambda: _fork(hub, origin, wanted, settings))


def _fork(hub: Hub, origin: SpaceName, wanted: SpaceName, settings: Settings) -> Forked:
    user = hub.user()
    if not user.may_write:
        raise Forbidden(f"the token of {user.name} may only read: `hf auth login` with one that may write")
    name = wanted.of_owner(user.name)
    if name == origin:
        raise UsageError(f"{origin} is the Space itself: name the copy with --repo-id")
    info = Space(hub, origin).look()
    if info is None:
        raise UsageError(
            f"there is no Space {origin}, or it is hidden from this token: correct the name, or `hf auth login`"
        )
    copy = Space(hub, name)
    if copy.look() is not None:
        raise _taken(name)
    _duplicate(hub, copy, origin, settings)
    return Forked(name, copy.page, name.url, _notes(info))


def _duplicate(hub: Hub, copy: Space, origin: SpaceName, settings: Settings) -> None:
    def call() -> Any:
        return hub.api.duplicate_repo(str(origin), str(copy.name), repo_type="space", **settings.for_library())

    try:
        # Its first attempt may have had its effect: then the second is told so.
        hub.ask(f"copying {origin} to {copy.name}", call)
    except OpenEnvError as error:
        if error.data.get("status") == 409:
            if copy.look() is not None:
                return
            raise _taken(copy.name) from None
        if missing(error):
            raise UsageError(f"{error.message} ({origin}, or the account {copy.name.owner})") from None
        raise with_hardware(error, settings.hardware) from None


def _taken(name: SpaceName) -> UsageError:
    return UsageError(f"{name} exists already: name the copy with --repo-id, or delete that Space on its page")


def _notes(info: Any) -> list[str]:
    notes = ["secrets of the original are not copied: give those that it needs with --secret"]
    files = {each.rfilename for each in info.siblings or ()}
    if files and "openenv.yaml" not in files:
        notes.append("it has no openenv.yaml, so it may be no environment")
    return notes
