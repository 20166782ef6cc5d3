"""Environments that come with the package, written as users write theirs: with the public API alone."""
