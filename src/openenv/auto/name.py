"""The many names of an environment."""

from __future__ import annotations

import re

__all__ = ["canonical", "plain"]


def canonical(name: str) -> str:
    """What `echo`, `echo-env`, `echo_env`, `openenv-echo` and `openenv_echo_env` have in common: `echo`."""
    short = plain(name).removeprefix("openenv-")
    return short.removesuffix("-env") or short


def plain(name: str) -> str:
    """A name in the one way in which installers compare names: `openenv_echo.Env` as `openenv-echo-env`."""
    return re.sub(r"[-_.\s]+", "-", name.strip().lower()).strip("-")
