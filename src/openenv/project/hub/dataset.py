"""Upload files as a dataset of the Hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ...errors import OpenEnvError, UsageError
from .client import Hub, Patience
from .publish import check_rights
from .space import SpaceName


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
    """The README of a dataset whose split `train` is one file.

    Args:
        title: Its heading.
        file: Path of the file in the dataset.
        text: What the rows are, in Markdown.
    """
    head = ["---", "configs:", "- config_name: default", "  data_files:", "  - split: train", f"    path: {file}"]
    tags = ["tags:", "- openenv", "---"]
    return "\n".join([*head, *tags, "", f"# {title}", "", text, ""]).encode()
