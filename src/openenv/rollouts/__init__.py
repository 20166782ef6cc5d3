"""Rollouts: episodes with a model in them, recorded to the token."""
