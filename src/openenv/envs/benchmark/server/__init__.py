"""The server of the benchmark environment."""
