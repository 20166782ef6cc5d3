"""GPUs of this machine, each for one server of this process at most."""

from __future__ import annotations

from pathlib import Path

from ..errors import LaunchFailed

__all__ = ["VISIBLE", "Gpus", "of_machine"]

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that tells a process which GPUs it has."""


class Gpus:
    """Who has which. Other processes are not known: those get GPUs of their own by `CUDA_VISIBLE_DEVICES`."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, count: int, visible: str | None) -> tuple[str, ...]:
        """GPUs for a server, by their names in `CUDA_VISIBLE_DEVICES`.

        Args:
            count: How many.
            visible: That variable of this process; None: it has all of the machine's.

        Raises:
            LaunchFailed: So many are not free.
        """
        there = _named(visible) if visible is not None else _found()
        # Where the machine does not tell how many it has, it is believed to have enough.
        names = there if there is not None else [str(number) for number in range(count + len(self._taken))]
        free = [name for name in names if name not in self._taken][:count]
        if len(free) < count:
            raise LaunchFailed(
                f"{count} GPUs are asked for, and of the {len(names)} here {len(free)} are free: "
                "stop another deployment, or ask for fewer"
            )
        self._taken.update(free)
        return tuple(free)

    def give_back(self, gpus: tuple[str, ...]) -> None:
        """Frees GPUs that `take` gave. May be called repeatedly, before they are taken again."""
        self._taken.difference_update(gpus)


of_machine = Gpus()
"""Those that servers of this process are given. For the loop of this process alone."""


def _named(visible: str) -> list[str]:
    names = [name.strip() for name in visible.split(",")]
    # What comes after an unknown one is not there: so CUDA reads it.
    return names[: names.index("-1")] if "-1" in names else [name for name in names if name]


def _found() -> list[str] | None:
    devices = [device.name.removeprefix("nvidia") for device in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(devices, key=int) or None
