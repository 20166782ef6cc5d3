"""Publish a project as one or several Spaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ...errors import Forbidden, OpenEnvError, UsageError
from ...providers.redaction import secrets_of
from ..manifest import Manifest, Project
from .client import Hub, HubUser, Patience, call_on_threads
from .request import SpaceName, SpaceRequest, check_variables
from .space import Space, SpaceSettings
from .stage import INTERFACE, Stage

Notify = Callable[[str], None]
AT_ONCE = 4
"""Most Spaces that are pushed to at one time."""
_MESSAGE = "openenv push"


@dataclass(frozen=True)
class Published:
    """What became of one Space.

    Attributes:
        name: Its name, with its owner.
        page: Its page on the Hub.
        url: Where it is served, when it has been built.
        created: Whether it was made.
        changed: Whether it has other files than before.
        commit: Its last commit; None if the push failed.
        pull_request: Address of what was opened instead of changing it.
        error: Why the push failed; None if it did not.
    """

    name: SpaceName
    page: str
    url: str
    created: bool = False
    changed: bool = False
    commit: str | None = None
    pull_request: str | None = None
    error: OpenEnvError | None = None


def push(
    project: Project,
    request: SpaceRequest,
    *,
    token: str | None = None,
    patience: Patience | None = None,
    say: Notify | None = None,
    heard: Callable[[Published], None] | None = None,
    stage: Stage | None = None,
) -> list[Published]:
    """Publishes a project as one Space, or as several that are the same. Blocks for as long as that takes.

    Each Space gets one commit: it has all files of a push, or none.

    Args:
        project: The project; it is not changed.
        request: How it is to be published. Its `check` is for the caller to heed: nothing is checked here.
        token: What the Hub knows the user by; None takes that of huggingface_hub.
        patience: How long the Hub is waited for.
        say: Hears what is being done.
        heard: Hears of each Space when it is done, on another thread.
        stage: What is uploaded, where the caller has it already.

    Returns:
        What became of each, in the order of their numbers. What fails for one of several is in its `error`.

    Raises:
        OpenEnvError: It failed before the first of them, or there was only one.
    """
    say = say or (lambda _: None)
    variables = variables_of(project.manifest) | dict(request.variables)
    check_variables(variables, request.secrets)
    SpaceName.of(request.repo_id or project.manifest.name)  # before anything is done
    with Hub(token=token, patience=patience, say=say, secrets=request.secrets.values()) as hub:
        hub.check_public(variables)
        user = hub.user()
        names = names_of(project, request, user.name)
        _check_rights(user, names[0])
        stage = stage or Stage.of(project, request)
        stage.check_no_secrets([str(hub.token), *request.secrets.values()])
        secret = [name for name, value in variables.items() if secrets_of({name: value})]
        notes = [f"everybody can read the variable {name} of the Space: is it a --secret?" for name in secret]
        if request.interface and variables.get(INTERFACE, "true").lower() in {"false", "0", "no", "off"}:
            notes.append(f"the variable {INTERFACE} turns the web UI off again")
        for note in [*stage.notes, *notes]:
            say(note)
        settings = SpaceSettings(
            private=request.private or None, hardware=request.hardware, variables=variables, secrets=request.secrets
        )
        targets = str(names[0]) if len(names) == 1 else f"{names[0]} to {names[-1]}"
        say(f"uploading {len(stage.files)} files ({stage.size / 1000:,.0f} kB) to {targets}")
        spaces = [Space(hub, name) for name in names]
        return _push_all(spaces, lambda space: _push_one(space, stage, settings, request), heard or (lambda _: None))


def names_of(project: Project, request: SpaceRequest, user: str) -> list[SpaceName]:
    """The Spaces that are meant, in their order."""
    name = SpaceName.of(request.repo_id or project.manifest.name).with_owner(user)
    return [name] if request.count == 1 else [name.numbered(number) for number in range(1, request.count + 1)]


def variables_of(manifest: Manifest) -> dict[str, str]:
    """The public variables that a manifest gives its Spaces.

    Raises:
        UsageError: They are no names with values.
    """
    given = manifest.variables if manifest.variables is not None else {}
    if not isinstance(given, Mapping) or any(isinstance(value, (list, dict)) for value in given.values()):
        raise UsageError(f"{manifest.path}: `variables` must have names and values, as `MODEL_ID: gpt2`")
    return {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
        if value is not None
    }


def _check_rights(user: HubUser, name: SpaceName) -> None:
    if not user.may_write:
        raise Forbidden(
            f"the token of {user.name} may only read: `hf auth login` with one that may write, or correct HF_TOKEN"
        )
    if name.owner not in {user.name, *user.organizations}:
        raise Forbidden(
            f"{name} is not of {user.name}, nor of an organization of {user.name}'s"
            f"{' (' + ', '.join(sorted(user.organizations)) + ')' if user.organizations else ''}: push to "
            f"{user.name}/{name.name}, or `hf auth login` as somebody who may"
        )


def _push_one(space: Space, stage: Stage, settings: SpaceSettings, request: SpaceRequest) -> Published:
    info = space.look()
    if request.create_pr and info is None:
        raise UsageError(
            f"there is no Space {space.name} to open a pull request at: leave out --create-pr to make it"
        )
    if request.create_pr and request.private and info is not None and not info.private:
        raise UsageError(
            f"{space.name} is public, and a pull request changes files only: leave out --create-pr to make it "
            "private, or leave out --private"
        )
    if info is not None:
        space.check_is_environment(info, replaces_all="*" in request.delete)
    if info is None:
        space.create(settings)
    elif not request.create_pr:
        space.change(settings, info)
    try:
        done = space.commit(
            stage.files,
            (*request.delete, *stage.replaced),
            _MESSAGE,
            request.create_pr,
            info.sha if info is not None else None,
        )
    except OpenEnvError as error:
        raise _upload_error(error, space, info is None, request.create_pr) from None
    return Published(
        space.name,
        space.page,
        space.name.url,
        created=info is None,
        changed=done.changed,
        commit=done.oid,
        pull_request=done.pull_request,
    )


def _upload_error(error: OpenEnvError, space: Space, created: bool, create_pr: bool) -> OpenEnvError:
    """Adds to the error what is on the Hub now."""
    if create_pr:
        there = f"look whether the pull request is there ({space.page}/discussions) before you run the command again"
    elif created:
        there = f"{space.name} was made, and is empty"
    elif error.retryable:
        there = f"a push is one commit, so {space.name} has all of it or, as before, nothing"
    else:
        there = f"{space.name} is as it was before"
    if error.retryable and not create_pr:
        there += ": the same command may be run again"
    error.message = f"{error.message}; {there}"
    error.args = (error.message,)
    return error


def _push_all(
    spaces: list[Space], call: Callable[[Space], Published], heard: Callable[[Published], None]
) -> list[Published]:
    def push_to(space: Space) -> Published:
        try:
            done = call(space)
        except OpenEnvError as error:
            done = Published(space.name, space.page, space.name.url, error=error)
        heard(done)
        return done

    came = call_on_threads([partial(push_to, space) for space in spaces], AT_ONCE)
    for outcome in came:
        if isinstance(outcome, Exception):  # an error of openenv itself
            raise outcome
    done = [outcome for outcome in came if isinstance(outcome, Published)]
    if len(done) == 1 and done[0].error is not None:
        raise done[0].error
    return done
