"""Transports: WebSocket connections inside uvicorn, behind any ASGI server, and in memory."""
