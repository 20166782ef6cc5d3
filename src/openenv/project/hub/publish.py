"""Publish a project as Spaces: prepare their files (the project is not changed), and upload them. Upload datasets."""

from __future__ import annotations

import fnmatch
import mmap
import posixpath
import re
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from ...errors import Forbidden, OpenEnvError, UsageError
from ...providers.dockerfile import Dockerfile
from ...providers.redaction import KEYS, is_secret
from ..image.wheel import own_wheel
from ..manifest import FrontMatter, Manifest, Project, read_text
from .client import SHORTEST, Hub, HubUser, Patience, call_on_threads
from .files import Tree
from .space import Space, SpaceName, SpaceRequest, check_variables

INTERFACE = "ENABLE_WEB_INTERFACE"
OWN_WHEELS = "wheels/openenv-*.whl"


@dataclass(frozen=True)
class Stage:
    """The files of an upload.

    Attributes:
        files: Files of the project, or contents of changed files, by their paths in the Space.
        notes: Notes for the user.
        replaced: Globs of files of the Space that they replace.
    """

    files: Mapping[str, Path | bytes]
    notes: list[str] = field(default_factory=list)
    replaced: tuple[str, ...] = ()

    @classmethod
    def of(cls, project: Project, request: SpaceRequest) -> Self:
        """Chooses and changes the files of a project.

        Args:
            project: The project.
            request: Options of the push.

        Raises:
            UsageError: There is no Dockerfile, the README's front matter is invalid, a file cannot be read, or
                no wheel of the running openenv can be built.
        """
        original = project.dockerfile
        if original is None:
            raise UsageError(
                f"{project.folder} has no Dockerfile, which a Space needs: write server/Dockerfile (a project "
                "of `openenv init` has one)"
            )
        where = original.relative_to(project.folder).as_posix()
        tree = Tree(project.folder, request.exclude, frozenset({where}))
        files: dict[str, Path | bytes] = dict(tree.files)
        notes = [f"not published: {each}" for each in tree.left_out]
        files.pop(where, None)
        if modes := [path for path, source in tree.files.items() if source.stat().st_mode & 0o100]:
            notes.append(
                f"executable here, but not in the Space, since the Hub does not store modes: {', '.join(modes)}"
            )
        dockerfile = _dockerfile(Dockerfile.read(original, where), files, request, notes)
        files["Dockerfile"] = dockerfile.text.encode()
        files["README.md"] = _readme(project, request.interface).encode()
        # Remove older wheels: the newest version would be installed, not the last one pushed.
        replaced = (OWN_WHEELS,) if _add_wheel(files, dockerfile, notes) else ()
        return cls(dict(sorted(files.items())), notes, replaced)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(len(each) if isinstance(each, bytes) else each.stat().st_size for each in self.files.values())

    def check_no_secrets(self, secrets: Collection[str]) -> None:
        """Raises `UsageError` if a file contains a secret, or cannot be read."""
        wanted = [secret.encode() for secret in secrets if len(secret) >= SHORTEST]
        for path, source in self.files.items():
            if isinstance(source, bytes):
                found = any(each in source for each in wanted)
            else:
                try:
                    if not source.stat().st_size:  # an empty file cannot be mapped
                        continue
                    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
                        found = any(contents.find(each) >= 0 for each in wanted)
                except (OSError, ValueError) as error:
                    raise UsageError(
                        f"{source} cannot be read: {error}; make it readable, or exclude it in .gitignore"
                    ) from None
            if found:
                raise UsageError(
                    f"{path} contains your token or the value of a --secret, which others could read: remove it, "
                    "or exclude the file in .gitignore"
                )


def _readme(project: Project, interface: bool) -> str:
    """The README, completed with the keys of front matter that a Space needs."""
    name = project.manifest.name
    text = f"# {name}\n\n{project.manifest.description or ''}\n"
    front = FrontMatter.read(text if project.readme is None else read_text(project.readme))
    sdk = front.values.get("sdk")
    if sdk not in {None, "docker"}:
        raise UsageError(
            f"README.md has `sdk: {sdk}`, but the Space of an environment needs `sdk: docker`: correct it"
        )
    needed = {
        "title": name.replace("_", " ").replace("-", " ").capitalize(),
        "sdk": "docker",
        "app_port": project.manifest.port or 8000,
        **({"base_path": "/web"} if interface else {}),
        "tags": ["openenv"],
    }
    return front.completed(needed)


def _dockerfile(
    original: Dockerfile, files: Mapping[str, Any], request: SpaceRequest, notes: list[str]
) -> Dockerfile:
    """The Dockerfile for a Space: in the root folder, with the base image and the web UI of the request, and without
    API keys, unless a variable or a secret of the Space sets them.
    """
    found = original if request.base_image is None else original.with_base(request.base_image)
    folder = original.name.rpartition("/")[0]
    lines = list(found.lines)
    for each in found.instructions():
        for source in each.sources if "<<" not in each.text else ():
            if not source or "://" in source or _is_there(source, files):
                continue
            if folder and _is_there(f"{folder}/{source}", files):
                # In the first line of the instruction with the source.
                word = re.compile(rf'(?<![^\s"\[,]){re.escape(source)}(?![^\s",\]])')
                named = posixpath.normpath(f"{folder}/{source}")
                at = next((at for at in range(each.first - 1, each.last) if word.search(lines[at])), None)
                if at is not None:
                    lines[at] = word.sub(named.replace("\\", r"\\"), lines[at], count=1)
            elif not re.search(r"[*?\[$]", source):
                notes.append(
                    f"{original.name}, line {each.first}: {source} is not among the files of the Space, so its "
                    "build would fail"
                )
    found = Dockerfile(found.name, tuple(lines))
    wanted = "true" if request.interface else "false"
    if _says(found, INTERFACE) != wanted:
        found = found.with_variable(INTERFACE, wanted)
    # Otherwise the server would generate a key at each start, and only show it in the Space's log.
    return found if _says(found, KEYS) else found.with_variable(KEYS, "none")


def _says(dockerfile: Dockerfile, variable: str) -> str | None:
    """The value of a variable in the last stage of a Dockerfile, for instance from an earlier push."""
    said = None
    for each in dockerfile.instructions():
        found = re.search(rf"\b{variable}[= ]\s*\"?([^\s\"]+)", each.text) if each.word == "ENV" else None
        said = None if each.word == "FROM" else found[1] if found else said
    return said


def _is_there(source: str, files: Mapping[str, Any]) -> bool:
    path = posixpath.normpath(source.strip("/"))
    return path == "." or path in files or any(name.startswith(f"{path}/") for name in files)


def _add_wheel(files: dict[str, Path | bytes], dockerfile: Dockerfile, notes: list[str]) -> bool:
    """Adds a wheel of the running openenv, if the image could not install it from an index."""
    own = fnmatch.filter(files, OWN_WHEELS)
    if own and _MARK not in _contents(
        files.get(".gitignore", b"")
    ):  # the wheel is the user's, not from an earlier push
        return False
    looked_for = any("wheels" in each.text for each in dockerfile.instructions())
    with tempfile.TemporaryDirectory(prefix="openenv-push-") as folder:
        wheel = own_wheel(Path(folder)) if looked_for else None
        if wheel is None:
            return False
        for name in own:
            del files[name]
        files[f"wheels/{wheel.name}"] = wheel.read_bytes()
    notes.append(f"this openenv did not come from an index: adding wheels/{wheel.name}")
    # The Hub excludes files of `.gitignore`, and the build of the Space excludes files of `.dockerignore`.
    for ignore, lines in (
        (".gitignore", "!/wheels/\n!/wheels/*.whl\n"),
        (".dockerignore", "!wheels\n!wheels/*.whl\n"),
    ):
        text = _contents(files.get(ignore, b""))
        if _MARK not in text and (text or ignore == ".gitignore"):
            files[ignore] = text.rstrip(b"\n") + b"\n" * bool(text) + _MARK + lines.encode()
    return True


_MARK = b"# openenv push: the openenv that was not from an index\n"


def _contents(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


AT_ONCE = 4
"""Maximum of concurrent pushes."""
_MESSAGE = "openenv push"


@dataclass(frozen=True)
class Published:
    """The outcome for one Space.

    Attributes:
        name: Its name, with its owner.
        page: Its page on the Hub.
        url: Its address after its build.
        created: Whether the push created it.
        changed: Whether its files have changed.
        commit: Its last commit. None if the push failed.
        pull_request: Address of the pull request that was opened instead of a commit.
        error: The error of a failed push.
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
    say: Callable[[str], None] | None = None,
    heard: Callable[[Published], None] | None = None,
    stage: Stage | None = None,
) -> list[Published]:
    """Publishes a project as one Space, or as several identical ones. Blocks until it is done.

    Each Space gets one commit: it has all files of a push, or none.

    Args:
        project: The project; it is not changed.
        request: Options of the push.
        token: The user's token for the Hub. None takes that of huggingface_hub.
        patience: Timeouts and retries of requests.
        say: Called with progress lines.
        heard: Called with the result of each Space, on another thread.
        stage: The files of the upload, if the caller has them already.

    Returns:
        The result of each Space, in the order of their numbers. With several Spaces, `error` has a failure.

    Raises:
        OpenEnvError: The push failed before the first Space, or there is only one Space.
    """
    say = say or (lambda _: None)
    variables = variables_of(project.manifest) | dict(request.variables)
    check_variables(variables, request.secrets)
    SpaceName.of(request.repo_id or project.manifest.name)  # fail before any request
    with Hub(token=token, patience=patience, say=say, secrets=request.secrets.values()) as hub:
        hub.check_public(variables)
        user = hub.user()
        names = names_of(project, request, user.name)
        check_rights(user, names[0])
        stage = stage or Stage.of(project, request)
        stage.check_no_secrets([str(hub.token), *request.secrets.values()])
        secret = [name for name, value in variables.items() if is_secret(name, value)]
        notes = [f"the variable {name} of the Space is public: use --secret if it is one" for name in secret]
        if request.interface and variables.get(INTERFACE, "true").lower() in {"false", "0", "no", "off"}:
            notes.append(f"the variable {INTERFACE} turns the web UI off again")
        for note in [*stage.notes, *notes]:
            say(note)
        if not request.create_pr:
            request = replace(request, variables=variables)
        targets = str(names[0]) if len(names) == 1 else f"{names[0]} to {names[-1]}"
        say(f"uploading {len(stage.files)} files ({stage.size / 1000:,.0f} kB) to {targets}")

        def push_to(space: Space) -> Published:
            try:
                done = _push_one(space, stage, request)
            except OpenEnvError as error:
                done = Published(space.name, space.page, space.name.url, error=error)
            if heard is not None:
                heard(done)
            return done

        came = call_on_threads([partial(push_to, Space(hub, name)) for name in names], AT_ONCE)
    for outcome in came:
        # A bug of openenv, or the error of the only Space.
        error = outcome if isinstance(outcome, Exception) else outcome.error if len(came) == 1 else None
        if error is not None:
            raise error
    return [outcome for outcome in came if isinstance(outcome, Published)]


def names_of(project: Project, request: SpaceRequest, user: str) -> list[SpaceName]:
    """The names of the Spaces, in their order."""
    name = SpaceName.of(request.repo_id or project.manifest.name).with_owner(user)
    return [name] if request.count == 1 else [name.numbered(number) for number in range(1, request.count + 1)]


def variables_of(manifest: Manifest) -> dict[str, str]:
    """The public variables in a manifest.

    Raises:
        UsageError: `variables` is not a mapping of names to values.
    """
    given = manifest.variables if manifest.variables is not None else {}
    if not isinstance(given, Mapping) or any(isinstance(value, (list, dict)) for value in given.values()):
        raise UsageError(f"{manifest.path}: `variables` must have names and values, such as `MODEL_ID: gpt2`")
    return {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
        if value is not None
    }


def check_rights(user: HubUser, name: SpaceName) -> None:
    """Raises `Forbidden` if the token's user may not write there."""
    if not user.may_write:
        raise Forbidden(
            f"the token of {user.name} is read-only: run `hf auth login` with one that has write access, or "
            "correct HF_TOKEN"
        )
    if name.owner not in {user.name, *user.organizations}:
        raise Forbidden(
            f"{name} belongs neither to {user.name} nor to an organization of {user.name}"
            f"{' (' + ', '.join(sorted(user.organizations)) + ')' if user.organizations else ''}: push to "
            f"{user.name}/{name.name}, or run `hf auth login` with an account that may push"
        )


def _push_one(space: Space, stage: Stage, request: SpaceRequest) -> Published:
    info = space.look()
    if request.create_pr and info is None:
        raise UsageError(f"there is no Space {space.name} for a pull request: leave out --create-pr to create it")
    if request.create_pr and request.private and info is not None and not info.private:
        raise UsageError(
            f"{space.name} is public, and a pull request changes files only: leave out --create-pr to make it "
            "private, or leave out --private"
        )
    if info is not None:
        space.check_is_environment(info, replaces_all="*" in request.delete)
    if info is None:
        space.create(request)
    elif not request.create_pr:
        space.change(request, info)
    try:
        done = space.commit(stage.files, (*request.delete, *stage.replaced), _MESSAGE, request.create_pr)
    except OpenEnvError as error:
        raise _upload_error(error, space, info is None, request.create_pr) from None
    return Published(
        space.name,
        space.page,
        space.name.url,
        created=info is None,
        changed=info is None or done.oid != info.sha,
        commit=str(done.oid),
        pull_request=done.pr_url,
    )


def _upload_error(error: OpenEnvError, space: Space, created: bool, create_pr: bool) -> OpenEnvError:
    """Adds the current state on the Hub to the error."""
    if create_pr:
        there = f"check whether the pull request exists ({space.page}/discussions) before you run the command again"
    elif created:
        there = f"{space.name} was created, and is empty"
    elif error.retryable:
        there = f"a push is one commit, so {space.name} has all of it or none"
    else:
        there = f"{space.name} was not changed"
    if error.retryable and not create_pr:
        there += ": you can run the same command again"
    error.message = f"{error.message}; {there}"
    error.args = (error.message,)
    return error


def push_dataset(
    repo_id: str,
    files: Mapping[str, Path | bytes],
    *,
    private: bool = False,
    message: str = "openenv",
    token: str | None = None,
    patience: Patience | None = None,
    say: Callable[[str], None] | None = None,
) -> str:
    """Uploads files to a dataset, in one commit: all of them, or none. The dataset is created if it does not exist.

    Args:
        repo_id: Name of the dataset, with or without its owner.
        files: Files by their paths in the dataset. Nothing else is uploaded.
        private: Whether the dataset is private. A public dataset is made private before the upload.
        message: Message of the commit.
        token: The user's token for the Hub. None takes that of huggingface_hub.
        patience: Timeouts and retries of requests.
        say: Called with progress lines.

    Returns:
        The address of its page.

    Raises:
        OpenEnvError: The push failed; see `Hub.ask`.
    """
    wanted = SpaceName.of(repo_id)  # fail before any request
    with Hub(token=token, patience=patience, say=say) as hub:
        user = hub.user()
        name = wanted.with_owner(user.name)
        check_rights(user, name)
        from huggingface_hub import CommitOperationAdd

        api, given = hub.api, {"repo_id": str(name), "repo_type": "dataset"}
        page = f"{hub.endpoint}/datasets/{name}"
        hub.ask(f"creating {name}", partial(api.create_repo, **given, private=private or None, exist_ok=True))
        if private:
            hub.ask(f"making {name} private", partial(api.update_repo_settings, **given, private=True))
        operations = [CommitOperationAdd(path, source) for path, source in files.items()]
        commit = partial(api.create_commit, **given, operations=operations, commit_message=message)
        try:
            hub.ask(f"uploading to {name}", commit)
        except OpenEnvError as error:
            raise UsageError(f"{error.message}; {page} has all files of this upload, or none") from None
        return page


def dataset_card(title: str, file: str, text: str) -> bytes:
    """The README of a dataset with one file as its split `train`.

    Args:
        title: Its heading.
        file: Path of the file in the dataset.
        text: What the rows are, in Markdown.
    """
    head = ["---", "configs:", "- config_name: default", "  data_files:", "  - split: train", f"    path: {file}"]
    tags = ["tags:", "- openenv", "---"]
    return "\n".join([*head, *tags, "", f"# {title}", "", text, ""]).encode()
