"""What tokens, log probabilities and masks must be before a trainer may learn from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_PROMPT_IDS = "ask the engine for token ids (vLLM: return_token_ids), or choose an engine that has them"
_LOGPROBS = "ask the engine for the log probability of each sampled token (logprobs)"


class TokenFinding(NamedTuple):
    """Why the tokens of a turn cannot be trained on.

    Attributes:
        code: Kind of the fault.
        detail: What is wrong, and where.
    """

    code: str
    detail: str

    def __str__(self) -> str:
        return f"[FATAL] {self.code}: {self.detail}"


def token_findings(
    prompt_ids: Sequence[Any], sampled_ids: Sequence[Any], logprobs: Sequence[Any] | None
) -> Iterator[TokenFinding]:
    """Finds what is wrong with the tokens of one turn.

    Args:
        prompt_ids: Ids of the whole prompt.
        sampled_ids: Ids of the completion.
        logprobs: Log probability of each id of the completion, at most 0; None if there are none.
    """
    for what, ids in (("prompt", prompt_ids), ("completion", sampled_ids)):
        wrong = next((each for each in ids if type(each) is not int or each < 0), None)
        if wrong is not None:
            yield TokenFinding("invalid_token_id", f"{what} has the id {wrong!r}: ids are integers from 0")
    if not prompt_ids:
        yield TokenFinding("no_prompt_ids", f"the prompt has no token ids: {_PROMPT_IDS}")
    if logprobs is None:
        if sampled_ids:
            yield TokenFinding("no_logprobs", f"the completion has no log probabilities: {_LOGPROBS}")
        return
    if len(logprobs) != len(sampled_ids):
        counts = f"{len(logprobs)} log probabilities for {len(sampled_ids)} sampled tokens"
        yield TokenFinding("logprob_misalign", f"{counts}: {_LOGPROBS}")
    for position, each in enumerate(logprobs):
        if type(each) not in (int, float) or not math.isfinite(each):
            yield TokenFinding("invalid_logprob", f"{each!r} at token {position}: it must be a finite number")
            break
        if each > 0:
            yield TokenFinding("positive_logprob", f"{each!r} at token {position}: it must be at most 0")
            break


def mask_findings(
    prompt_ids: Sequence[int], sampled_ids: Sequence[int], mask: Sequence[Any]
) -> Iterator[TokenFinding]:
    """Finds what is wrong with a loss mask, which has a 0 or a 1 for each token of prompt and completion."""
    expected = len(prompt_ids) + len(sampled_ids)
    if len(mask) != expected:
        yield TokenFinding(
            "length_mismatch", f"loss_mask has {len(mask)} entries for {expected} tokens of prompt and completion"
        )
    wrong = next((each for each in mask if type(each) is not int or each not in (0, 1)), None)
    if wrong is not None:
        yield TokenFinding("invalid_loss_mask", f"loss_mask has {wrong!r}: each entry is 0 or 1")
    elif any(mask[: len(prompt_ids)]):
        yield TokenFinding("trainable_prompt", "loss_mask has a 1 in the prompt, which the model did not sample")


def validate_training_turn(
    prompt_ids: Sequence[int], sampled_ids: Sequence[int], logprobs: Sequence[float] | None, loss_mask: Sequence[int]
) -> None:
    """Checks that a trainer may learn from a turn.

    Args:
        prompt_ids: Ids of the whole prompt.
        sampled_ids: Ids of the completion; may be empty.
        logprobs: Log probability of each id of the completion.
        loss_mask: For each token of prompt and completion, whether it is trained.

    Raises:
        ValueError: It may not; the message has each finding with its code.
    """
    findings = [
        *mask_findings(prompt_ids, sampled_ids, loss_mask),
        *token_findings(prompt_ids, sampled_ids, logprobs),
    ]
    if findings:
        raise ValueError(f"invalid training turn: {'; '.join(map(str, findings))}")
