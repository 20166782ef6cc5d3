"""The client: drives one session of a served environment, or many at once; asynchronously or not."""

from .env_client import EnvClient
from .generic import GenericAction, GenericEnvClient
from .sync_client import SyncEnvClient
from .sync_vector import SyncVectorEnvClient
from .vector import Finished, VectorEnvClient

__all__ = [
    "EnvClient",
    "Finished",
    "GenericAction",
    "GenericEnvClient",
    "SyncEnvClient",
    "SyncVectorEnvClient",
    "VectorEnvClient",
]
