"""The trajectory that an agent wrote itself (ATIF), compared with the calls that the capture proxy recorded."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FATAL, WARN, INFO = "FATAL", "WARN", "INFO"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceFinding:
    """A difference between a trajectory and the recorded calls.

    Attributes:
        severity: `FATAL`, if the calls may not be trained on; `WARN`; `INFO`.
        code: Kind of the difference.
        detail: What differs.
    """

    severity: str
    code: str
    detail: str

    def __str__(self) -> str:
        return f"[{self.severity}] {self.code}: {self.detail}"


@dataclass(slots=True)
class TraceComparison:
    """What the comparison of a trajectory with the recorded calls found.

    Attributes:
        status: `match`, `MISMATCH`, or `none` without a trajectory.
        findings: The differences.
        auxiliary: Ids of the turns that the trajectory leaves out: calls that are not the agent's own steps.
    """

    status: str = "none"
    findings: list[TraceFinding] = field(default_factory=list)
    auxiliary: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no difference is fatal."""
        return all(finding.severity != FATAL for finding in self.findings)


def load_atif(trial_dir: str | Path) -> Json | None:
    """The trajectory that the agent of a trial wrote to `agent/trajectory.json`; None without one."""
    try:
        document = json.loads((Path(trial_dir) / "agent" / "trajectory.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    steps = document.get("steps") if isinstance(document, dict) else None
    return document if isinstance(steps, list) and all(isinstance(step, dict) for step in steps) else None


def load_trace(trial_dir: str | Path) -> tuple[Json | None, str]:
    """The trajectory of a trial and `atif`; None and an empty text if the agent wrote none."""
    found = load_atif(trial_dir)
    return found, "" if found is None else "atif"


def agent_steps(atif: Mapping[str, Any]) -> list[Json]:
    """The steps of a trajectory that a call of the model made: not copied context, and no steps without a call."""
    return [
        step
        for step in atif.get("steps", ())
        if step.get("source") == "agent" and step.get("llm_call_count") != 0 and not step.get("is_copied_context")
    ]


def atif_turn_lengths(atif: Mapping[str, Any]) -> list[int]:
    """The number of tokens that the model sampled in each of `agent_steps`; 0 where the agent did not note it."""
    return [(step.get("metrics") or {}).get("completion_tokens") or 0 for step in agent_steps(atif)]


def reconcile(document: Mapping[str, Any], atif: Mapping[str, Any] | None) -> TraceComparison:
    """Compares the recorded calls with the agent's own trajectory, call by call.

    Args:
        document: The document of a session, as `openenv.capture.export_session` returns it.
        atif: The trajectory; None: the agent wrote none.

    Returns:
        `match` if both have the same calls with the same numbers of sampled tokens. Calls that the trajectory leaves
        out are auxiliary, if the others are in order. All else is a fatal `MISMATCH`. For sessions without token ids,
        only the number of calls is compared.
    """
    if atif is None:
        return TraceComparison()
    turns = [turn for turn in document["turns"] if not turn["discarded"]]
    theirs, ours = atif_turn_lengths(atif), [turn["n_sampled"] for turn in turns]
    if document["rollout_type"] != "train" or not any(theirs):
        if len(theirs) == len(ours):
            return TraceComparison("match")
        finding = TraceFinding(WARN, "other_calls", f"{len(theirs)} calls in the trajectory, {len(ours)} recorded")
        return TraceComparison("MISMATCH", [finding])
    if theirs == ours:
        return TraceComparison("match")
    rest = _left_out(theirs, ours)
    if rest is None:
        detail = f"sampled tokens of the calls: {theirs[:20]} in the trajectory, {ours[:20]} recorded"
        return TraceComparison("MISMATCH", [TraceFinding(FATAL, "other_calls", detail)])
    names = [turns[number]["node_id"] for number in rest]
    finding = TraceFinding(INFO, "auxiliary_calls", f"the trajectory leaves out {', '.join(names)}")
    return TraceComparison("match", [finding], names)


def _left_out(short: Sequence[int], long: Sequence[int]) -> list[int] | None:
    """The positions of `long` without which it is `short`; None if there are no such."""
    rest, at = [], 0
    for number, value in enumerate(long):
        if at < len(short) and short[at] == value:
            at += 1
        else:
            rest.append(number)
    return rest if at == len(short) else None


def merge_into_atif(atif: Mapping[str, Any], document: Mapping[str, Any]) -> Json:
    """A copy of a trajectory with the recorded ids and log probabilities in the metrics of its steps.

    Args:
        atif: The trajectory.
        document: The document of the session, as for `reconcile`. If the two do not match, nothing is added.
    """
    merged = copy.deepcopy(dict(atif))
    compared = reconcile(document, atif)
    if compared.status != "match" or document["rollout_type"] != "train":
        return merged
    sampled: dict[str, tuple[list[int], list[float]]] = {}
    by_id = {turn["node_id"]: turn for turn in document["turns"]}
    for sequence in document["sequences"]:
        for node_id, length in zip(sequence["node_ids"], sequence["turn_lengths"], strict=True):
            start = by_id[node_id]["n_prompt"]
            part = slice(start, start + length)
            sampled.setdefault(node_id, (sequence["input_ids"][part], by_id[node_id]["sampled_logprobs"] or []))
    own = [turn["node_id"] for turn in document["turns"] if not turn["discarded"]]
    own = [node_id for node_id in own if node_id not in compared.auxiliary]
    for step, node_id in zip(agent_steps(merged), own, strict=True):
        ids, logprobs = sampled[node_id]
        metrics = {"completion_token_ids": ids, **({"logprobs": logprobs} if logprobs else {})}
        step["metrics"] = {**(step.get("metrics") or {}), **metrics}
    return merged
