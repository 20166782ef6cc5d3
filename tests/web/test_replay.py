"""Recorded episodes, opened again."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from playwright.sync_api import Browser, expect

from openenv.client import GenericEnvClient
from openenv.project.target import load
from openenv.recording.reader import Recording
from openenv.replay import ReplayOutcome, ReplayPlayer, ReplayRules, app_target

from ..cli.process import serving
from ..server.wires import eventually
from .built import ROOT
from .conftest import Enter
from .visitor import Visitor


def _recorded(visitor: Visitor, place: Path) -> Path:
    with visitor.page.expect_download() as download:
        visitor.page.locator("#download").click()
    file = place / "episode.jsonl"
    download.value.save_as(file)
    return file


def test_an_episode_is_downloaded_and_gone_through_again(counter: str, enter: Enter, tmp_path: Path) -> None:
    visitor = enter(counter).reset(seed=50)
    for count in range(1, 4):
        visitor.step(count)
    file = _recorded(visitor, tmp_path)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert lines[0]["seed"] == 50
    assert lines[2]["action"] == {"by": 1}
    assert lines[2]["reward"] == 1
    assert set(lines[1]) == {
        "episode_id", "session_id", "step", "action", "observation", "reward", "terminated", "truncated", "done",
        "time", "duration_s", "error", "environment", "versions", "schema",
    }  # fmt: skip
    venue = app_target("counter", load("tests.web.worlds.paneled.counter:app"))
    (episode,) = Recording(file).episodes()
    assert (episode.environment, episode.whole) == ("counter", True)
    with ThreadPoolExecutor(1) as pool:  # playwright has the loop of this thread
        verdict = pool.submit(asyncio.run, ReplayPlayer(episode, venue, ReplayRules()).verdict()).result()
    assert verdict.outcome is ReplayOutcome.SAME
    visitor.open(counter, "replay")
    page = visitor.page
    page.locator("#file").set_input_files(file)
    visitor.at(0)
    page.locator("#scrub-title").click()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    visitor.at(2)
    assert "52" in visitor.observation().inner_text()
    page.get_by_label("Transition", exact=True).fill("3")
    visitor.at(3)
    expect(page.locator(".box")).to_have_count(0)
    assert page.locator(".curve canvas").count() == 1
    visitor.look("replay")


def test_the_pictures_of_an_episode_are_replayed_and_saved_as_a_gif(rich: str, enter: Enter, tmp_path: Path) -> None:
    visitor = enter(rich).reset().step(1).step(2)
    page = visitor.page
    assert page.locator(".transition img").count() == 3
    assert _gif_frames(visitor, tmp_path / "played.gif") == 3
    file = _recorded(visitor, tmp_path)
    assert all("<" in json.loads(line)["render"] for line in file.read_text().splitlines())
    visitor.open(rich, "replay")
    page.locator("#file").set_input_files(file)
    visitor.at(0)
    assert page.locator(".transition img").count() == 3
    page.locator("iframe.rendered").scroll_into_view_if_needed()
    expect(page.frame_locator("iframe.rendered").get_by_text("Board")).to_be_visible()
    assert _gif_frames(visitor, tmp_path / "replayed.gif") == 3
    visitor.look("replay-pictures")
    assert visitor.check_accessibility() == []


def _gif_frames(visitor: Visitor, file: Path) -> int:
    with visitor.page.expect_download() as download:
        visitor.page.locator("#gif").click()
    download.value.save_as(file)
    data = file.read_bytes()
    assert data[:6] == b"GIF89a"
    return data.count(b"\x21\xf9\x04")  # a graphic control extension before each frame


def test_a_torn_file_is_told_and_its_readable_part_shown(counter: str, enter: Enter, tmp_path: Path) -> None:
    visitor = enter(counter).reset()
    visitor.step(1).step(2)
    file = _recorded(visitor, tmp_path)
    file.write_text(file.read_text()[:-30])
    visitor.open(counter, "replay")
    page = visitor.page
    page.locator("#file").set_input_files(file)
    expect(page.locator(".box.warn")).to_contain_text("line 3 is incomplete")
    assert page.locator(".transition").count() == 2


def test_an_episode_of_another_environment_is_shown_with_a_word(
    counter: str, rich: str, enter: Enter, tmp_path: Path
) -> None:
    file = _recorded(enter(counter).reset(seed=1).step(1), tmp_path)
    visitor = enter(rich, "replay")
    visitor.page.locator("#file").set_input_files(file)
    expect(visitor.page.locator(".box.warn")).to_contain_text("Recorded from")
    assert "1" in visitor.observation().inner_text()


def test_what_is_no_recording_is_refused_in_words(counter: str, enter: Enter, tmp_path: Path) -> None:
    visitor = enter(counter, "replay")
    for content in (b"\x89PNG\0\1\2", b"", b'{"a": 1}\n', b"[]"):
        (tmp_path / "some.bin").write_bytes(content)
        visitor.page.locator("#file").set_input_files(tmp_path / "some.bin")
        expect(visitor.page.locator(".box.bad")).to_contain_text("no transition that this page can read")


def test_a_file_is_dropped(counter: str, enter: Enter) -> None:
    visitor = enter(counter, "replay")
    page = visitor.page
    line = json.dumps({"step": 0, "observation": {"value": 77}})
    transfer = page.evaluate_handle(
        "text => { const t = new DataTransfer(); t.items.add(new File([text], 'a.jsonl')); return t }", line
    )
    page.locator(".drop").dispatch_event("drop", {"dataTransfer": transfer})
    visitor.at(0)
    assert "77" in visitor.observation().inner_text()


def test_ten_thousand_transitions_are_gone_through(counter: str, enter: Enter, tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(
        "".join(f"{json.dumps({'step': n, 'observation': {'value': n}, 'reward': n % 7})}\n" for n in range(10_001))
    )
    visitor = enter(counter, "replay")
    page = visitor.page
    page.locator("#file").set_input_files(file)
    page.locator("#scrub-title").click()
    page.keyboard.press("End")
    visitor.at(10_000)
    assert page.evaluate("document.querySelectorAll('*').length") < 1000


def test_what_a_server_recorded_is_opened_and_gone_through(browser: Browser, enter: Enter, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    with serving("tests.web.worlds.paneled.counter:app", "--record", str(folder), cwd=ROOT) as server:
        # Mixed, and from the page as well as from clients.
        with GenericEnvClient(server.url) as one, GenericEnvClient(server.url) as other:
            for client, seed in ((one, 5), (other, 6)):
                client.reset(seed=seed)
            for _ in range(3):
                one.step({"by": 1})
                other.step({"by": 2})
        enter(server.url).reset(seed=50).step(1)
        visitor = enter(server.url, "replay")
        eventually(lambda: sum(file.read_text().count("\n") for file in folder.glob("*.jsonl")) >= 10)
        (file,) = folder.glob("*.jsonl")
        page = visitor.page
        page.locator("#file").set_input_files(file)
        visitor.at(0)
        expect(page.locator(".box")).to_have_count(0)
        assert page.locator("#episode option").count() == 3
        page.get_by_label("Transition", exact=True).fill("3")
        visitor.at(3)
        assert "8" in visitor.observation().inner_text()
