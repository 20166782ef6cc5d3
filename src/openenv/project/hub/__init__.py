"""Publish projects as Spaces of the Hub, fork Spaces, download them; upload datasets. (Extra `hub`.)"""

from .client import Hub, Patience
from .publish import Published, Stage, dataset_card, push, push_dataset
from .space import Forked, Pulled, SpaceName, SpaceRequest, fork, pull

__all__ = [
    "Forked",
    "Hub",
    "Patience",
    "Published",
    "Pulled",
    "SpaceName",
    "SpaceRequest",
    "Stage",
    "dataset_card",
    "fork",
    "pull",
    "push",
    "push_dataset",
]
