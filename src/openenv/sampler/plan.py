"""What is to be sampled: the facts that give every process the same order, and each task to one of them."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from ..errors import InvalidArgument

__all__ = ["Plan"]

_SEED_BITS = 31


@dataclass(frozen=True, slots=True)
class Plan:
    """Which tasks there are, in which order they come, and which of them are this shard's.

    Attributes:
        split: The split's name.
        size: How many tasks it has.
        seed: Of the order.
        shuffle: Whether there is another order in each epoch; else tasks come by their index.
        repeats: How often each task comes in an epoch, one after the other.
        shard, shards: This is shard number `shard`, from 0, of so many.
    """

    split: str
    size: int
    seed: int
    shuffle: bool
    repeats: int
    shard: int
    shards: int

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("repeats", 1), ("shards", 1), ("shard", 0), ("seed", None)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
                at_least = "" if least is None else f" of at least {least}"
                raise InvalidArgument(f"{name} must be a whole number{at_least}, got {value!r}")
        if self.shard >= self.shards:
            raise InvalidArgument(f"shard must be one of 0 to {self.shards - 1} (shards={self.shards}): {self.shard}")
        if self.shards > self.size:
            raise InvalidArgument(
                f"{self.shards} shards of {self.size} tasks: some would have none; use at most {self.size} shards"
            )

    @property
    def share(self) -> int:
        """How many tasks of an epoch are this shard's."""
        return len(range(self.shard, self.size, self.shards))

    def order(self, epoch: int) -> array[int]:
        """The indices of this shard's tasks, in the order of an epoch.

        All shards of an epoch together have every index once; no shard has more than one task more than another.
        """
        indices = array("q", range(self.size))
        if self.shuffle:
            Random(f"{self.seed}/{epoch}").shuffle(indices)  # noqa: S311 - an order, no secret
        return indices[self.shard :: self.shards]

    def seed_of(self, epoch: int, index: int) -> int:
        """A seed for the episodes of a task in an epoch: the same for all its repeats, whichever shard has it."""
        words = f"{self.seed}/{self.split}/{epoch}/{index}".encode()
        return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest()) >> (64 - _SEED_BITS)

    def facts(self) -> dict[str, Any]:
        """What a journal says of it."""
        return asdict(self)
