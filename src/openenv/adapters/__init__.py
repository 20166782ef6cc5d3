"""Adapters for other libraries: their environments served by openenv, and its environments in their interfaces."""
