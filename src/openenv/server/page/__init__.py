"""The web page of a server: its files, its endpoints and its WebSocket."""
