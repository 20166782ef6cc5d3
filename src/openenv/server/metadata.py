"""What `GET /metadata` says about an environment."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..environment import Environment, metadata_of
from ..execution import class_of, profile_of
from ..sessions.waiting import opened_session, result_of
from ..settings import ServerSettings
from ..types import EnvironmentMetadata

if TYPE_CHECKING:
    from .environment_server import HTTPEnvServer

__all__ = ["environment_metadata", "load_environment_metadata", "places_of", "with_readme"]

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
    return with_readme(metadata, server)


def with_readme(metadata: EnvironmentMetadata, server: HTTPEnvServer) -> EnvironmentMetadata:
    """The same with the README that a server shows, if it has none of its own."""
    if metadata.readme_content is None:
        metadata.readme_content = _readme(server.settings.readme_path, class_of(server.env_factory))
    return metadata


def places_of(cls: type[Any]) -> list[Path]:
    """The folders in which files that belong to an environment are looked for: its module's, then its project's."""
    folder = _folder_of(cls)
    if folder is None:
        return []
    # Only where a project lies: the folder above site-packages is nobody's.
    return [folder, *([folder.parent] if (folder.parent / "openenv.yaml").exists() else [])]


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
    places = [] if cls is None else places_of(cls)
    candidates += [place / "README.md" for place in places if (place / "openenv.yaml").exists()]
    for candidate in [*candidates, CONTAINER_README]:
        with contextlib.suppress(OSError):  # one that may not be read, or is gone by now
            if candidate.is_file() and candidate.stat().st_size <= README_BYTES:
                return candidate.read_text(encoding="utf-8", errors="replace")
    return None


def _folder_of(cls: type[Any]) -> Path | None:
    try:
        module = inspect.getsourcefile(cls)
    except (OSError, TypeError):  # of a notebook, or not written in Python
        return None
    return None if module is None else Path(module).resolve().parent
