"""How long `openenv episodes view` takes to show a folder of rollouts in headless Chromium.

    python scripts/bench_rollout_viewer.py [--rollouts 10000] [--turns 20] [--tokens 100]

Needs playwright and chromium, as `make test-web` does. It writes the rollouts into a temporary folder, and prints
seconds: until the list has all rollouts and draws the first, with a new server, another browser tab, and a restarted
server; until one rollout is drawn; and until a text that occurs nowhere is searched for.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from playwright.sync_api import Browser, Page, sync_playwright

from openenv.rollouts.records import Rollout, RolloutOutcome, RolloutTask, StepRecord, TokenUsage, Turn

WORDS = ["the", "agent", "looks", "for", "a", "kettle", "in", "this", "shop", "and", "buys", "tea"]
IN_A_FILE = 2500
LIMIT_MS = 120_000
LOADED = """count => {
  const grid = document.querySelector('[role=grid]');
  const first = grid?.querySelector('.line')?.innerText ?? '';
  return grid?.getAttribute('aria-rowcount') === String(count + 1) && first.includes('terminated');
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("--rollouts", 10_000), ("--turns", 20), ("--tokens", 0)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-headless-shell")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        size = write(folder, given.rollouts, given.turns, given.tokens)
        print(f"{given.rollouts:,} rollouts of {given.turns} turns, {given.tokens} tokens each: {size / 1e6:,.0f} MB")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        with viewing(folder) as url:
            said("list, new server", opened(browser, url, given.rollouts)[0])
            seconds, page = opened(browser, url, given.rollouts)
            said("list, another tab", seconds)
            said("one rollout", timed(page.locator(".line").first.click, page, ".turn"))
            page.keyboard.press("Escape")
            page.locator(".line").first.wait_for()
            said("search", timed(lambda: page.locator("#text").fill("zebra"), page, "h2:text('Searched all')"))
        with viewing(folder) as url:
            said("list, restarted server", opened(browser, url, given.rollouts)[0])
        browser.close()


def write(folder: Path, rollouts: int, turns: int, tokens: int) -> int:
    """Writes the rollouts; the bytes of their files."""
    rng = random.Random(0)  # noqa: S311 - no secrets
    for first in range(0, rollouts, IN_A_FILE):
        with (folder / f"rollouts-{first:09}.jsonl").open("wb") as file:
            for number in range(first, min(rollouts, first + IN_A_FILE)):
                file.write(msgspec.json.encode(rollout(number, turns, tokens, rng)) + b"\n")
    return sum(path.stat().st_size for path in folder.iterdir())


def rollout(number: int, turns: int, tokens: int, rng: random.Random) -> Rollout:
    """A rollout of about 1.3 kB a turn in messages, and 15 bytes a token."""

    def text(count: int) -> str:
        return " ".join(rng.choices(WORDS, k=count))

    played = [
        Turn(
            [{"role": "tool" if turn else "user", "content": text(40)}],
            {"role": "assistant", "content": text(20), "reasoning_content": text(60)},
            completion_ids=[rng.randrange(50_000) for _ in range(tokens)] or None,
            logprobs=[round(-rng.expovariate(3), 6) for _ in range(tokens)] or None,
            usage=TokenUsage(800, 0, 120),
            steps=[StepRecord({"item": text(1)}, observation={"text": text(40)}, reward=rng.random())],
        )
        for turn in range(turns)
    ]
    group = str(number // 8)
    reward = sum(turn.reward or 0.0 for turn in played)
    return Rollout(
        f"{group}-{number % 8}",
        RolloutTask(number // 8, "train", number // 8),
        group,
        number % 8,
        RolloutOutcome.TERMINATED,
        reward,
        turns=played,
        started=1.8e9 + number,
        seconds=rng.uniform(5, 20),
    )


@contextmanager
def viewing(folder: Path) -> Iterator[str]:
    """The address of a viewer of a folder, from when it is printed."""
    command = [sys.executable, "-m", "openenv", "episodes", "view", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own command
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        try:
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)


def opened(browser: Browser, url: str, rollouts: int) -> tuple[float, Page]:
    """Seconds until a new tab shows the whole list, and the tab."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    began = time.perf_counter()
    page.goto(url)
    page.wait_for_function(LOADED, arg=rollouts, timeout=LIMIT_MS)
    return time.perf_counter() - began, page


def timed(act: Callable[[], None], page: Page, selector: str) -> float:
    """Seconds from an action until something is drawn."""
    began = time.perf_counter()
    act()
    page.locator(selector).first.wait_for(timeout=LIMIT_MS)
    return time.perf_counter() - began


def said(what: str, seconds: float) -> None:
    """Prints a result."""
    print(f"{what:<24}{seconds:6.2f} s", flush=True)


if __name__ == "__main__":
    main()
