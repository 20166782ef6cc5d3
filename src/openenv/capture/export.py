"""What a session recorded: paths through its graph, sequences and segments to train on, and other forms of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..errors import UsageError
from ..rollouts.records import PrefixBreak, Rollout, RolloutOutcome, RolloutTask, TokenUsage, Turn
from ..rollouts.tokens import TrainingSegment, segments
from .graph import SessionGraph
from .sessions import CaptureSession
from .training import TraceEntry, TrainingTrace

Json = dict[str, Any]


@dataclass
class TurnNode:
    """A turn with all that it has: whole prompt, completion, request and answer.

    Attributes:
        node_id: `turn-` and its number.
        prompt_ids, sampled_ids: Token ids of the whole prompt and of the completion; empty without.
        sampled_logprobs: Log probability of each of `sampled_ids`; None without.
        parent_id: The turn that this prompt begins with, prompt and completion.
        follows_id: The turn that this one continues by its messages, though not by its ids.
        prefix_break: Why: a `BreakKind`; `position` is the index of the first token that differs.
        index: Its number.
        model, finish_reason, n_tools: Of request and answer.
        harness_session_id: The agent's own name for its conversation.
        request_messages, request_tools: The request, in the form of chat completions.
        sampling_params, requested_sampling_params: Fields that the engine got, and those that the agent sent.
        response_message: The answer.
        discarded: The agent has dropped it.
    """

    node_id: str
    prompt_ids: list[int]
    sampled_ids: list[int]
    sampled_logprobs: list[float] | None = None
    parent_id: str | None = None
    index: int = 0
    model: str = ""
    finish_reason: str | None = None
    harness_session_id: str | None = None
    n_tools: int = 0
    request_messages: list[Json] = field(default_factory=list)
    request_tools: list[Json] | None = None
    sampling_params: Json = field(default_factory=dict)
    requested_sampling_params: Json = field(default_factory=dict)
    response_message: Json = field(default_factory=dict)
    follows_id: str | None = None
    prefix_break: str | None = None
    position: int = 0
    discarded: bool = False

    @property
    def end_ids(self) -> list[int]:
        """Ids of prompt and completion."""
        return self.prompt_ids + self.sampled_ids

    def context_ids(self, parent: TurnNode | None) -> list[int]:
        """The ids that the prompt adds to a parent's."""
        return self.prompt_ids[len(parent.end_ids) if parent is not None else 0 :]


def node_name(number: int) -> str:
    """The id of a turn."""
    return f"turn-{number}"


def node_of(graph: SessionGraph, number: int, discarded: bool = False) -> TurnNode:
    """A turn of a graph."""
    turn = graph.turns[number]
    params = msgspec.json.decode(turn.params) or {}
    return TurnNode(
        node_name(number),
        graph.prompt_ids(number),
        graph.completion_ids(number),
        graph.logprobs(number) or None,
        node_name(turn.parent) if turn.parent >= 0 else None,
        number,
        turn.model,
        turn.finish,
        turn.agent,
        turn.n_tools,
        graph.messages(number),
        graph.tools(number),
        msgspec.json.decode(turn.sent) or params,
        params,
        msgspec.json.decode(turn.message),
        node_name(turn.follows) if turn.follows >= 0 else None,
        turn.prefix_break,
        turn.position,
        discarded,
    )


@dataclass
class TurnPath:
    """The turns from a root to a leaf, in one token sequence.

    Attributes:
        numbers: The turns.
        role: `agent`; `auxiliary` if another turn of the session has tools and none of these; `discarded`.
        input_ids: Ids of the last turn's prompt and completion.
        loss_mask: 1 for the sampled ids that have a log probability, each in one path only.
        logprobs: Log probabilities, 0.0 where the mask is 0.
        prompt_len: Number of ids of the first prompt.
    """

    numbers: list[int]
    role: str
    input_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    prompt_len: int


def paths_of(graph: SessionGraph) -> list[TurnPath]:
    """The paths to all leaves. A turn that several share is trained on in the first one that is not discarded."""
    discarded = graph.discarded()
    tooled = any(turn.n_tools for turn in graph.turns)
    has_child = {turn.parent for turn in graph.turns}
    leaves = [number for number in range(len(graph.turns)) if number not in has_child]
    paths, taken = [], set[int]()
    for leaf in sorted(leaves, key=lambda each: each in discarded):
        numbers = graph.path(leaf)
        has_tools = any(graph.turns[number].n_tools for number in numbers)
        role = "discarded" if leaf in discarded else "agent" if has_tools or not tooled else "auxiliary"
        paths.append(_path(graph, numbers, role, taken))
    return sorted(paths, key=lambda path: path.numbers[-1])


def _path(graph: SessionGraph, numbers: list[int], role: str, taken: set[int]) -> TurnPath:
    ids = graph.prompt_ids(numbers[-1]) + graph.completion_ids(numbers[-1])
    mask, logprobs = [0] * len(ids), [0.0] * len(ids)
    for number in numbers:
        start, values = graph.n_prompt(number), graph.logprobs(number)
        if values and number not in taken:
            mask[start : start + len(values)] = [1] * len(values)
            logprobs[start : start + len(values)] = values
        taken.add(number)
    return TurnPath(numbers, role, ids, mask, logprobs, graph.n_prompt(numbers[0]))


def export_session(session: CaptureSession, include_discarded: bool = False, include_messages: bool = False) -> Json:
    """The document of a session.

    Args:
        session: The session.
        include_discarded: Whether sequences that the agent dropped are listed.
        include_messages: Whether turns have requests and answers.

    Returns:
        `session_id`, `metadata`, `turns`, `sequences`, `stats`, `validation`, `trainable`, `rollout_type` and more.
    """
    graph = session.graph
    paths = paths_of(graph)
    discarded = graph.discarded()
    findings = [note.text for note in session.notes if note.what == "finding"]
    breaks = Counter(turn.prefix_break for turn in graph.turns if turn.prefix_break is not None)
    findings += [f"INFO: {count} prompts do not extend the ids before them: {kind}" for kind, count in breaks.items()]
    fatal = any(text.startswith("FATAL") for text in findings)
    trainable = session.rollout_type == "train" and not fatal
    root = {number: path.numbers[0] for path in paths for number in path.numbers}
    turns = []
    for number in range(len(graph.turns)):
        node = node_of(graph, number, number in discarded)
        facts: Json = {
            "node_id": node.node_id,
            "index": number,
            "root_id": node_name(root[number]),
            "parent_id": node.parent_id,
            "follows_id": node.follows_id,
            "prefix_break": node.prefix_break,
            "n_sampled": len(node.sampled_ids),
            "n_prompt": len(node.prompt_ids),
            "n_tools": node.n_tools,
            "finish_reason": node.finish_reason,
            "harness_session_id": node.harness_session_id,
            "dialect": graph.turns[number].dialect,
            "call": graph.turns[number].call,
            "sampling_params": node.sampling_params,
            "requested_sampling_params": node.requested_sampling_params,
            "sampled_logprobs": node.sampled_logprobs,
            "discarded": node.discarded,
        }
        if include_messages:
            facts["request_messages"], facts["request_tools"] = node.request_messages, node.request_tools
            facts["response_message"] = node.response_message
        turns.append(facts)
    sequences = [_sequence(graph, path, trainable) for path in paths if include_discarded or path.role != "discarded"]
    stats = summarise(graph)
    stats["n_sequences"] = len(sequences)
    stats["n_trainable_sequences"] = sum(each["trainable"] for each in sequences)
    stats["n_trainable_tokens"] = sum(each["n_trainable"] for each in sequences if each["trainable"])
    return {
        "session_id": session.session_id,
        "metadata": session.opened.metadata,
        "budget_stop_count": session.count("budget_stop"),
        "upstream_errors": session.count("upstream_error"),
        "turns": turns,
        "stats": stats,
        "sequences": sequences,
        "validation": findings,
        "trainable": trainable and bool(graph.turns),
        "capture_level": session.opened.capture_level,
        "rollout_type": session.rollout_type,
    }


def _sequence(graph: SessionGraph, path: TurnPath, trainable: bool) -> Json:
    sampled = sum(path.loss_mask)
    return {
        "role": path.role,
        "root_id": node_name(path.numbers[0]),
        "node_ids": [node_name(number) for number in path.numbers],
        "n_turns": len(path.numbers),
        "prompt_len": path.prompt_len,
        "n_trainable": sampled,
        "turn_lengths": [len(graph.completion_ids(number)) for number in path.numbers],
        "input_ids": path.input_ids,
        "loss_mask": path.loss_mask,
        "logprobs": path.logprobs,
        "trainable": trainable and path.role == "agent" and sampled > 0,
        "validation": [],
    }


def summarise(graph: SessionGraph) -> Json:
    """Counts of a graph: turns, roots, leaves, forks, discarded turns, and prompts that broke with their history."""
    parents = [turn.parent for turn in graph.turns]
    return {
        "n_turns": len(parents),
        "n_roots": parents.count(-1),
        "n_leaves": len(parents) - len(set(parents) - {-1}),
        "n_forks": len({parent for parent in parents if parent >= 0 and parents.count(parent) > 1}),
        "n_discarded": len(graph.discarded()),
        "n_breaks": sum(turn.prefix_break is not None for turn in graph.turns),
    }


def rollout_of(session: CaptureSession, path: TurnPath, reward: float | None = None) -> Rollout:
    """A path as a rollout, with the turns that it follows by its messages before it, as prefix breaks.

    Args:
        session: The session.
        path: One of its paths.
        reward: The return, if a scorer gave one.
    """
    graph = session.graph
    numbers = path.numbers
    while (before := graph.turns[numbers[0]].follows) >= 0:
        numbers = [*graph.path(before), *numbers]
    turns, previous = [], -1
    for number in numbers:
        turns.append(_turn(graph, number, previous))
        previous = number
    outcome = RolloutOutcome.TERMINATED if reward is not None else RolloutOutcome.TRUNCATED
    rollout = Rollout(
        rollout_id=f"{session.session_id}-{numbers[-1]}",
        task=RolloutTask(),
        group=session.session_id,
        member=numbers[-1],
        outcome=outcome,
        reward=reward,
        turns=turns,
        model=graph.turns[numbers[-1]].model,
        tools=[tool.get("function", tool) for tool in graph.tools(numbers[-1])],
        started=session.opened.time,
        metadata=session.opened.metadata,
    )
    for turn in turns:
        rollout.usage.add(turn.usage)
    return rollout


def _turn(graph: SessionGraph, number: int, previous: int) -> Turn:
    record = graph.turns[number]
    usage = msgspec.json.decode(record.head).get("usage") or {}
    messages, ids, known = graph.messages(number), graph.prompt_ids(number), 0
    broken = None
    if previous >= 0 and record.parent == previous:
        before = graph.prompt_ids(previous) + graph.completion_ids(previous)
        ids, known = ids[len(before) :], len(graph.messages(previous)) + 1
    elif previous >= 0:
        expected = graph.n_prompt(previous) + len(graph.completion_ids(previous))
        broken = PrefixBreak(record.prefix_break or "other", record.position, expected, len(ids))
    has_ids = bool(graph.completion_ids(number))
    answer = {name: value for name, value in msgspec.json.decode(record.message).items() if value is not None}
    return Turn(
        prompt=messages[known:],
        completion={"content": "", **answer},
        prompt_ids=ids if has_ids else None,
        completion_ids=graph.completion_ids(number) if has_ids else None,
        logprobs=graph.logprobs(number) or None,
        tokens="sampled" if has_ids else "none",
        prefix_break=broken,
        finish_reason=record.finish,
        usage=TokenUsage(usage.get("prompt_tokens") or 0, 0, usage.get("completion_tokens") or 0),
        model=record.model,
        model_s=record.seconds,
    )


def training_segments(session: CaptureSession) -> list[TrainingSegment]:
    """The training segments of a session, each sampled token in exactly one.

    Raises:
        UsageError: The session is for evaluation, or a turn has no token ids.
    """
    if session.rollout_type != "train":
        raise UsageError(f"session {session.session_id} is for evaluation: its turns are not trained on")
    found: list[TrainingSegment] = []
    taken: set[int] = set()
    for path in paths_of(session.graph):
        if path.role != "agent":
            continue
        whole = rollout_of(session, TurnPath(path.numbers, path.role, [], [], [], 0))
        whole.turns = whole.turns[-len(path.numbers) :]
        for segment in segments(whole):
            position = 0
            for number, turn in zip(path.numbers, whole.turns, strict=True):
                position += len(turn.prompt_ids or ()) if number != path.numbers[0] else 0
                length = len(turn.completion_ids or ())
                if number in taken:
                    segment.mask[position : position + length] = [0] * length
                taken.add(number)
                position += length
            found.append(segment)
    return found


def to_trace_entries(graph: SessionGraph, document: Json) -> list[TraceEntry]:
    """One entry for each turn of the agent that has token ids with log probabilities.

    Args:
        graph: The turns of a session.
        document: Its document, of `export_session`.

    Raises:
        UsageError: The session is for evaluation.
    """
    if document["rollout_type"] != "train":
        raise UsageError(f"session {document['session_id']} is for evaluation: it has no training trace")
    agent = sorted({number for path in paths_of(graph) if path.role == "agent" for number in path.numbers})
    entries: list[TraceEntry] = []
    for number in agent:
        node = node_of(graph, number)
        if not node.sampled_ids or node.sampled_logprobs is None:
            continue
        message = {"message": node.response_message, "finish_reason": node.finish_reason}
        entries.append(
            {
                "request": {"messages": node.request_messages, "tools": node.request_tools or []},
                "response": {"choices": [message]},
                "prompt_token_ids": node.prompt_ids,
                "completion_token_ids": node.sampled_ids,
                "per_token_logps": node.sampled_logprobs,
                "loss_mask": [0] * len(node.prompt_ids) + [1] * len(node.sampled_ids),
                "metadata": {
                    "node_id": node.node_id,
                    "index": number,
                    "model": node.model,
                    "n_tools": node.n_tools,
                    "harness_session_id": node.harness_session_id,
                    "sampling_params": node.sampling_params,
                    "requested_sampling_params": node.requested_sampling_params,
                },
            }
        )
    return entries


def to_training_trace(graph: SessionGraph, document: Json) -> TrainingTrace:
    """The turns of `to_trace_entries`, if a trainer may learn from all of the session.

    Raises:
        ValueError: The session is for evaluation, has a finding that is FATAL, or a turn with invalid tokens.
    """
    fatal = [found for found in document["validation"] if found.startswith("FATAL")]
    if fatal:
        raise UsageError(f"session {document['session_id']} cannot be trained on: {'; '.join(fatal[:5])}")
    return TrainingTrace.from_entries(to_trace_entries(graph, document))


def to_turn_records(graph: SessionGraph, document: Json) -> list[tuple[list[int], list[int], list[float]]]:
    """For each of `to_trace_entries`, the ids of prompt and completion, and the log probabilities.

    Raises:
        UsageError: The session is for evaluation.
    """
    return [
        (entry["prompt_token_ids"], entry["completion_token_ids"], entry["per_token_logps"])
        for entry in to_trace_entries(graph, document)
    ]


def measure_retokenization_skew(
    graph: SessionGraph,
    document: Json,
    tokenizer: Any,
    *,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Json:
    """Compares the engine's prompt ids with those that a tokenizer makes of the same messages.

    Args:
        graph, document: As in `to_trace_entries`.
        tokenizer: Has `apply_chat_template`, as those of transformers.
        chat_template, chat_template_kwargs: Arguments for it.

    Returns:
        `n_turns`, `exact_match_frac`, and `turns`: for each `turn`, `engine_len` and `rebuilt_len` in tokens, their
        `delta`, the length of the common beginning `prefix_match`, and `exact`.

    Raises:
        UsageError: The session is for evaluation.
    """
    turns: list[Json] = []
    for entry in to_trace_entries(graph, document):
        engine = entry["prompt_token_ids"]
        rebuilt = tokenizer.apply_chat_template(
            entry["request"]["messages"],
            tools=entry["request"]["tools"] or None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            chat_template=chat_template,
            **(chat_template_kwargs or {}),
        )
        pairs = enumerate(zip(engine, rebuilt, strict=False))
        same = next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(engine), len(rebuilt)))
        facts = {"turn": entry["metadata"]["index"], "engine_len": len(engine), "rebuilt_len": len(rebuilt)}
        facts |= {"delta": len(rebuilt) - len(engine), "prefix_match": same}
        turns.append({**facts, "exact": same == len(engine) == len(rebuilt)})
    exact = sum(each["exact"] for each in turns)
    return {"n_turns": len(turns), "exact_match_frac": exact / len(turns) if turns else 0.0, "turns": turns}
