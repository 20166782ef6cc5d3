"""Download a Space as a project. Nothing of it is executed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import OpenEnvError, UsageError
from ..manifest import FILE_NAME
from ..scaffold import whole_or_not_at_all
from .client import Hub, Patience, call_on_thread
from .space import SpaceName


@dataclass(frozen=True)
class Pulled:
    """A project that was fetched.

    Attributes:
        name: The Space.
        folder: Where it is now.
        commit: Which commit it is.
        files: How many files it has.
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
    """Fetches the files of a Space. Nothing of them is executed. Blocks for as long as that takes.

    Args:
        source: The Space: `owner/name`, or the address of its page.
        folder: Where to, which must not exist or be empty; None: a folder here, named as the Space, in the way in
            which a package can be named.
        revision: A branch, a tag or a commit; None: the newest.
        token: What the Hub knows the user by; None takes that of huggingface_hub. A public Space needs none.
        patience: How long the Hub is waited for.
        say: Hears what is being done.

    Returns:
        What was fetched. If anything fails, or this is interrupted, there is no folder.

    Raises:
        OpenEnvError: There is no such Space, or it is no environment; the folder exists; the Hub cannot be reached.
    """
    name = SpaceName.whole(source)
    package = "".join(letter if letter.isalnum() else "_" for letter in name.name)
    folder = (folder or Path(package if package.isidentifier() else f"env_{package}")).absolute()
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if not is_empty and (folder.exists() or folder.is_symlink()):
        raise UsageError(f"{folder} exists already: name another folder with --output-dir, or move it away")
    with Hub(token=token, patience=patience, say=say) as hub:
        what = f"fetching {name}"
        info: Any = call_on_thread(lambda: hub.ask(what, lambda: hub.api.space_info(str(name), revision=revision)))
        if FILE_NAME not in {each.rfilename for each in info.siblings or ()}:
            raise UsageError(
                f"{name} is no environment, for it has no {FILE_NAME}: is it another Space that you mean?"
            )
        try:
            with whole_or_not_at_all(folder) as part:
                call = partial(
                    hub.api.snapshot_download, str(name), repo_type="space", revision=info.sha, local_dir=part
                )
                call_on_thread(lambda: hub.ask(what, call))
                shutil.rmtree(part / ".cache", ignore_errors=True)  # notes of the library
                count = sum(path.is_file() for path in part.rglob("*"))
        except OpenEnvError:
            raise
        except OSError as error:
            raise UsageError(
                f"{folder} cannot be written to: {error.strerror}; name another with --output-dir"
            ) from None
        return Pulled(name, folder, str(info.sha), count)
