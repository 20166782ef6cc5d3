"""Server of the abacus."""

from .abacus_env_environment import AbacusEnvironment

__all__ = ["AbacusEnvironment"]
