"""What a model that sees gets of an observation with images."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from openenv.adapters.trl import environment_factory
from openenv.adapters.trl.episode import answer_of
from openenv.client import GenericEnvClient
from openenv.environment import Environment
from openenv.errors import StepFailed
from openenv.images import RenderedImage
from openenv.server import create_app
from openenv.types import Action, Observation, State

from ..server.wires import served

RED = (255, 0, 0)


def file_of(kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (12, 10), RED).save(file, kind)
    return file.getvalue()


PNG = base64.b64encode(file_of()).decode()


def parts_of(observation: Any) -> list[dict[str, Any]]:
    content = answer_of(observation)
    assert isinstance(content, list)
    return content


def image_of(part: dict[str, Any]) -> Any:
    assert part.keys() == {"type", "image"}
    assert part["type"] == "image"
    return part["image"]


@pytest.mark.parametrize(
    "screen",
    [
        f"data:image/png;base64,{PNG}",
        PNG,
        base64.b64encode(file_of("GIF")).decode(),
        file_of("WEBP"),
        file_of("JPEG"),
        np.full((10, 12, 3), RED, np.uint8),
        RenderedImage.of(np.full((10, 12, 3), RED, np.uint8), "jpeg"),
    ],
)
def test_an_image_is_a_content_part(screen: Any) -> None:
    image, text = parts_of({"message": "look", "screen": screen, "reward": 1.0})
    assert image_of(image).size == (12, 10)
    (found,) = [colour for _, colour in image_of(image).convert("RGB").getcolors()]
    assert np.allclose(found, RED, atol=3)
    assert text == {"type": "text", "text": "look"}


def test_all_else_is_one_text() -> None:
    *images, text = parts_of({"score": 3, "views": [{"at": "left", "of": PNG}, PNG]})
    assert [image_of(each).size for each in images] == [(12, 10)] * 2
    assert text["text"] == '{"score":3,"views":[{"at":"left"},"image 2"]}'
    assert [part["type"] for part in parts_of({"screen": PNG, "done": False})] == ["image"]


def test_a_tool_of_an_mcp_environment_may_answer_with_an_image() -> None:
    blocks = [{"type": "text", "text": "here"}, {"type": "image", "data": PNG, "mimeType": "image/png"}]
    image, text = parts_of({"tool_name": "look", "result": {"data": None, "content": blocks}})
    assert image_of(image).size == (12, 10)
    assert text["text"] == "here"


@pytest.mark.parametrize(
    "observation",
    [{"message": "/9j/ is a path"}, {"board": np.zeros((3, 3, 3), np.uint8)}, {"data": b"\x00\x01"}, {"n": 1}],
)
def test_what_is_no_image_stays_text(observation: Any) -> None:
    assert isinstance(answer_of(observation), str)


def test_an_image_that_cannot_be_read_says_what_to_give() -> None:
    with pytest.raises(StepFailed, match="render="):
        answer_of({"screen": PNG[:60] + "A" * 40})


class Look(Action):
    pass


class Seen(Observation):
    screen: str = ""


class Window(Environment[Look, Seen, State]):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Seen:
        return Seen(screen=PNG)

    def step(self, action: Look, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        return Seen(screen=f"data:image/png;base64,{PNG}", reward=1.0, done=True)

    @property
    def state(self) -> State:
        return State()


def test_reset_and_tools_of_an_episode_give_content_parts() -> None:
    with served(create_app(Window, Look, Seen)) as address:
        episode = environment_factory(GenericEnvClient, {"look": Look}, base_url=address)()
        for content in (episode.reset(), episode.look()):
            assert isinstance(content, list)
            assert [image_of(part).size for part in content] == [(12, 10)]
