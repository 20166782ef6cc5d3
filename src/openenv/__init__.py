"""Typed reinforcement-learning environments, served to trainers by the thousand."""

__version__ = "1.0.0"
