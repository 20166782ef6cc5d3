"""What `GET /metadata` says about an environment."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..environment import Environment, metadata_of
from ..execution import class_of, profile_of
from ..sessions.waiting import opened_session, result_of
from ..settings import ServerSettings
from ..types import EnvironmentMetadata
from .environment_server import HTTPEnvServer

__all__ = ["environment_metadata", "load_environment_metadata"]

# A README is shown on a page; a larger file is not one.
README_BYTES = 1024 * 1024
# Where images of environments have it.
CONTAINER_README = Path("/app/README.md")


async def environment_metadata(server: HTTPEnvServer) -> EnvironmentMetadata:
    """Asks the environment; an instance is made only if its class says more than `Environment` does.

    Raises:
        CapacityError: An instance is needed and every slot is taken.
        EnvironmentFailed: `get_metadata` or the constructor raised.
    """
    cls = class_of(server.env_factory)
    if cls is not None and getattr(cls, "get_metadata", None) in (None, Environment.get_metadata):
        metadata = metadata_of(cls)
    else:
        async with opened_session(server.manager) as session:
            told = await result_of(lambda done: session.call(_ask, None, done))
        metadata = EnvironmentMetadata.model_validate(told)  # fields alone, from an environment in another process
    if cls is not None and not profile_of(cls).seedable:
        metadata.seedable = False
    if metadata.readme_content is None:
        metadata.readme_content = _readme(server.settings.readme_path, cls)
    return metadata


def load_environment_metadata(
    env: Environment[Any, Any, Any] | Callable[[], Any], env_name: str | None = None
) -> EnvironmentMetadata:
    """What is known of an environment without making one.

    Args:
        env: An instance, which is asked; or what makes one, of which the class alone is looked at.
        env_name: Its name, in place of its class's.

    Returns:
        With the README that `GET /metadata` would show.
    """
    cls = type(env) if isinstance(env, Environment) else class_of(env)
    if isinstance(env, Environment):
        metadata = env.get_metadata()
    elif cls is not None:
        metadata = metadata_of(cls)
        metadata.name = env_name or metadata.name
    else:
        name = env_name or str(getattr(env, "__name__", type(env).__name__))
        metadata = EnvironmentMetadata(name=name, description=f"{name} environment", version="1.0.0")
    if metadata.readme_content is None:
        metadata.readme_content = _readme(ServerSettings.read().readme_path, cls)
    return metadata


def _ask(environment: Any, _: None) -> EnvironmentMetadata:
    metadata: EnvironmentMetadata = environment.get_metadata()
    return metadata


def _readme(configured: str | None, cls: type[Any] | None) -> str | None:
    """The configured file; else a README.md beside the environment's module, above it, or in the image's folder."""
    candidates = [] if configured is None else [Path(configured)]
    folder = None if cls is None else _folder_of(cls)
    if folder is not None:
        # Only where a project lies: the folder above site-packages is nobody's.
        candidates += [place / "README.md" for place in (folder, folder.parent) if (place / "openenv.yaml").exists()]
    for candidate in [*candidates, CONTAINER_README]:
        if candidate.is_file() and candidate.stat().st_size <= README_BYTES:
            return candidate.read_text(encoding="utf-8", errors="replace")
    return None


def _folder_of(cls: type[Any]) -> Path | None:
    try:
        module = inspect.getsourcefile(cls)
    except (OSError, TypeError):  # of a notebook, or not written in Python
        return None
    return None if module is None else Path(module).resolve().parent
