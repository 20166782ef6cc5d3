"""The web page of a server: its files, the endpoints and the WebSocket it talks to."""
