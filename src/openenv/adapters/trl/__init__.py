"""Served environments for TRL: `GRPOTrainer(environment_factory=environment_factory(MyEnv, base_url=...))`.

Needs neither torch nor trl itself.
"""

from __future__ import annotations

from .episode import TrlEpisode, environment_factory

__all__ = ["TrlEpisode", "environment_factory"]
