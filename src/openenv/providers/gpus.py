"""Which GPUs a server has, where its place leaves the choice to us."""

from __future__ import annotations

from .deployment import Deployment

__all__ = ["gpus_for"]


def gpus_for(deployment: Deployment) -> tuple[str, ...]:
    """GPUs for a further server: the first that no other one of the deployment has (`handle.gpus` of each)."""
    each = deployment.spec.gpus_each
    if not each:
        return ()
    taken = {gpu for server in deployment.servers if server.handle is not None for gpu in server.handle.gpus}
    numbers = (str(number) for number in range(len(taken) + each))  # whether there are so many, the place will say
    return tuple(gpu for gpu in numbers if gpu not in taken)[:each]
