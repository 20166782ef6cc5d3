"""An environment played through its forms."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from playwright.sync_api import expect

from ..cli.process import serving
from .built import ROOT
from .conftest import Enter


def _curve(page: Any) -> int:
    """Pixels of the reward curve that have the colour of rewards."""
    return int(
        page.evaluate(
            """() => {
              const canvas = document.querySelector('.curve canvas');
              const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
              let found = 0;
              for (let at = 0; at < data.length; at += 4) {
                const near = (of, to) => Math.abs(data[at + of] - to) < 40;
                if (data[at + 3] > 200 && near(0, 0x17) && near(1, 0x6b) && near(2, 0x5b)) found += 1;
              }
              return found;
            }"""
        )
    )


def test_ten_steps_through_the_form_draw_a_curve(rich: str, enter: Enter) -> None:
    visitor = enter(rich).reset(seed=7)
    page = visitor.page
    for count in range(1, 11):
        page.locator("#action_move").select_option(label="north")
        page.locator("#action_steps").fill(str(1 + count % 5))
        visitor.step(count)
    assert _curve(page) > 100
    assert "Reward of 10 steps" in (page.locator(".curve [role=img]").get_attribute("aria-label") or "")
    assert visitor.history()[0] == "reset seed 7 difficulty=1, name=walker"
    assert page.locator(".transition").count() == 11
    visitor.look("played")


def test_every_kind_of_field_reaches_the_environment(rich: str, enter: Enter) -> None:
    visitor = enter(rich).reset()
    page = visitor.page
    form = page.locator("section", has=page.locator("#action-title"))
    form.locator("#action_move").select_option(label="south")
    form.locator("#action_force").fill("2.5")
    form.locator("#action_careful").check()
    form.locator("#action_kind").select_option(label="dream")
    form.locator("#action_message").fill("two\nlines")
    form.get_by_role("button", name="Add Target").click()
    target = form.locator("#action_target")
    target.get_by_label("X").fill("3")
    target.get_by_label("Y").fill("9")
    form.get_by_role("button", name="Add to Path").click()
    form.locator("#action_path_0_x").fill("1")
    form.locator("#action_path_0_y").fill("2")
    form.get_by_role("button", name="Add to Tags").click()
    form.locator("#action_tags_0").fill("quick")
    form.locator("#action_extra").fill('{"deep": [1, {"er": null}]}')
    visitor.step(1)
    heard = json.loads(visitor.tab("JSON").locator("pre").inner_text())["heard"]
    assert heard == {
        "move": "south",
        "steps": 1,
        "force": 2.5,
        "careful": True,
        "target": {"x": 3, "y": 9},
        "path": [{"x": 1, "y": 2}],
        "tags": ["quick"],
        "kind": "dream",
        "message": "two\nlines",
        "extra": {"deep": [1, {"er": None}]},
    }


def test_what_is_wrong_is_said_beside_its_field_and_sends_nothing(rich: str, enter: Enter) -> None:
    visitor = enter(rich).reset()
    page = visitor.page
    page.locator("#action_steps").fill("9")
    page.locator("#step-button").click()
    fault = page.locator("#action_steps__error .fault")
    expect(fault).to_be_visible()
    assert visitor.fact("step") == "0"
    page.locator("#action_steps").fill("2")
    page.locator("#action_extra").fill("{not json")
    page.locator("#step-button").click()
    expect(page.locator("#action_extra")).to_be_focused()
    assert visitor.fact("step") == "0"
    page.locator("#action_extra").fill("")
    visitor.step(1)


def test_what_only_the_server_finds_wrong_is_said_beside_its_field_too(rich: str, enter: Enter) -> None:
    visitor = enter(rich, refusals=True).reset()
    page = visitor.page
    page.locator("#action_message").fill("rude")
    page.locator("#step-button").click()
    expect(page.locator("#action_message__error")).to_contain_text("that is rude")
    expect(page.locator(".box.bad")).to_contain_text("that is rude")
    page.locator("#action_message").fill("kind")
    visitor.step(1)


def test_a_full_server_is_told_in_words(enter: Enter) -> None:
    with serving("tests.web.worlds.paneled.counter:app", "--max-sessions", "1", cwd=ROOT) as server:
        enter(server.url).reset()
        second = enter(server.url, refusals=True)
        second.page.locator("#reset-button").click()
        expect(second.page.locator(".box.bad")).to_contain_text("All sessions of this server are in use")
        expect(second.page.locator("#reset-button")).to_be_enabled()


def test_the_servers_own_faults_are_said_in_words(rich: str, enter: Enter) -> None:
    visitor = enter(rich, refusals=True).reset()
    page = visitor.page
    page.locator("#action_message").fill("fail")
    page.locator("#step-button").click()
    alert = page.locator(".box.bad")
    expect(alert).to_contain_text("the walker fell")
    expect(page.locator(".transition.bad")).to_contain_text("failed")
    page.locator("#action_message").fill("go on")
    visitor.step(1)
    expect(alert).to_have_count(0)


def test_actions_on_offer_are_one_click(rich: str, enter: Enter) -> None:
    visitor = enter(rich).reset()
    visitor.page.get_by_role("button", name="Far south").click()
    visitor.at(1)
    assert visitor.history()[1] == "move=south, steps=5"


def test_an_episode_that_is_done_takes_no_step_until_the_next_reset(rich: str, enter: Enter) -> None:
    visitor = enter(rich).reset()
    page = visitor.page
    for count in range(1, 13):
        visitor.step(count)
    expect(page.locator("#step-button")).to_be_disabled()
    expect(page.locator("#step-reason")).to_contain_text("done")
    expect(page.locator(".badge")).to_have_text("done")
    visitor.reset().step(1)
    assert page.get_by_label("Episode", exact=True).locator("option").count() == 2


def test_a_second_press_is_no_second_step(rich: str, enter: Enter) -> None:
    visitor = enter(rich).reset()
    page = visitor.page
    page.evaluate(
        "() => { const b = document.querySelector('#step-button'); for (let i = 0; i < 8; i++) b.click(); }"
    )
    visitor.at(1)
    page.wait_for_load_state("networkidle")
    assert visitor.fact("step") == "1"


def test_the_history_is_stepped_through_with_arrow_keys(rich: str, enter: Enter) -> None:
    visitor = enter(rich).reset()
    for count in range(1, 6):
        visitor.step(count)
    page = visitor.page
    page.locator("#observation-title").click()
    page.keyboard.press("ArrowLeft")
    visitor.at(4)
    page.keyboard.press("Home")
    visitor.at(0)
    page.keyboard.press("ArrowRight")
    visitor.at(1)
    page.keyboard.press("End")
    visitor.at(5)
    page.locator(".transition").nth(2).click()
    visitor.at(2)
    assert '"step_count": 2' in visitor.tab("State").inner_text()


def test_an_observation_is_seen_as_fields_image_and_drawing(rich: str, enter: Enter) -> None:
    visitor = enter(rich).reset(seed=1)
    page = visitor.page
    drawn = page.frame_locator("iframe.rendered")
    expect(drawn.locator("h3")).to_have_text("Board")
    assert visitor.observation().locator(".grid tr").count() == 4
    image = visitor.tab("Image").locator("img")
    image.evaluate("image => image.decode()")
    assert image.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [48, 32]


def test_the_same_seed_is_the_same_episode(rich: str, enter: Enter) -> None:
    visitor = enter(rich)
    boards = []
    for seed in (3, 3, 4):
        visitor.reset(seed=seed)
        boards.append(visitor.observation().locator(".grid").inner_text())
    assert boards[0] == boards[1] != boards[2]


def test_two_visitors_have_episodes_of_their_own(counter: str, enter: Enter) -> None:
    one, other = enter(counter).reset(seed=100), enter(counter).reset(seed=200)
    for count in range(1, 4):
        one.step(count)
        other.step(count)
    assert "103" in one.observation().inner_text()
    assert "203" in other.observation().inner_text()


def test_two_pages_of_one_browser_have_episodes_of_their_own(counter: str, enter: Enter) -> None:
    one = enter(counter).reset(seed=10)
    second = type(one)(one.page.context.new_page()).open(counter).reset(seed=20)
    one.step(1)
    second.step(1)
    assert ("11" in one.observation().inner_text(), "21" in second.observation().inner_text()) == (True, True)
    assert second.faults == []


def test_a_page_that_is_left_closes_its_session(enter: Enter) -> None:
    with serving("tests.web.worlds.paneled.counter:app", cwd=ROOT) as server:
        visitor = enter(server.url).reset()
        assert len(server.get("/sessions")) == 1
        visitor.page.goto("about:blank")
        watcher = enter(server.url, "server").page
        expect(watcher.locator("#sessions-title")).to_have_text("Sessions 0")


def test_the_code_shown_makes_the_same_calls(rich: str, enter: Enter) -> None:
    visitor = enter(rich).reset(seed=5)
    page = visitor.page
    page.locator("#action_message").fill('it\'s "here" $HOME')
    visitor.step(1)
    visitor.tab("Code")
    python = page.locator("[data-code=python]").inner_text()
    said = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=60, check=True)
    reward = visitor.fact("reward")
    assert f" {reward[:5]}" in said.stdout
    assert '"here" $HOME' in said.stdout
    assert "walker begins" in said.stdout
    page.get_by_role("tab", name="curl").click()
    shell = page.locator("[data-code=curl]").inner_text()
    curled = subprocess.run(["sh", "-euc", shell], capture_output=True, text=True, timeout=60, check=True)
    assert 'it\'s \\"here\\" $HOME' in curled.stdout
    assert f'"reward":{reward[:5]}' in curled.stdout
    assert '"closed":true' in curled.stdout


def test_a_lease_that_nears_its_end_is_told_and_kept(enter: Enter) -> None:
    with serving("tests.web.worlds.paneled.counter:app", "--idle-timeout", "6", cwd=ROOT) as server:
        visitor = enter(server.url, refusals=True).reset()
        box = visitor.page.locator(".box.warn", has_text="session ends in")
        box.wait_for()
        box.get_by_role("button", name="Keep it").click()
        expect(box).to_have_count(0)
        visitor.step(1)


def test_a_task_is_chosen_from_the_lists_of_its_split(enter: Enter) -> None:
    with serving(".", cwd=ROOT / "envs/gridworld") as server:
        visitor = enter(server.url)
        page = visitor.page
        words = page.locator(".transition .words").first
        page.get_by_label("Split").select_option("test")
        visitor.reset()
        expect(words).to_contain_text("split=test")
        page.locator("#task").select_option("3")
        visitor.reset()
        expect(words).to_contain_text("index=3")
        first = visitor.observation().inner_text()
        with page.expect_response("**/web/reset"):
            visitor.reset()
        expect(visitor.observation()).to_have_text(first, use_inner_text=True)
        page.get_by_label("Split").select_option("train")
        page.locator("#task-number").fill("777")
        visitor.reset()
        expect(words).to_contain_text("index=777")
        expect(visitor.observation()).not_to_have_text(first, use_inner_text=True)
        visitor.look("tasks")
        assert visitor.check_accessibility() == []


def test_where_tasks_cannot_be_listed_their_fields_are_there(enter: Enter) -> None:
    with serving(".", cwd=ROOT / "envs/gridworld") as server:
        visitor = enter(refusals=True)
        page = visitor.page
        page.route(
            "**/gridworld/num_tasks",
            lambda route: route.fulfill(status=503, json={"error": "ServerFull", "message": "full"}),
        )
        visitor.open(server.url)
        page.locator("#split").select_option("train")
        expect(page.locator(".hint[role=alert]")).to_contain_text("The tasks could not be listed: full")
        page.locator("#reset_split").fill("train")
        page.locator("#reset_index").fill("5")
        visitor.reset()
        assert "split=train, index=5" in page.locator(".transition .words").first.inner_text()
