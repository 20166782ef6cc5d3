"""Environments that the page is shown."""
