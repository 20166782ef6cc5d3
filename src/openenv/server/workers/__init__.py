"""Many workers on one machine: one parent accepts, the worker with the fewest sessions serves."""

from ..._sockets import can_pass_sockets
from .supervisor import Supervisor

__all__ = ["Supervisor", "can_pass_sockets"]
