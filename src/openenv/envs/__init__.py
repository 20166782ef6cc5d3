"""Environments that come with the package. They only use the public API."""
