"""The server's side of the benchmark environment."""
