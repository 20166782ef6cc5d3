"""The endpoints of the viewer: lists, one rollout, its tokens, search, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient

from openenv.rollouts.index import RolloutIndex
from openenv.rollouts.records import PrefixBreak, Rollout, RolloutOutcome
from openenv.rollouts.viewer import RolloutViewer, viewer_app

from ..asynchronous import PATIENCE_S
from .chat_templates import BytePairTokenizer
from .folders import make_rollout, make_turn, write_rollouts

FAILED = RolloutOutcome.MODEL_FAILED


class Viewer:
    """A client of the viewer of a folder."""

    def __init__(self, client: TestClient):
        self.client = client

    def get(self, name: str, **query: Any) -> Any:
        answer = self.client.get(f"/rollouts/{name}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def runs(self) -> Any:
        """The runs, when everything is read."""
        while (answer := self.get("runs"))["reading"]:
            pass
        return answer

    def ids(self, **query: Any) -> list[str]:
        self.runs()
        return [row["rollout_id"] for row in self.get("rows", **query)["rows"]]

    def search(self, text: str, **query: Any) -> list[dict[str, Any]]:
        self.runs()
        lines = self.client.get("/rollouts/search", params={"text": text, **query}).text.splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[Viewer]:
    with TestClient(viewer_app(tmp_path), base_url="http://127.0.0.1:8000") as client:
        yield Viewer(client)


async def test_what_an_earlier_reading_has_passed_by_is_in_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_by, written = threading.Event(), threading.Event()
    refresh = RolloutIndex.refresh

    def held(index: RolloutIndex) -> None:
        refresh(index)
        passed_by.set()
        assert written.wait(PATIENCE_S)

    monkeypatch.setattr(RolloutIndex, "refresh", held)
    viewer = RolloutViewer(RolloutIndex(tmp_path), None)
    viewer.refresh()
    assert await asyncio.to_thread(passed_by.wait, PATIENCE_S)
    monkeypatch.undo()
    write_rollouts(tmp_path / "rollouts-a.jsonl", make_rollout(0))
    asking = asyncio.create_task(viewer.runs())
    await asyncio.sleep(0)
    written.set()
    answer = json.loads((await asking).body)
    assert (len(answer["runs"]), answer["reading"]) == (1, False)


def test_rollouts_are_filtered(viewer: Viewer, tmp_path: Path) -> None:
    write_rollouts(tmp_path / "x" / "rollouts-a.jsonl", *(make_rollout(number, turns=number) for number in range(5)))
    write_rollouts(tmp_path / "y" / "rollouts-a.jsonl", make_rollout(5), make_rollout(6, outcome=FAILED))
    assert viewer.ids() == ["1-2", "1-1", "1-0", "0-3", "0-2", "0-1", "0-0"]
    assert viewer.ids(run="y") == ["1-2", "1-1"]
    assert viewer.ids(run="x", group="1") == ["1-0"]
    assert viewer.ids(outcome=["model_failed", "refused"]) == ["1-2"]
    assert viewer.ids(task="TRAIN/1") == ["1-2", "1-1", "1-0"]
    assert viewer.ids(min_reward=1, max_reward=3.5) == ["0-3", "0-2", "0-1"]
    assert viewer.ids(min_turns=3) == ["1-0", "0-3"]
    assert viewer.ids(max_turns=1) == ["0-1", "0-0"]
    assert viewer.ids(run="z") == []
    assert viewer.get("rollout", file="y/rollouts-a.jsonl", offset=0)["run"] == "y"


def test_rollouts_are_sorted_and_those_without_a_value_come_last(viewer: Viewer, tmp_path: Path) -> None:
    rollouts = [make_rollout(0), make_rollout(1, outcome=FAILED), make_rollout(2)]
    write_rollouts(tmp_path / "rollouts-a.jsonl", *rollouts)
    assert viewer.ids(sort="reward") == ["0-2", "0-0", "0-1"]
    assert viewer.ids(sort="reward", descending=False) == ["0-0", "0-2", "0-1"]
    part = viewer.get("rows", sort="started", descending=False, start=1, count=1)
    assert (part["total"], [row["rollout_id"] for row in part["rows"]]) == (3, ["0-1"])


def test_groups_and_runs_have_means_of_the_rollouts_with_a_return(viewer: Viewer, tmp_path: Path) -> None:
    rollouts = [make_rollout(number) for number in (0, 1, 2)]
    write_rollouts(tmp_path / "x" / "rollouts-a.jsonl", *rollouts, make_rollout(3, outcome=FAILED), make_rollout(4))
    (run,) = viewer.runs()["runs"]
    assert (run["run"], run["rollouts"], run["groups"], run["reward"]) == ("x", 5, 2, 7 / 4)
    assert run["outcomes"] == {"terminated": 4, "model_failed": 1}
    assert run["usage"]["cost"] == pytest.approx(0.05)
    assert (run["started"], run["ended"]) == (1000, 1006)
    first, second = viewer.get("groups", sort="spread")["rows"]
    assert (first["group"], first["rollouts"], first["failed"]) == ("0", 3, 1)
    assert (first["reward"], first["low"], first["high"]) == (1, 0, 2)
    assert first["spread"] == pytest.approx((2 / 3) ** 0.5)
    assert (second["group"], second["spread"]) == ("1", 0)
    assert viewer.get("groups", outcome="model_failed")["rows"][0]["reward"] is None


def test_a_rollout_comes_without_its_token_ids_and_a_turns_tokens_on_demand(tmp_path: Path) -> None:
    tokenizer = BytePairTokenizer("", ["<end>"])
    sampled = tokenizer.encode("tea €", add_special_tokens=False)
    logprobs = [-0.5 * (1 + 2 * (place % 2)) for place in range(len(sampled))]
    ids = {"prompt_ids": [1, 2, 3], "completion_ids": sampled, "logprobs": logprobs, "tokens": "sampled"}
    broken = PrefixBreak("compaction", 2, 5, 3)
    rollout = make_rollout(turns=[make_turn(), make_turn(1, prefix_break=broken, **ids)])
    write_rollouts(tmp_path / "rollouts-a.jsonl", rollout)

    named = {"file": "rollouts-a.jsonl", "offset": 0}
    for given in (None, tokenizer):
        with TestClient(viewer_app(tmp_path, tokenizer=given), base_url="http://127.0.0.1") as client:
            viewer = Viewer(client)
            viewer.runs()
            shown = viewer.get("rollout", **named)
            mean = pytest.approx(sum(logprobs) / len(sampled))
            assert shown["tokens"][1] == {"prompt": 3, "completion": len(sampled), "logprob": mean}
            read = msgspec.convert(shown["rollout"], Rollout)
            assert (read.turns[0], read.turns[1].prefix_break) == (rollout.turns[0], broken)
            assert read.turns[1].completion_ids is None
            tokens = viewer.get("tokens", **named, turn=1)
            assert (tokens["source"], tokens["ids"], tokens["logprobs"]) == ("sampled", sampled, logprobs)
            assert (tokens["texts"] is None) == (given is None)
            assert given is None or "".join(tokens["texts"]) == "tea €"
            assert viewer.get("tokens", **named, turn=0)["ids"] == []
            assert client.get("/rollouts/tokens", params={**named, "turn": 2}).status_code == 404


def test_texts_are_found_wherever_they_stand(viewer: Viewer, tmp_path: Path) -> None:
    there = [
        make_rollout(0, turns=[make_turn(), make_turn(1, text="A Needle, and a needle\nof gold")]),
        make_rollout(1),
        make_rollout(
            2, turns=[make_turn(prompt=[{"role": "user", "content": [{"type": "text", "text": "needle"}]}])]
        ),
    ]
    write_rollouts(tmp_path / "rollouts-a.jsonl", *there)
    found = {line["row"]["rollout_id"]: line["match"] for line in viewer.search("NEEDLE") if "row" in line}
    first = {"turn": 1, "part": "completion", "before": "A ", "found": "Needle", "after": ", and a needle\nof gold"}
    second = {"turn": 0, "part": "prompt", "before": "", "found": "needle", "after": ""}
    assert found == {"0-0": {**first, "count": 1}, "0-2": {**second, "count": 1}}
    assert viewer.search("needle")[-1] == {"searched": 3, "of": 3}
    assert viewer.search("needle", max_reward=1)[-1] == {"searched": 2, "of": 2}
    # The names of fields, roles and ids are not texts.
    for absent in ("assistant", "arguments", "call-0", "nowhere", 'a "quote"'):
        assert [line for line in viewer.search(absent) if "row" in line] == []


@pytest.mark.parametrize("ascii_only", [True, False])
def test_text_is_found_however_its_line_was_encoded(viewer: Viewer, tmp_path: Path, ascii_only: bool) -> None:
    rollout = make_rollout(turns=[make_turn(text='für "Tee" \\ 茶')])
    line = json.dumps(msgspec.to_builtins(rollout), ensure_ascii=ascii_only)
    (tmp_path / "rollouts-a.jsonl").write_text(f"{line}\n")
    for text in ("FÜR", '"tee"', "茶", "\\ 茶", 'für "Tee"'):
        assert len(viewer.search(text)) == 2, text


def test_new_rollouts_appear_and_a_torn_line_waits(viewer: Viewer, tmp_path: Path) -> None:
    assert (viewer.runs()["runs"], viewer.ids()) == ([], [])
    file = write_rollouts(tmp_path / "rollouts-a.jsonl", make_rollout(0), make_rollout(1))
    file.write_bytes(file.read_bytes()[:-20])
    (tmp_path / "rollouts-steps.jsonl").write_text('{"step": 0}\n')
    assert viewer.ids() == ["0-0"]
    (fault,) = viewer.runs()["faults"]
    assert "rollouts-steps.jsonl" in fault


def test_a_rollout_of_five_megabytes_is_shown(viewer: Viewer, tmp_path: Path) -> None:
    text = "All work and no play. " * 250_000
    write_rollouts(tmp_path / "rollouts-a.jsonl", make_rollout(turns=[make_turn(text=text)]))
    assert viewer.ids() == ["0-0"]
    assert (
        viewer.get("rollout", file="rollouts-a.jsonl", offset=0)["rollout"]["turns"][0]["completion"]["content"]
        == text
    )


def test_what_is_not_there_and_what_is_not_valid_is_said(viewer: Viewer, tmp_path: Path) -> None:
    write_rollouts(tmp_path / "rollouts-a.jsonl", make_rollout(0))
    (tmp_path / "secret.txt").write_text("secret")
    viewer.runs()
    for name, offset in (("rollouts-a.jsonl", 3), ("secret.txt", 0), ("../rollouts-a.jsonl", 0), ("/etc/passwd", 0)):
        answer = viewer.client.get("/rollouts/rollout", params={"file": name, "offset": offset})
        assert (answer.status_code, answer.json()["error"]) == (404, "UnreadableRecord")
    for query in (
        "rows?sort=shoe",
        "rows?count=100000",
        "groups?min_turns=x",
        "search?text=",
        "rollout?file=rollouts-a.jsonl",
    ):
        assert viewer.client.get(f"/rollouts/{query}").status_code == 422


def test_pages_of_other_sites_cannot_read_it(viewer: Viewer) -> None:
    assert viewer.client.get("/rollouts/runs", headers={"Host": "evil.example"}).status_code == 403
    policy = viewer.client.get("/").headers["content-security-policy"]
    assert "img-src data:;" in policy
    assert "https:" not in policy
