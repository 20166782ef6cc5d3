"""An imported environment: my_summary"""

from openenv import GenericEnvClient as MyEnv

__all__ = ["MyEnv"]
