"""Server of the parcel environment."""

from .parcel_env_environment import ParcelEnvironment

__all__ = ["ParcelEnvironment"]
