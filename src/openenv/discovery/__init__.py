"""Find an environment by what it is for, before anything of it is installed or run."""

from typing import TYPE_CHECKING

from .._imports import lazy as _lazy

if TYPE_CHECKING:
    from .catalog import (
        ENVIRONMENT_MEDIA_TYPE,
        PROFILE_VERSION,
        CatalogChanges,
        CatalogError,
        CatalogSnapshot,
        DiscoveryEntry,
        EnvironmentCard,
        SearchMatch,
        compare_catalogs,
        load_catalog,
        resolve_entry,
        search_catalog,
        write_catalog,
    )
    from .git_catalog import build_catalog

__all__ = [
    "ENVIRONMENT_MEDIA_TYPE",
    "PROFILE_VERSION",
    "CatalogChanges",
    "CatalogError",
    "CatalogSnapshot",
    "DiscoveryEntry",
    "EnvironmentCard",
    "SearchMatch",
    "build_catalog",
    "compare_catalogs",
    "load_catalog",
    "resolve_entry",
    "search_catalog",
    "write_catalog",
]

_HOMES = dict.fromkeys(__all__, "openenv.discovery.catalog") | {"build_catalog": "openenv.discovery.git_catalog"}

__getattr__, __dir__ = _lazy(__name__, _HOMES)
