"""Serve Gymnasium's environments (`gymnasium:ENV_ID`), and use served environments through its interfaces.

Serving: `gymnasium_environment`, `gymnasium_batch`, `gymnasium_app`. Training: `RemoteEnv`, `RemoteVectorEnv`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy
from ...errors import MissingExtra
from ...project.target import parse_target

try:
    import gymnasium as _gymnasium  # noqa: F401
except ModuleNotFoundError as missing:
    raise MissingExtra("gymnasium", "gymnasium") from missing

from .batched import GymnasiumBatch, gymnasium_batch
from .description import describe, rebuild
from .environment import (
    GymnasiumEnvironment,
    GymnasiumObservation,
    GymnasiumState,
    gymnasium_app,
    gymnasium_environment,
)

if TYPE_CHECKING:
    from .remote import RemoteEnv
    from .remote_vector import RemoteVectorEnv
else:  # a server does not need these, or the client that they import
    __getattr__, __dir__ = lazy(
        __name__, {"RemoteEnv": f"{__name__}.remote", "RemoteVectorEnv": f"{__name__}.remote_vector"}
    )

__all__ = [
    "GymnasiumBatch",
    "GymnasiumEnvironment",
    "GymnasiumObservation",
    "GymnasiumState",
    "RemoteEnv",
    "RemoteVectorEnv",
    "describe",
    "gymnasium_app",
    "gymnasium_batch",
    "gymnasium_environment",
    "parse_target",
    "rebuild",
]
