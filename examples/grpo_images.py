"""Trains a vision language model with GRPO (TRL): it names the colour of an image by a tool call.

    python examples/grpo_images.py --model Qwen/Qwen3-VL-2B-Instruct --steps 100

The environment is in this file. Its reset returns an image, which `environment_factory` puts into the prompt.
The example needs `pip install openenv trl pillow torchvision`, and a vision model that calls tools, which TRL
downloads from the Hub.
"""

from __future__ import annotations

import argparse
from typing import Any, Literal

from datasets import Dataset
from PIL import Image
from trl import GRPOConfig, GRPOTrainer

from openenv.adapters.trl import environment_factory
from openenv.client import GenericEnvClient
from openenv.environment import Environment
from openenv.images import RenderedImage
from openenv.types import Action, Observation, State

COLOURS = ("red", "green", "blue")
PROMPT = "Call the tool `name` with the colour of this image."
GROUP = 8  # GRPO compares the episodes of a group, which have the same image


class NameAction(Action):
    """The name of a colour."""

    colour: Literal["red", "green", "blue"]


class Picture(Observation):
    """An image; none after the answer."""

    image: RenderedImage | None = None


class Colours(Environment[NameAction, Picture, State]):
    """Shows a colour, and rewards its name."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._colour = COLOURS[0]

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Picture:
        self._colour = self.rng.choice(COLOURS)
        return Picture(image=RenderedImage.of(Image.new("RGB", (64, 64), self._colour)))

    def step(self, action: NameAction, timeout_s: float | None = None, **kwargs: Any) -> Picture:
        return Picture(reward=float(action.colour == self._colour), done=True)

    @property
    def state(self) -> State:
        return State()


def main() -> None:
    options = arguments()
    trainer = make_trainer(options.model, max_steps=options.steps, output_dir=options.output_dir)
    trainer.train()
    trainer.save_model(options.output_dir)


def make_trainer(model: Any, *, processor: Any = None, **settings: Any) -> GRPOTrainer:
    """A trainer whose rollouts begin with an image.

    Args:
        model: The model, or its name on the Hub.
        processor: Its processor. By default TRL loads the one of the model.
        settings: Fields of `GRPOConfig` that override the defaults below.
    """
    defaults = {
        "per_device_train_batch_size": GROUP,
        "num_generations": GROUP,
        "max_completion_length": 256,
        "max_tool_calling_iterations": 1,
        "learning_rate": 1e-6,
        "logging_steps": 1,
        "report_to": "none",
    }
    rows = [{"prompt": [{"role": "user", "content": PROMPT}], "seed": seed} for seed in range(4096)]
    return GRPOTrainer(
        model=model,
        processing_class=processor,
        environment_factory=environment_factory(
            GenericEnvClient, tools={"name": NameAction}, env=Colours, columns=["seed"]
        ),
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(**defaults | settings),
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen3-VL-2B-Instruct", help="name of the model on the Hub")
    parser.add_argument("--steps", type=int, default=100, help="number of optimizer steps")
    parser.add_argument("--output-dir", default="out/grpo_images", help="folder for the trained model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
