"""Gymnasium environments with large observations, registered for `openenv bench frames`.

`Images-v0` has its own pictures; `Played-v0` is a real environment with its usual preprocessing.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

IMAGES, PLAYED = (f"{__name__}:{name}-v0" for name in ("Images", "Played"))
# Steps of an episode of images.
EPISODE = 1000
# Different images of an episode.
IMAGES_EACH = 8
# The module that registers environments, by the start of their names.
PACKAGES = {"ALE/": "ale_py", "MiniGrid-": "minigrid"}


class ImageEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Returns a new uint8 array for each step, with random contents, of which there are eight.

    Args:
        shape: Shape of an observation.
    """

    execution = "inline"

    def __init__(self, shape: tuple[int, ...] = (84, 84, 4)):
        self.observation_space = _space(tuple(shape))
        self.action_space = spaces.Discrete(6)
        self._images = _images(tuple(shape))
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts an episode of 1,000 steps."""
        super().reset(seed=seed)
        self._steps = 0
        return self._images[0].copy(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Returns the next image, and the action as reward."""
        self._steps += 1
        image = self._images[self._steps % IMAGES_EACH].copy()
        return image, float(action), self._steps == EPISODE, False, {}


@cache
def _space(shape: tuple[int, ...]) -> gymnasium.Space[Any]:
    # All environments of a process share one: its bounds are as large as four images.
    return spaces.Box(0, 255, shape, np.uint8)


@cache
def _images(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (IMAGES_EACH, *shape), np.uint8)


def target_of(env_id: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments, in Gymnasium's registry, of a real environment with its usual preprocessing."""
    return (PLAYED, {"played": env_id}) if env_id.startswith(tuple(PACKAGES)) else (env_id, {})


class _InlineStack(gymnasium.wrappers.FrameStackObservation[Any, Any, Any]):
    # A game holds Python's lock while it plays: threads would only compete for it.
    execution = "inline"


def preprocessed(played: str) -> gymnasium.Env[Any, Any]:
    """An ALE game in grey, 84x84, with 4 frames skipped and 4 stacked; or MiniGrid as an image."""
    import_module(next(module for start, module in PACKAGES.items() if played.startswith(start)))
    if played.startswith("ALE/"):
        game = gymnasium.wrappers.AtariPreprocessing(gymnasium.make(played, frameskip=1))
        return _InlineStack(game, 4)
    wrappers = import_module("minigrid.wrappers")
    env: gymnasium.Env[Any, Any] = wrappers.ImgObsWrapper(wrappers.RGBImgPartialObsWrapper(gymnasium.make(played)))
    return env


gymnasium.register("Images-v0", f"{__name__}:ImageEnv", disable_env_checker=True)
gymnasium.register("Played-v0", f"{__name__}:preprocessed", disable_env_checker=True)
