"""Datasets of recorded rollouts: what each trainer reads, and nothing twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openenv.errors import UsageError
from openenv.rollouts.export import DatasetKind, export_rollouts
from openenv.rollouts.records import Rollout, RolloutOutcome

from .written import TOOLS, rollout_of, write_rollouts


def rows_of(folder: Path, kind: DatasetKind, **options: Any) -> list[dict[str, Any]]:
    target = folder / f"{kind}.jsonl"
    counts = export_rollouts(folder, target, kind, **options)
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(rows) == counts["rows"]
    return rows


def test_sft_has_each_completion_once_with_arguments_as_templates_read_them(tmp_path: Path) -> None:
    (row,) = rows_of(write_rollouts(tmp_path, rollout_of()), "sft")
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert [message["role"] for message in row["completion"]] == ["assistant", "tool", "assistant"]
    assert row["completion"][0]["tool_calls"][0]["function"]["arguments"] == {"at": 0}
    assert row["completion"][0]["reasoning_content"] == "hm"
    assert json.loads(row["tools"]) == TOOLS
    assert row["task"] == "train/0"


def test_after_a_prefix_break_the_history_is_prompt(tmp_path: Path) -> None:
    first, second = rows_of(write_rollouts(tmp_path, rollout_of(broken=True)), "sft")
    assert [message["role"] for message in first["completion"]] == ["assistant"]
    assert [message["role"] for message in second["prompt"]] == ["system", "user", "assistant", "tool"]
    assert [message["role"] for message in second["completion"]] == ["assistant"]


def test_arguments_that_are_no_json_stay_text(tmp_path: Path) -> None:
    rollout = rollout_of()
    rollout.turns[0].completion["tool_calls"][0]["function"]["arguments"] = "{broken"
    (row,) = rows_of(write_rollouts(tmp_path, rollout), "sft")
    assert row["completion"][0]["tool_calls"][0]["function"]["arguments"] == "{broken"


def test_openai_weighs_what_the_model_did_not_say_there_with_0(tmp_path: Path) -> None:
    first, second = rows_of(write_rollouts(tmp_path, rollout_of(broken=True)), "openai")
    assert "weight" not in first["messages"][-1]
    assert [message.get("weight") for message in second["messages"]] == [None, None, 0, None, None]
    assert "reasoning_content" not in first["messages"][-1]
    assert json.loads(first["messages"][-1]["tool_calls"][0]["function"]["arguments"]) == {"at": 0}
    assert first["tools"] == TOOLS


def test_preference_pairs_the_best_of_a_task_with_its_worst(tmp_path: Path) -> None:
    returns = {"g0": (0.0, 3.0, 1.0, 2.0), "g1": (1.0, 1.0), "g2": (4.0,)}
    rollouts = [rollout_of(group, n, reward) for group, all_ in returns.items() for n, reward in enumerate(all_)]
    target = tmp_path / "pairs.jsonl"
    counts = export_rollouts(write_rollouts(tmp_path, *rollouts), target, "preference")
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted((row["score_chosen"], row["score_rejected"]) for row in rows) == [(2.0, 1.0), (3.0, 0.0)]
    assert {row["group"] for row in rows} == {"g0"}
    best = next(row for row in rows if row["score_chosen"] == 3.0)
    assert best["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"at": 1}
    assert best["rejected"][0]["tool_calls"][0]["function"]["arguments"] == {"at": 0}
    assert counts["equal returns in their group"] == 3


def test_a_pair_keeps_the_whole_conversation_over_a_prefix_break(tmp_path: Path) -> None:
    folder = write_rollouts(tmp_path, rollout_of(reward=1.0, broken=True), rollout_of(member=1, reward=0.0))
    (row,) = rows_of(folder, "preference")
    assert [message["role"] for message in row["chosen"]] == ["assistant", "tool", "assistant"]


def test_members_with_other_prompts_make_no_pair(tmp_path: Path) -> None:
    other = rollout_of(member=1, reward=0.0)
    other.turns[0].prompt[1]["content"] = "another room"
    with pytest.raises(UsageError, match="2 with a prompt that their group does not share"):
        export_rollouts(write_rollouts(tmp_path, rollout_of(), other), tmp_path / "x.jsonl", "preference")


def test_grpo_has_a_segment_between_two_breaks(tmp_path: Path) -> None:
    folder = write_rollouts(tmp_path, rollout_of(), rollout_of(member=1, broken=True))
    whole, first, second = rows_of(folder, "grpo")
    assert whole["prompt_ids"] == [1, 2]
    assert whole["completion_ids"] == [3, 4, 5, 6]
    assert whole["env_mask"] == [1, 1, 0, 1]
    assert whole["logprobs"] == [-0.5, -0.25, 0.0, -1.0]
    assert (whole["reward"], whole["tokens"]) == (1.0, "sampled")
    assert [first["segment"], second["segment"]] == [0, 1]
    assert second["prompt_ids"] == [1, 2, 4, 5]


def test_no_failure_is_taught_and_each_is_counted(tmp_path: Path) -> None:
    failed = rollout_of(member=1, outcome=RolloutOutcome.ENVIRONMENT_FAILED)
    folder = write_rollouts(tmp_path, rollout_of(), failed, rollout_of(member=2, ids=False))
    expected: dict[DatasetKind, int] = {"sft": 2, "openai": 2, "grpo": 1, "rollouts": 3}
    assert {kind: len(rows_of(folder, kind)) for kind in expected} == expected
    counts = export_rollouts(folder, tmp_path / "again.jsonl", "grpo")
    assert counts == {"rows": 1, "no return": 1, "no token ids": 1}


def test_low_returns_are_left_out(tmp_path: Path) -> None:
    folder = write_rollouts(
        tmp_path, rollout_of(), rollout_of(member=1, reward=0.2), rollout_of(member=2, reward=None)
    )
    assert len(rows_of(folder, "sft", min_reward=0.5)) == 1
    with pytest.raises(UsageError, match="lower --min-reward"):
        export_rollouts(folder, tmp_path / "none.jsonl", "openai", min_reward=5.0)
    assert not (tmp_path / "none.jsonl").exists()


def test_all_rollouts_come_back_from_lines(tmp_path: Path) -> None:
    rollouts = [rollout_of(), rollout_of(member=1, outcome=RolloutOutcome.REFUSED)]
    target = tmp_path / "all.jsonl"
    export_rollouts(write_rollouts(tmp_path / "run", *rollouts), target)
    decode = msgspec.json.Decoder(Rollout).decode
    assert [decode(line) for line in target.read_bytes().splitlines()] == rollouts


def test_parquet_has_the_same_rollouts_and_the_same_ids(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rollouts = [rollout_of(), rollout_of(member=1, outcome=RolloutOutcome.REFUSED)]
    folder = write_rollouts(tmp_path / "run", *rollouts)
    export_rollouts(folder, tmp_path / "all.parquet")
    rows = parquet.read_table(tmp_path / "all.parquet").to_pylist()
    assert [row["outcome"] for row in rows] == ["terminated", "refused"]
    assert [row["reward"] for row in rows] == [1.0, None]
    assert msgspec.json.decode(rows[0]["turns"], type=list[msgspec.Raw])
    assert json.loads(rows[0]["task"]) == {"seed": 7, "split": "train", "index": 0}
    export_rollouts(folder, tmp_path / "ids.parquet", "grpo")
    (row,) = parquet.read_table(tmp_path / "ids.parquet").to_pylist()
    assert row["completion_ids"] == [3, 4, 5, 6]
    assert row["logprobs"] == [-0.5, -0.25, 0.0, -1.0]
    with pytest.raises(UsageError, match=r"name \.jsonl"):
        export_rollouts(folder, tmp_path / "x.parquet", "sft")


def test_a_folder_without_rollouts_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no rollout for sft"):
        export_rollouts(tmp_path, tmp_path / "x.jsonl", "sft")
    folder = write_rollouts(tmp_path / "run", rollout_of(ids=False))
    with pytest.raises(UsageError, match="token ids"):
        export_rollouts(folder, tmp_path / "x.jsonl", "grpo")
    with pytest.raises(UsageError, match="--group 8"):
        export_rollouts(folder, tmp_path / "x.jsonl", "preference")
