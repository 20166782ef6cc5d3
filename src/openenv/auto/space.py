"""Environments that are published as Spaces of the Hub."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple, Self

from ..errors import LaunchFailed, UnknownEnvironment, UsageError
from ..settings import ClientSettings
from . import catalog
from .name import canonical

__all__ = ["Space"]

_NAME = re.compile(r"(?:https?://[^/]+/)?(?:spaces/)?(?P<owner>\w[\w.-]*)/(?P<name>\w[\w.-]*?)(?:\.git)?/?")
INSTALL_TIMEOUT_S = 900.0
TAIL_LINES = 20


class Space(NamedTuple):
    """One Space.

    Attributes:
        owner: Whose.
        name: What it is called there.
    """

    owner: str
    name: str

    @classmethod
    def of(cls, name: str) -> Self | None:
        """What `owner/name`, or the address of a Space, names; None for a plain name."""
        if "/" not in name:
            return None
        match = _NAME.fullmatch(name.strip())
        if match is None:
            raise UsageError(f"{name!r} is no Space of the Hub: write user/space")
        return cls(match["owner"], match["name"])

    @property
    def git_url(self) -> str:
        """Where its files are."""
        return f"{ClientSettings.read().hub_url.rstrip('/')}/spaces/{self.owner}/{self.name}"

    @property
    def url(self) -> str:
        """Where it is served."""
        from ..project.hub.name import SpaceName

        return SpaceName(self.owner, self.name).url

    def installed(self) -> catalog.Entry | None:
        """Its package, if that is installed here: from there, or by its name from an index or a folder.

        One that was installed from another repository is another owner's, whatever its name.
        """
        there = [entry for entry in catalog.entries() if entry.distribution is not None]
        of_it = [entry for entry in there if entry.origin.removesuffix(".git").endswith(f"/{self.owner}/{self.name}")]
        local = [entry for entry in there if not entry.origin or entry.origin.startswith("file:")]
        named = [entry for entry in local if canonical(self.name) in entry.names]
        return next(iter(of_it or named), None)

    def ensure(self, trust_remote_code: bool) -> catalog.Entry:
        """Its package, installed if it is not. Blocks for as long as that takes.

        Raises:
            UsageError: It would have to be installed, and nobody said that its code is trusted.
            LaunchFailed: It cannot be installed; with the end of what the installer said.
            UnknownEnvironment: It was installed, and no environment came of it.
        """
        entry = self.installed()
        if entry is not None:
            return entry
        if not (trust_remote_code or ClientSettings.read().trust_remote_code):
            raise UsageError(
                f"{self.owner}/{self.name} is not installed, and to install it is to run code of {self.git_url}: "
                "read that, then pass trust_remote_code=True or set OPENENV_TRUST_REMOTE_CODE=1; skip_install=True "
                "gives a client without its types that runs nothing of it"
            )
        self._install()
        entry = self.installed()
        if entry is None:
            raise UnknownEnvironment(f"{self.git_url} was installed, and no distribution openenv-* came of it")
        return entry

    def _install(self) -> None:
        source = f"git+{self.git_url}"
        uv = shutil.which("uv")
        installer = (
            [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
        )
        try:
            done = subprocess.run(  # noqa: S603 - a list, with what matched _NAME
                [*installer, source], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise LaunchFailed(f"installing {source} took more than {INSTALL_TIMEOUT_S:g} s") from None
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-TAIL_LINES:])
            raise LaunchFailed(f"{source} could not be installed (exit code {done.returncode}):\n{tail}")
        importlib.invalidate_caches()
