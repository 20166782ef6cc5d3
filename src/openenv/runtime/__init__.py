"""Environments and their sessions: where each runs, which client gets one, and how it ends."""
