"""A rubric that asks a language model."""

from __future__ import annotations

import logging
import re
from inspect import isawaitable
from math import isfinite
from string import Formatter
from typing import Any

from .._scoring import rubric_label
from ..errors import JudgeFailed, OpenEnvError
from ..llm.service import LLMClient, within
from .base import Rubric

logger = logging.getLogger(__name__)

# The first number. A sign after a word character is a hyphen: `score-0.5`.
_NUMBER = r"((?:(?<!\w)[-+])?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_FIELDS = frozenset({"action", "observation"})
# Below the 60 s that a client waits for a step, so that it gets the error of a late judge, not of a lost connection.
_TIMEOUT_S = 45.0


class LLMJudge(Rubric):
    """Asks a language model for a score, and reads the number in its answer.

    The judge blocks no thread: sessions judge concurrently. A timeout, a refused connection or an error of the client
    is `JudgeFailed`, and the step fails. No failure becomes a reward of 0.

    An answer without a number is `JudgeFailed` too, unless `default_score` was given: then that is the score, a
    warning is logged, `unreadable` is incremented, and `metadata["rubric_notes"]` of the observation says so. With
    `normalize`, a number outside [0, 1] is clipped, with such a note.

    Args:
        prompt_template: Text with placeholders `{action}` and `{observation}`; double other braces.
        client: The client of the model: an object with `async complete(prompt) -> str`.
        score_pattern: A regular expression; its first group, or whole match, is the score. None: the first number.
        default_score: The score for an answer without one.
        normalize: Keep scores within [0, 1].
        strict: True: no number, or one outside [0, 1] with `normalize`, is `JudgeFailed`. False: `default_score` is
            0.0 if none was given. None: as described above.
        timeout_s: Seconds for a score, attempts and pauses included; None waits as long as the client does.
        retries: How often the client is asked again after a transient failure.
        backoff_s: Two attempts are a random part of `backoff_s * 2**n` apart.

    Attributes:
        unreadable: Number of answers without a number.

    Raises:
        ValueError: The template has other placeholders, `score_pattern` is not a regular expression, or
            `default_score` is not finite.
    """

    def __init__(
        self,
        prompt_template: str,
        client: LLMClient,
        *,
        score_pattern: str | None = None,
        default_score: float | None = None,
        normalize: bool = True,
        strict: bool | None = None,
        timeout_s: float | None = _TIMEOUT_S,
        retries: int = 2,
        backoff_s: float = 0.5,
    ):
        super().__init__()
        self.client = client
        self.timeout_s = timeout_s
        self.retries = retries
        self.backoff_s = backoff_s
        self.unreadable = 0
        # The settings of `load_state_dict`.
        self._set(
            prompt_template=prompt_template,
            score_pattern=_NUMBER if score_pattern is None else score_pattern,
            default_score=0.0 if default_score is None else default_score,
            normalize=normalize,
            # A default sets the score of an answer without one.
            strict=False if strict is None and default_score is not None else strict,
        )

    async def forward(self, action: Any, observation: Any) -> float:
        """Asks for the score of a step. Raises `JudgeFailed` if there is none."""
        prompt = self._render_prompt(action, observation)

        async def complete() -> Any:
            answer: Any = self.client.complete(prompt)
            return await answer if isawaitable(answer) else answer

        try:
            answer = await within(
                self.timeout_s,
                complete,
                retries=self.retries,
                backoff_s=self.backoff_s,
                what="the judge's model",
            )
        except Exception as error:
            kind = type(error).__name__
            why = error.message if isinstance(error, OpenEnvError) else f"{kind}: {error}"
            raise self._failed(why, cause=kind) from error
        if not isinstance(answer, str):
            raise self._failed(f"its client returned {type(answer).__name__}, and not the text of an answer")
        score = self._parse_score(answer)
        # A subclass may read answers in its own way.
        if type(self)._parse_score is LLMJudge._parse_score:
            self._question(answer, score)
        return score

    def _render_prompt(self, action: Any, observation: Any) -> str:
        return self.prompt_template.format(action=action, observation=observation)

    def _parse_score(self, response: str) -> float:
        """The score in an answer; `default_score` if there is none."""
        found = self._find(response)
        if found is None:
            return self.default_score
        return min(1.0, max(0.0, found)) if self.normalize else found

    def _find(self, answer: str) -> float | None:
        match = self._pattern.search(answer)
        if match is None:
            return None
        text = next((group for group in match.groups() if group is not None), match[0])
        try:
            number = float(text)
        except ValueError:
            return None
        return number if isfinite(number) else None

    def _question(self, answer: str, score: float) -> None:
        """Warns of or rejects a score that differs from the answer."""
        found = self._find(answer)
        if found is None:
            self.unreadable += 1
            if self.strict is not False:
                raise self._failed(
                    f"no score in its answer {answer[:200]!r}; ask for a number in prompt_template, "
                    "set score_pattern, or give a default_score if that is what such an answer is worth"
                )
            self._doubt(f"no score in the answer {answer[:200]!r}: the score is default_score, {score:g}")
        elif found != score:
            if self.strict:
                raise self._failed(
                    f"its score {found:g} is outside of [0, 1]: ask for another scale in prompt_template"
                )
            self._doubt(f"the answer's score {found:g} is outside of [0, 1]: taken as {score:g}")

    def _doubt(self, note: str) -> None:
        logger.warning("%s: %s", rubric_label(self), note)
        self._note(note)

    def _failed(self, why: str, *, cause: str | None = None) -> JudgeFailed:
        return JudgeFailed(
            f"{rubric_label(self)} gave no score: {why} (the action was executed and has no reward: "
            "leave this step out and reset)",
            data={"rubric": rubric_label(self), "cause": cause},
        )

    def _set(
        self, *, prompt_template: str, score_pattern: str, default_score: float, normalize: bool, strict: bool | None
    ) -> None:
        _check_template(prompt_template, type(self))
        if not isfinite(default_score):
            raise ValueError(f"default_score must be a finite number, not {default_score}")
        try:
            self._pattern = re.compile(score_pattern)
        except re.error as error:
            raise ValueError(f"score_pattern {score_pattern!r} is not a regular expression: {error}") from error
        self.prompt_template = prompt_template
        self.default_score = default_score
        self.normalize = normalize
        self.strict = strict

    def state_dict(self) -> dict[str, Any]:
        """The settings of its scores, except the client."""
        return {
            "prompt_template": self.prompt_template,
            "score_pattern": self._pattern.pattern,
            "default_score": self.default_score,
            "normalize": self.normalize,
            "strict": self.strict,
            **super().state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = {key: state.get(key, value) for key, value in LLMJudge.state_dict(self).items() if key in _SETTINGS}
        self._set(**own)
        super().load_state_dict(state)


_SETTINGS = frozenset({"prompt_template", "score_pattern", "default_score", "normalize", "strict"})


def _check_template(template: str, cls: type[LLMJudge]) -> None:
    """Rejects an unknown placeholder when the judge is made, not during an episode."""
    if cls._render_prompt is not LLMJudge._render_prompt:
        return
    try:
        names = {re.split(r"[.\[]", field)[0] for _, field, _, _ in Formatter().parse(template) if field is not None}
    except ValueError as error:
        raise ValueError(f"prompt_template has a single brace ({error}): write other braces twice") from error
    if unknown := names - _FIELDS:
        raise ValueError(
            f"prompt_template has placeholders for {', '.join(sorted(map(repr, unknown)))}, and only {{action}} and "
            "{observation} are filled: write other braces twice, as {{ and }}"
        )
