"""The wire protocol. No sockets, no clock, no event loop: bytes in, typed messages out, and back."""
