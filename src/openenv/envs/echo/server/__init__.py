"""The server's side of the echo environment."""
