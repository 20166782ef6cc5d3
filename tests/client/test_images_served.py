"""Images between a client, an environment that is served, its records and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from openenv import Action, EnvClient, Environment, GenericEnvClient, Observation, RenderedImage, State, create_app
from openenv.client import memory
from openenv.errors import InvalidAction
from openenv.recording import Recording
from openenv.recording.difference import within
from openenv.replay import ReplayRules, ReplaySummary, app_target, replay

from ..server.wires import served

FRAME = np.random.default_rng(0).integers(0, 256, (80, 60, 3), dtype=np.uint8)
IMAGE = RenderedImage.of(FRAME)


class Paint(Action):
    picture: RenderedImage | None = None


class Painted(Observation):
    screen: RenderedImage
    views: list[RenderedImage] = []


class Gallery(Environment[Paint, Painted, State]):
    """Shows the picture that it is given."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Painted:
        return Painted(screen=IMAGE, metadata={"before": IMAGE})

    def step(self, action: Paint, timeout_s: float | None = None) -> Painted:
        picture = action.picture or IMAGE
        return Painted(screen=picture, views=[picture, IMAGE], reward=1.0, done=True)

    @property
    def state(self) -> State:
        return State()


class GalleryEnv(EnvClient[Paint, Painted, State]):
    pass


def app_of() -> Any:
    return create_app(Gallery)


@pytest.mark.parametrize("wire", ["openenv.v2.msgpack", "openenv.v2.json", None])
async def test_a_typed_client_gets_images(wire: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SUBPROTOCOL", wire)
    drawn = RenderedImage.of(FRAME[::-1], "webp")
    async with GalleryEnv(app=app_of()) as env:
        first = await env.reset()
        assert (first.observation.screen, first.metadata) == (IMAGE, {"before": IMAGE.data_url()})
        second = (await env.step(Paint(picture=drawn))).observation
        assert (second.screen, second.views) == (drawn, [drawn, IMAGE])
        np.testing.assert_array_equal(second.screen.to_array(), FRAME[::-1])


def test_an_untyped_client_sends_and_gets_data_urls() -> None:
    with served(app_of()) as address, GenericEnvClient(address).sync() as env:
        assert env.reset().observation["screen"] == IMAGE.data_url()
        with pytest.raises(InvalidAction, match=r"picture.*needs a data: URL"):
            env.step({"picture": "none"})
        assert env.step({"picture": IMAGE.data_url()}).observation["views"] == [IMAGE.data_url()] * 2


async def test_records_are_replayed(tmp_path: Path) -> None:
    async with GalleryEnv(app=app_of(), record=str(tmp_path)) as env:
        await env.reset(seed=1)
        await env.step(Paint(picture=RenderedImage.of(FRAME[::-1])))
    (episode,) = Recording(tmp_path).episodes()
    screens = [RenderedImage.of(each.observation["screen"]).to_array() for each in episode.transitions()]
    np.testing.assert_array_equal(screens, [FRAME, FRAME[::-1]])
    summary, target = ReplaySummary(), app_target("gallery", app_of())
    await replay(Recording(tmp_path).episodes(), lambda _: target, ReplayRules(within(0.0)), 1, summary.add)
    await target.aclose()
    assert summary.sentence() == "1 the same"


def test_the_page_gets_data_urls() -> None:
    with TestClient(app_of()) as http:
        session = http.post("/sessions").json()
        headers = {"X-Session-ID": session["session_id"], "X-Session-Token": session["token"]}
        http.post("/web/reset", json={}, headers=headers)
        body = {"action": {"picture": IMAGE.data_url()}}
        shown = http.post("/web/step", json=body, headers=headers).json()["observation"]
        assert (shown["screen"], shown["views"]) == (IMAGE.data_url(), [IMAGE.data_url()] * 2)
