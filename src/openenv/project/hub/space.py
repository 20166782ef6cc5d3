"""Spaces of the Hub: their names and requests, and how to create, configure, fork and download one."""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from ...errors import Forbidden, InvalidArgument, OpenEnvError, UsageError
from ...settings import ClientSettings
from ..manifest import FILE_NAME
from ..scaffold import whole_or_not_at_all
from .client import Hub, Patience, call_on_thread, is_not_found

# The rule of huggingface_hub, checked before any request and with our message.
_PART = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_ADDRESS = re.compile(
    r"(?:https?://[^/]+/)?(?:spaces/|datasets/)?(?P<name>[^?#]*?)(?:/(?:tree|blob)/.*)?/?(?:[?#].*)?"
)
LONGEST = 96


class SpaceName(NamedTuple):
    """The name of a Space.

    Attributes:
        owner: The user or organization; "" for the user of the token.
        name: Its name there.
    """

    owner: str
    name: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Parses `name`, `owner/name`, or the address of a Space's page.

        Raises:
            InvalidArgument: It is not a valid name.
        """
        match = _ADDRESS.fullmatch(text.strip())
        owner, slash, name = match["name"].rpartition("/") if match else ("", "", "")
        faults = [part for part in ([owner] if slash else []) + [name] if not _PART.fullmatch(part)]
        if faults or name.endswith(".git") or len(f"{owner}/{name}") > LONGEST:
            raise InvalidArgument(
                f"{text!r} is not the name of a Space or dataset: write owner/name with letters, digits, '-', '_' "
                f"and '.', without '-' or '.' at an end or twice in a row, and at most {LONGEST} characters"
            )
        return cls(owner, name)

    @classmethod
    def whole(cls, text: str) -> Self:
        """Parses the full name of a Space, with its owner.

        Raises:
            InvalidArgument: It is not a full name.
        """
        name = cls.of(text)
        if not name.owner:
            raise InvalidArgument(f"{text!r} has no owner: write owner/{name.name}")
        return name

    def with_owner(self, owner: str) -> Self:
        """A copy with an owner, if it has none."""
        return self if self.owner else self._replace(owner=owner)

    def numbered(self, number: int) -> Self:
        """The name of one of several Spaces, with its number at the end."""
        return type(self).of(str(self._replace(name=f"{self.name}-{number}")))

    @property
    def host(self) -> str:
        """The first label of the host name of its server."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.owner}-{self.name}".lower()).strip("-")

    @property
    def url(self) -> str:
        """Address of its server."""
        return f"https://{self.host}.{ClientSettings.read().hub_registry.removeprefix('registry.')}"

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" if self.owner else self.name


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class SpaceRequest:
    """Options of a push.

    Attributes:
        repo_id: Name of the Space, with or without its owner. By default the name in the manifest, and the token's
            user.
        base_image: Base image that replaces that of the Dockerfile.
        interface: Whether it has the web UI.
        private: Whether the Space is private. A public Space is made private before the upload.
        create_pr: Whether to open a pull request instead of changing the Space.
        exclude: File with globs of files to leave out, one per line.
        delete: Globs of files of the Space to delete in the same commit.
        hardware: Hardware of the Space. None keeps the current one.
        count: Number of Spaces: name-1 to name-N if there are several.
        variables: Public variables. They override the `variables:` of the manifest.
        secrets: Variables that cannot be read on the Hub.
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

    def __post_init__(self) -> None:
        check_variables(self.variables, self.secrets)
        if self.count < 1:
            raise InvalidArgument(f"count must be at least 1, got {self.count}")
        if self.create_pr and (self.variables or self.secrets or self.hardware):
            raise InvalidArgument(
                "a pull request changes files only: leave out --create-pr, or --env-var, --secret and --hardware"
            )

    def as_library_arguments(self) -> dict[str, Any]:
        """The settings of a Space as arguments of `create_repo` and `duplicate_repo`."""
        arguments: dict[str, Any] = {"private": self.private or None, "space_hardware": self.hardware}
        for name, values in (("space_variables", self.variables), ("space_secrets", self.secrets)):
            arguments[name] = [{"key": key, "value": value} for key, value in values.items()] or None
        return arguments


def check_variables(variables: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Raises `InvalidArgument` for invalid names, and for a name that is both a variable and a secret."""
    for name in (*variables, *secrets):
        if not _VARIABLE.fullmatch(name):
            raise InvalidArgument(
                f"{name!r} is not the name of a variable: write letters, digits and '_', such as MODEL_ID"
            )
    if both := sorted(variables.keys() & secrets.keys()):
        raise InvalidArgument(f"{', '.join(both)}: a variable cannot be public and secret: leave out one of the two")


_OWN_FILES = {".gitattributes", "README.md"}


class Space:
    """A Space and its operations. All calls block; errors are those of `Hub.ask`.

    Args:
        hub: The Hub.
        name: Its name, with its owner.
    """

    def __init__(self, hub: Hub, name: SpaceName):
        self._hub = hub
        self.name = name

    @property
    def page(self) -> str:
        """The address of its page on the Hub."""
        return f"{self._hub.endpoint}/spaces/{self.name}"

    def look(self) -> Any | None:
        """The Hub's information (`SpaceInfo`). None if it does not exist, or is hidden from this token."""
        try:
            return self._hub.ask(f"looking for {self.name}", lambda: self._hub.api.space_info(str(self.name)))
        except UsageError as error:
            if is_not_found(error):
                return None
            raise

    def check_is_environment(self, info: Any, replaces_all: bool) -> None:
        """Raises `UsageError` if the Space exists and is not an environment."""
        if info.sdk not in {None, "docker"}:
            raise UsageError(
                f"{self.name} exists with sdk {info.sdk}, but environments need docker: push to "
                "another name (--repo-id)"
            )
        files = {each.rfilename for each in info.siblings or ()}
        others = sorted(files - _OWN_FILES)
        if "openenv.yaml" not in files and others and not replaces_all:
            shown = others if len(others) <= 3 else [*others[:3], "..."]
            raise UsageError(
                f"{self.name} exists and is not an environment ({', '.join(shown)}; no openenv.yaml): push to "
                "another name (--repo-id), or replace all of it with --delete '*'"
            )

    def create(self, settings: SpaceRequest, origin: SpaceName | None = None) -> None:
        """Creates it, empty or as a copy of another Space."""
        api, name, arguments = self._hub.api, str(self.name), settings.as_library_arguments()
        if origin is None:
            what = f"creating {name}"
            call = partial(api.create_repo, name, repo_type="space", space_sdk="docker", **arguments)
        else:
            what = f"copying {origin} to {name}"
            call = partial(api.duplicate_repo, str(origin), name, repo_type="space", **arguments)
        try:
            self._hub.ask(what, call)
        except OpenEnvError as error:
            if error.data.get("status") == 409:
                if self.look() is not None:  # created by an attempt that lost its answer
                    return
                if origin is not None:
                    raise _taken(self.name) from None
                raise Forbidden(
                    f"{self.name} exists, but is hidden from this token: push to another name (--repo-id), or "
                    "run `hf auth login` with another token"
                ) from None
            if origin is not None and is_not_found(error):
                raise UsageError(f"{error.message} ({origin}, or the account {self.name.owner})") from None
            raise with_hardware(error, settings.hardware) from None

    def change(self, settings: SpaceRequest, info: Any) -> None:
        """Applies the settings to an existing Space. Sends only those that differ."""
        hub, api, name = self._hub, self._hub.api, str(self.name)
        if settings.private and not info.private:
            hub.ask(f"making {name} private", lambda: api.update_repo_settings(name, private=True, repo_type="space"))
        if settings.variables:
            there = hub.ask(f"reading the variables of {name}", lambda: api.get_space_variables(name))
            for key, value in settings.variables.items():
                if key not in there or there[key].value != value:
                    hub.ask(f"setting {key} of {name}", partial(api.add_space_variable, name, key, value))
        for key, value in settings.secrets.items():
            hub.ask(f"setting the secret {key} of {name}", partial(api.add_space_secret, name, key, value))
        hardware = settings.hardware
        if hardware is None:
            return
        runtime = hub.ask(f"reading the hardware of {name}", lambda: api.get_space_runtime(name))
        if (runtime.requested_hardware or runtime.hardware) == hardware:
            return
        try:
            hub.ask(f"requesting {hardware} for {name}", lambda: api.request_space_hardware(name, hardware))
        except OpenEnvError as error:
            raise with_hardware(error, hardware) from None

    def commit(self, files: Mapping[str, Path | bytes], delete: Sequence[str], message: str, create_pr: bool) -> Any:
        """Uploads files: all of them, or none.

        Args:
            files: Files by their paths in the Space.
            delete: Globs of files of the Space to delete in the same commit, except for `files`.
            message: Message of the commit.
            create_pr: Whether to open a pull request instead.

        Returns:
            The library's `CommitInfo`; its `oid` is the last commit if there are no changes.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete
        from huggingface_hub.utils import filter_repo_objects

        api, name = self._hub.api, str(self.name)

        def call() -> Any:
            there = api.list_repo_files(name, repo_type="space") if delete else []
            matched = filter_repo_objects(there, allow_patterns=list(delete))
            operations: list[Any] = [
                CommitOperationDelete(path, is_folder=False)
                for path in matched
                if path not in files and path != ".gitattributes"
            ]
            operations += [CommitOperationAdd(path, source) for path, source in files.items()]
            return api.create_commit(name, operations, commit_message=message, repo_type="space", create_pr=create_pr)

        # A repeated commit finds its files in place. A repeated pull request would be opened twice.
        return self._hub.ask(f"uploading to {name}", call, again=not create_pr)


def with_hardware(error: OpenEnvError, hardware: str | None) -> OpenEnvError:
    """The error, with names of hardware appended if the hardware may be its cause."""
    if hardware is None or error.data.get("status") not in {400, 404, 422}:
        return error
    from huggingface_hub import SpaceHardware

    known = [each.value for each in SpaceHardware]
    if hardware in known:
        return error
    near = difflib.get_close_matches(hardware, known, n=3) or known[:6]
    return UsageError(
        f"{error.message}; {hardware!r} may not be hardware of the Hub: use --hardware {', '.join(near)}, ..."
    )


@dataclass(frozen=True)
class Forked:
    """A copy of a Space.

    Attributes:
        name: Its name, with its owner.
        page: Its page on the Hub.
        url: Address of its server after its build.
        notes: Notes for the user.
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
    """Copies a Space on the Hub, with its history. Blocks until it is done.

    Args:
        source: The Space: `owner/name`, or the address of its page.
        target: Name of the copy, with or without an owner. By default the name of the source, and the token's user.
        private: Whether the copy is private.
        hardware: Hardware of the copy. None for the Hub's default.
        variables: Public variables of the copy.
        secrets: Variables that cannot be read on the Hub. Secrets of the source are not copied.
        token: The user's token for the Hub. None takes that of huggingface_hub.
        patience: Timeouts and retries of requests.
        say: Called with progress lines.

    Raises:
        OpenEnvError: There is no such Space, the name is taken, or the Hub refuses it.
    """
    origin = SpaceName.whole(source)
    wanted = SpaceName.of(target) if target is not None else SpaceName("", origin.name)
    settings = SpaceRequest(private=private, hardware=hardware, variables=variables or {}, secrets=secrets or {})
    with Hub(token=token, patience=patience, say=say, secrets=settings.secrets.values()) as hub:
        hub.check_public(settings.variables)
        return call_on_thread(lambda: _fork(hub, origin, wanted, settings))


def _fork(hub: Hub, origin: SpaceName, wanted: SpaceName, settings: SpaceRequest) -> Forked:
    user = hub.user()
    if not user.may_write:
        raise Forbidden(f"the token of {user.name} is read-only: run `hf auth login` with one that has write access")
    name = wanted.with_owner(user.name)
    if name == origin:
        raise UsageError(f"the copy would have the name of the Space, {origin}: set another one with --repo-id")
    info = Space(hub, origin).look()
    if info is None:
        raise UsageError(
            f"there is no Space {origin}, or it is hidden from this token: correct the name, or run `hf auth login`"
        )
    copy = Space(hub, name)
    if copy.look() is not None:
        raise _taken(name)
    copy.create(settings, origin)
    notes = ["secrets of the original are not copied: set those that the copy needs with --secret"]
    files = {each.rfilename for each in info.siblings or ()}
    if files and "openenv.yaml" not in files:
        notes.append("it has no openenv.yaml, so it may not be an environment")
    return Forked(name, copy.page, name.url, notes)


def _taken(name: SpaceName) -> UsageError:
    return UsageError(f"{name} exists already: set another name with --repo-id, or delete that Space on its page")


@dataclass(frozen=True)
class Pulled:
    """A downloaded project.

    Attributes:
        name: The Space.
        folder: Its folder.
        commit: The downloaded commit.
        files: Number of its files.
    """

    name: SpaceName
    folder: Path
    commit: str
    files: int


def pull(
    source: str,
    folder: Path | None = None,
    *,
    revision: str | None = None,
    token: str | None = None,
    patience: Patience | None = None,
    say: Callable[[str], None] | None = None,
) -> Pulled:
    """Downloads the files of a Space. Executes none of them. Blocks until it is done.

    Args:
        source: The Space: `owner/name`, or the address of its page.
        folder: Target folder, which must be empty or not exist. None for a folder here with the name of the Space,
            as a valid name of a package.
        revision: A branch, a tag or a commit. None for the newest commit.
        token: The user's token for the Hub. None takes that of huggingface_hub. A public Space needs none.
        patience: Timeouts and retries of requests.
        say: Called with progress lines.

    Returns:
        The downloaded project. After an error or an interruption, the folder does not exist.

    Raises:
        OpenEnvError: The Space does not exist or is not an environment, the folder exists, or the request failed.
    """
    name = SpaceName.whole(source)
    package = "".join(letter if letter.isalnum() else "_" for letter in name.name)
    folder = (folder or Path(package if package.isidentifier() else f"env_{package}")).absolute()
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if not is_empty and (folder.exists() or folder.is_symlink()):
        raise UsageError(f"{folder} exists already: set another folder with --output-dir, or move it away")
    with Hub(token=token, patience=patience, say=say) as hub:
        what = f"fetching {name}"
        info: Any = call_on_thread(lambda: hub.ask(what, lambda: hub.api.space_info(str(name), revision=revision)))
        if FILE_NAME not in {each.rfilename for each in info.siblings or ()}:
            raise UsageError(f"{name} is not an environment, since it has no {FILE_NAME}: check the name")
        try:
            with whole_or_not_at_all(folder) as part:
                call = partial(
                    hub.api.snapshot_download, str(name), repo_type="space", revision=info.sha, local_dir=part
                )
                call_on_thread(lambda: hub.ask(what, call))
                shutil.rmtree(part / ".cache", ignore_errors=True)  # metadata of the library
                count = sum(path.is_file() for path in part.rglob("*"))
        except OpenEnvError:
            raise
        except OSError as error:
            raise UsageError(
                f"{folder} cannot be written to: {error.strerror}; set another folder with --output-dir"
            ) from None
        return Pulled(name, folder, str(info.sha), count)
