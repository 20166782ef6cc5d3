"""Parcels to be sorted into vans."""

import random
from typing import Any, Dict, List, Optional
from uuid import uuid4

from openenv.core.env_server import Environment

try:
    from ..models import Parcel, ParcelAction, ParcelObservation, Van
except ImportError:
    from models import Parcel, ParcelAction, ParcelObservation, Van

ROUTES: Dict[str, List[Dict[str, Any]]] = {
    "train": [{"depot": "north", "parcels": count} for count in (1, 2, 3)],
    "test": [{"depot": "south", "parcels": 2}],
}


class Ledger:
    """The state: no model of OpenEnv, only an object with attributes."""

    def __init__(self, episode_id: str, depot: str):
        self.episode_id = episode_id
        self.step_count = 0
        self.depot = depot
        self.delivered_kg = 0.0

    def __iter__(self):
        return iter(vars(self).items())


class ParcelEnvironment(Environment):
    """Does not call its base's constructor, and its step takes the action only."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, small_limit_kg: float = 10.0, large_limit_kg: float = 100.0):
        self._limits = {"small": small_limit_kg, "large": large_limit_kg}
        self._ledger = Ledger("", "")
        self._vans: Dict[str, Van] = {}
        self._left = 0
        self._random = random.Random()

    def reset(
        self,
        seed: Optional[int] = None,
        episode_id: Optional[str] = None,
        depot: str = "central",
        parcels: int = 3,
    ) -> ParcelObservation:
        if parcels < 1:
            raise ValueError("an episode needs at least one parcel")
        self._random = random.Random(seed)
        self._ledger = Ledger(episode_id or str(uuid4()), depot)
        self._vans = {name: Van(name=name, limit_kg=limit) for name, limit in self._limits.items()}
        self._left = parcels
        return self._observe("go")

    def step(self, action: ParcelAction) -> ParcelObservation:
        if not self._vans:
            raise RuntimeError("reset first")
        self._ledger.step_count += 1
        parcel = action.parcel or self._belt
        van = self._vans[action.van]
        van.parcels.append(parcel)
        if van.load_kg > van.limit_kg:
            return self._observe(f"the {van.name} van broke", done=True, reward=-1.0)
        self._ledger.delivered_kg += parcel.weight_kg
        self._left -= 1
        return self._observe(action.note or "put", done=self._left == 0, reward=1.0)

    @property
    def state(self):
        return self._ledger

    def close(self) -> None:
        self._vans = {}

    def list_splits(self) -> List[Dict[str, Any]]:
        return [{"name": name, "type": name} for name in ROUTES]

    def list_tasks(self, split: str) -> List[Dict[str, Any]]:
        return ROUTES[split]

    def num_tasks(self, split: str) -> int:
        return len(ROUTES[split])

    def get_task(self, split: str, index: int) -> Dict[str, Any]:
        return ROUTES[split][index]

    def get_task_range(self, split: str, start: Optional[int] = None, stop: Optional[int] = None):
        return ROUTES[split][start:stop]

    def _observe(self, message: str, done: bool = False, reward: Optional[float] = None) -> ParcelObservation:
        self._belt = Parcel(weight_kg=self._random.randint(1, 9), labels=["fragile"])
        return ParcelObservation(
            vans=self._vans,
            belt=None if done else self._belt,
            message=message,
            done=done,
            reward=reward,
            metadata={"left": self._left},
        )
