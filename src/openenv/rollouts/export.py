"""Datasets from recorded rollouts: rows for TRL's trainers, for OpenAI's fine-tuning, and the rollouts themselves."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from ..errors import UsageError
from ..recording.parquet import ParquetForm, write_file
from ..recording.storage import JSONL, PARQUET
from .journal import read_rollouts
from .records import ChatMessage, Rollout
from .tokens import segments
from .trajectory import trajectory_of

DatasetKind = Literal["rollouts", "sft", "preference", "grpo", "openai", "atif"]
"""`rollouts`: all rollouts, with all that is recorded. `sft`, `preference`: conversations for TRL's `SFTTrainer`, and
pairs of one task for its `DPOTrainer`. `grpo`: token ids, log probabilities and masks. `openai`: chat messages.
`atif`: trajectories for Harbor's tools."""

_PARQUET_KINDS = ("rollouts", "grpo")
_OPENAI_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
_encode = msgspec.json.encode


def export_rollouts(
    folder: Path,
    target: Path,
    kind: DatasetKind = "rollouts",
    *,
    min_reward: float | None = None,
    public: bool = False,
    on_row: Callable[[int], None] = lambda count: None,
) -> Counter[str]:
    """Writes the rollouts of a folder as a dataset. The file appears when it is complete.

    Memory does not grow with the number of rollouts, except for `preference`: it keeps the id and the return of each,
    and the rollouts whose partner comes later in the folder.

    Args:
        folder: Folder of a run.
        target: The new file: .jsonl, or .parquet for `rollouts` and `grpo`.
        kind: The rows.
        min_reward: Lowest return of a rollout to learn from; of a pair, the chosen one's.
        public: Leave out the messages of failures, which may name hosts and files. Their class stays.
        on_row: Gets the number of rows written so far, after each one.

    Returns:
        The number of `rows`, and of the rollouts that were left out by their reason.

    Raises:
        UsageError: There is no such rollout, or the file exists or cannot be written.
        MissingExtra: The target is Parquet and pyarrow is not installed.
    """
    if target.suffix == PARQUET and kind not in _PARQUET_KINDS:
        raise UsageError(f"{target}: {kind} rows are nested as their tools are, so they must be lines: name {JSONL}")
    counts: Counter[str] = Counter()
    rows = partial(_ROWS[kind], folder, min_reward, counts)

    def write(file: BinaryIO) -> int:
        for count, row in enumerate(rows(), 1):
            if public and isinstance(row, Rollout) and row.failure is not None:
                row.failure = msgspec.structs.replace(row.failure, message="")
            file.write(_encode(row) + b"\n")
            on_row(count)
            counts["rows"] = count
        if not counts["rows"]:
            reasons = ", ".join(f"{count} with {reason}" for reason, count in counts.items())
            next_step = _NEXT_STEPS.get(max(counts, key=lambda reason: counts[reason], default=""), "")
            raise UsageError(f"{folder} has no rollout for {kind}{f' ({reasons})' if reasons else ''}{next_step}")
        return counts["rows"]

    write_file(target, write, _forms().get(kind, _forms()["rollouts"]))
    return counts


NO_RETURN, LOW_RETURN, NO_IDS = "no return", "a low return", "no token ids"
EQUAL_RETURNS, UNEQUAL = "equal returns in their group", "a prompt that their group does not share"
_NEXT_STEPS = {
    NO_IDS: "; sample from an endpoint that sends token ids (vLLM, SGLang), or with a tokenizer",
    EQUAL_RETURNS: "; sample several rollouts of each task (--group 8)",
    LOW_RETURN: "; lower --min-reward",
}


def _with_return(folder: Path, min_reward: float | None, counts: Counter[str]) -> Iterator[Rollout]:
    """The rollouts to learn from; counts the others."""
    for rollout in read_rollouts(folder):
        if not rollout.outcome.has_return:
            counts[NO_RETURN] += 1
        elif min_reward is not None and (rollout.reward is None or rollout.reward < min_reward):
            counts[LOW_RETURN] += 1
        else:
            yield rollout


def dialogues(rollout: Rollout) -> Iterator[tuple[list[ChatMessage], list[ChatMessage]]]:
    """The prompts of a rollout, each with the messages that followed until the next prefix break.

    So each completion is in one of the second parts once, also if later prompts repeat it.
    """
    prompt: list[ChatMessage] = []
    rest: list[ChatMessage] = []
    for turn in rollout.turns:
        if not rest or turn.prefix_break is not None:
            if rest:
                yield prompt, rest
            prompt, rest = turn.prompt, []
        else:
            rest = [*rest, *turn.prompt]
        rest.append(turn.completion)
    if rest:
        yield prompt, rest


def _sft_rows(folder: Path, min_reward: float | None, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    for rollout in _with_return(folder, min_reward, counts):
        for prompt, completion in dialogues(rollout):
            yield {**_pair_of(prompt, completion=completion), "tools": _tools(rollout), **_origin(rollout)}


def _openai_rows(folder: Path, min_reward: float | None, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    for rollout in _with_return(folder, min_reward, counts):
        for prompt, completion in dialogues(rollout):
            # A prompt repeats completions only after a prefix break; they are learned elsewhere.
            before = [_openai(message, weight=0) for message in prompt]
            row: dict[str, Any] = {"messages": [*before, *(_openai(message) for message in completion)]}
            yield {**row, "tools": rollout.tools} if rollout.tools else row


def _preference_rows(folder: Path, min_reward: float | None, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    partners = _partners(folder, min_reward, counts)
    waiting: dict[str, Rollout] = {}
    for rollout in read_rollouts(folder):
        partner = partners.get(rollout.rollout_id)
        if partner is not None and partner not in waiting:
            waiting[rollout.rollout_id] = rollout
        elif partner is not None:
            worse, better = sorted((waiting.pop(partner), rollout), key=lambda each: each.reward or 0.0)
            chosen, rejected = _whole(better), _whole(worse)
            if chosen is None or rejected is None or better.turns[0].prompt != worse.turns[0].prompt:
                counts[UNEQUAL] += 2
                continue
            row = _pair_of(better.turns[0].prompt, chosen=chosen, rejected=rejected)
            scores = {"score_chosen": better.reward, "score_rejected": worse.reward}
            yield {**row, "tools": _tools(better), **scores, "group": better.group, "task": better.task.name}


def _partners(folder: Path, min_reward: float | None, counts: Counter[str]) -> dict[str, str]:
    """Pairs of each group, both ways: the best with the worst, the second best with the second worst, and so on."""
    groups: dict[str, list[tuple[float, str]]] = {}
    for rollout in _with_return(folder, None, counts):
        if rollout.reward is not None and rollout.turns:
            groups.setdefault(rollout.group, []).append((rollout.reward, rollout.rollout_id))
    partners: dict[str, str] = {}
    for members in groups.values():
        members.sort()
        for (low, worse), (high, better) in zip(members[: (len(members) + 1) // 2], reversed(members), strict=False):
            if low == high:
                counts[EQUAL_RETURNS] += 1 if worse == better else 2
            elif min_reward is not None and high < min_reward:
                counts[LOW_RETURN] += 2
            else:
                partners |= {worse: better, better: worse}
    return partners


def _whole(rollout: Rollout) -> list[ChatMessage] | None:
    """The messages after the first prompt, with each completion as it was; None if the history was shortened."""
    messages: list[ChatMessage] = []
    for turn in rollout.turns:
        if messages:
            known = 0 if turn.prefix_break is None else len(rollout.turns[0].prompt) + len(messages)
            if known >= len(turn.prompt) and known:
                return None
            messages += turn.prompt[known:]
        messages.append(turn.completion)
    return messages


def _grpo_rows(folder: Path, min_reward: float | None, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    for rollout in _with_return(folder, min_reward, counts):
        parts = segments(rollout) if all(turn.completion_ids is not None for turn in rollout.turns) else []
        if not parts:
            counts[NO_IDS] += 1
        for number, part in enumerate(parts):
            row = {"segment": number, "prompt_ids": part.prompt_ids, "completion_ids": part.completion_ids}
            row |= {"env_mask": part.mask, "logprobs": part.logprobs, "version": part.version}
            yield {**_origin(rollout), **row, "tokens": rollout.turns[0].tokens}


_ROWS: dict[str, Callable[[Path, float | None, Counter[str]], Iterator[Any]]] = {
    "rollouts": lambda folder, least, counts: (
        read_rollouts(folder) if least is None else _with_return(folder, least, counts)
    ),
    "sft": _sft_rows,
    "preference": _preference_rows,
    "grpo": _grpo_rows,
    "openai": _openai_rows,
    "atif": lambda folder, least, counts: (
        trajectory_of(rollout) for rollout in _with_return(folder, least, counts) if rollout.turns
    ),
}


def _origin(rollout: Rollout) -> dict[str, Any]:
    return {
        "rollout_id": rollout.rollout_id,
        "group": rollout.group,
        "task": rollout.task.name,
        "reward": rollout.reward,
    }


def _tools(rollout: Rollout) -> str:
    """Tools as TRL reads them from a dataset of any tools: as text."""
    return _encode(rollout.tools).decode()


def _pair_of(prompt: list[ChatMessage], **rest: list[ChatMessage]) -> dict[str, list[ChatMessage]]:
    return {name: [_for_template(each) for each in messages] for name, messages in {"prompt": prompt, **rest}.items()}


def _for_template(message: ChatMessage) -> ChatMessage:
    """A message as chat templates read it: the arguments of tool calls are objects, if they are JSON at all."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        with contextlib.suppress(ValueError, TypeError):
            function["arguments"] = json.loads(function["arguments"])
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def _openai(message: ChatMessage, weight: int = 1) -> ChatMessage:
    """A message with the fields that the API accepts; weight 0 keeps it out of the loss."""
    kept = {key: message[key] for key in _OPENAI_KEYS if key in message}
    return {**kept, "weight": 0} if not weight and message.get("role") == "assistant" else kept


_NUMBERS = ("member", "invalid_actions", "attempts", "forked_at"), ("reward", "started", "seconds")
_TEXTS = ("rollout_id", "group", "outcome", "environment", "contract", "model", "episode_id", "forked_from")
_SCALARS = frozenset((*_NUMBERS[0], *_NUMBERS[1], *_TEXTS))


@cache
def _forms() -> dict[str, ParquetForm]:
    """How Parquet files hold rollouts (compound fields as JSON text), and rows of token ids."""

    def table(rows: list[Any], schema: Callable[[], Any]) -> Any:
        import pyarrow as pa

        return pa.Table.from_pylist(rows, schema=schema())

    return {
        "rollouts": ParquetForm("rollout", _flat, _rollout_schema, partial(table, schema=_rollout_schema)),
        "grpo": ParquetForm("row", msgspec.json.decode, _grpo_schema, partial(table, schema=_grpo_schema)),
    }


def _flat(line: bytes) -> dict[str, Any]:
    fields = msgspec.structs.asdict(_decode(line))
    return {name: value if name in _SCALARS else _encode(value).decode() for name, value in fields.items()}


_decode = msgspec.json.Decoder(Rollout).decode


def _rollout_schema() -> Any:
    import pyarrow as pa

    numbers = dict.fromkeys(_NUMBERS[0], pa.int64()) | dict.fromkeys(_NUMBERS[1], pa.float64())
    return pa.schema([pa.field(name, numbers.get(name, pa.string())) for name in Rollout.__struct_fields__])


def _grpo_schema() -> Any:
    import pyarrow as pa

    ids = dict.fromkeys(("prompt_ids", "completion_ids", "env_mask"), pa.list_(pa.int64()))
    kinds = dict.fromkeys(("rollout_id", "group", "task", "tokens"), pa.string())
    kinds |= {"reward": pa.float64(), "segment": pa.int64(), "version": pa.int64()}
    return pa.schema(list((kinds | ids | {"logprobs": pa.list_(pa.float64())}).items()))
