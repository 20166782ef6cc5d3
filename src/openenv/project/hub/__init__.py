"""Publish projects as Spaces of the Hub, fork Spaces, download them. (Extra `hub`.)"""

from .client import Hub, Patience
from .dataset import dataset_card, push_dataset
from .publish import Published, Stage, push
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
