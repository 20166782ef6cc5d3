"""The client: drives one session of a served environment, asynchronously or not."""

from .env_client import EnvClient
from .generic import GenericAction, GenericEnvClient
from .sync_client import SyncEnvClient

__all__ = ["EnvClient", "GenericAction", "GenericEnvClient", "SyncEnvClient"]
