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

from openenv.errors import UsageError

IMAGES, PLAYED = (f"{__name__}:{name}-v0" for name in ("Images", "Played"))
# Steps of an episode of images.
EPISODE = 1000
# Different images of an episode.
IMAGES_EACH = 8
# The module that registers an environment, by the start of its name. Gymnasium registers the others.
PACKAGES = {"ALE/": "ale_py", "MiniGrid-": "minigrid"}
INSTALL = (
    "Use .venv-trainers (`make test-trainers`), or install its packages: ale-py and opencv-python-headless (ALE), "
    "minigrid (MiniGrid), mujoco and imageio (MuJoCo), gymnasium[box2d] (CarRacing)"
)


class ImageEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Returns a new uint8 array for each step, with random contents, of which there are eight.

    Args:
        shape: Shape of an observation.
    """

    execution = "inline"

    def __init__(self, shape: tuple[int, ...] = (84, 84, 4)):
        self.observation_space = spaces.Box(0, 255, tuple(shape), np.uint8)
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
def _images(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (IMAGES_EACH, *shape), np.uint8)


def usual(played: str) -> gymnasium.Env[Any, Any]:
    """A real environment: ALE games in grey, 84x84, with 4 frames skipped and 4 stacked; MiniGrid as an image.

    Raises:
        UsageError: Its package is not installed; the message names it.
    """
    try:
        for start, module in PACKAGES.items():
            if played.startswith(start):
                import_module(module)
        if played.startswith("ALE/"):
            raw = gymnasium.make(played, frameskip=1)
            return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.AtariPreprocessing(raw), 4)
        env: gymnasium.Env[Any, Any] = gymnasium.make(played)
        if played.startswith("MiniGrid-"):
            wrappers = import_module("minigrid.wrappers")
            return wrappers.ImgObsWrapper(wrappers.RGBImgPartialObsWrapper(env))  # type: ignore[no-any-return]
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise UsageError(f"{played} cannot be made: {error}. {INSTALL}") from error
    return env


gymnasium.register("Images-v0", f"{__name__}:ImageEnv", disable_env_checker=True)
gymnasium.register("Played-v0", f"{__name__}:usual", disable_env_checker=True)
