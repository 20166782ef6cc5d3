"""Whether what an engine returns can be trained on, found out by a few real requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import ModelFailed
from .dialects.base import Json
from .upstream import CaptureLevel, InferenceClient, ParamFix

ToolSupport = Literal["ok", "no-tool-call", "rejected", "unknown"]
LogprobsMode = Literal["processed", "raw", "unknown"]
_SAY = [{"role": "user", "content": "Count from one to ten, in words."}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "report",
        "description": "Reports a number.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}
# How far the gap between two log probabilities may be from what a temperature makes of it.
_TOLERANCE = 0.1
# Before the id, where an engine gives the id of a token in place of its text.
_NAMED = "token_id:"


@dataclass
class LLMReport:
    """What was found out about an engine.

    Attributes:
        ok: It answers, and with what `capture_level` says.
        llm_url, model: The engine.
        findings: Sentences, each of which begins with FATAL, WARN or INFO.
        n_prompt_ids, n_completion_ids: Token ids that it returned.
        served_models: Names of its models.
        capture_level: What it returns.
        reachable: Whether it answered at all.
        param_fixes: Fields that it wants under other names.
        tool_support: Whether it takes tools.
        logprobs_mode: Whether log probabilities are those of the distribution that it samples from (`processed`).
    """

    ok: bool = False
    llm_url: str = ""
    model: str = ""
    findings: list[str] = field(default_factory=list)
    n_prompt_ids: int = 0
    n_completion_ids: int = 0
    served_models: list[str] = field(default_factory=list)
    capture_level: CaptureLevel = "text"
    reachable: bool = False
    param_fixes: list[ParamFix] = field(default_factory=list)
    tool_support: ToolSupport = "unknown"
    logprobs_mode: LogprobsMode = "unknown"

    @property
    def trainable(self) -> bool:
        """Whether its answers can be trained on."""
        return (
            self.ok and self.capture_level == "tokens" and not any(each.startswith("FATAL") for each in self.findings)
        )

    @property
    def rollout_type(self) -> str:
        """`train` or `eval`."""
        return "train" if self.trainable else "eval"

    def summary(self) -> str:
        """The report as text."""
        verdict = "can be trained on" if self.trainable else "cannot be trained on"
        head = f"{self.model} at {self.llm_url}: {verdict}; it returns {self.capture_level}"
        facts = f"tools: {self.tool_support}; log probabilities: {self.logprobs_mode}"
        return "\n".join([head, facts, *self.findings])


def validate_llm(
    llm_url: str,
    model: str,
    *,
    timeout: float = 120.0,
    api_key: str | None = None,
    auth_header: str = "Authorization",
    check_logprobs_mode: bool = True,
    check_tools: bool = True,
) -> LLMReport:
    """Asks an engine for a few answers, and reports what they have.

    Args:
        llm_url, model: The engine, and the model there.
        timeout: Seconds for each request.
        api_key, auth_header: Its key, and the header of the key.
        check_logprobs_mode: Whether to find out which distribution log probabilities are of: two more requests.
        check_tools: Whether to send a request with a tool.

    Raises:
        InvalidArgument: The URL is none.
    """

    async def probe() -> LLMReport:
        client = InferenceClient(
            llm_url, served_model=model, api_key=api_key, auth_header=auth_header, timeout_s=timeout, retries=1
        )
        report = LLMReport(llm_url=llm_url, model=model)
        try:
            await _probe(client, report, check_logprobs_mode, check_tools)
        finally:
            await client.aclose()
        report.param_fixes = client.param_fixes
        return report

    return asyncio.run(probe())


def require_llm(llm_url: str, model: str, *, require_tokens: bool = False, **options: Any) -> LLMReport:
    """As `validate_llm`. Raises `RuntimeError` if the engine does not answer, or without ids that are required."""
    report = validate_llm(llm_url, model, **options)
    if not report.ok or (require_tokens and not report.trainable):
        raise RuntimeError(report.summary())
    return report


async def _probe(client: InferenceClient, report: LLMReport, logprobs_mode: bool, tools: bool) -> None:
    try:
        report.served_models = await client.list_models()
    except ModelFailed as error:
        report.findings.append(f"WARN: the list of models cannot be read: {error.message}")
    if report.served_models and report.model not in report.served_models:
        names = ", ".join(report.served_models[:10])
        report.findings.append(f"WARN: the list of models has no {report.model!r}: it has {names}")
    try:
        answer = await _ask(client, temperature=1.0)
    except ModelFailed as error:
        report.reachable = error.status is not None
        report.findings.append(f"FATAL: {error.message}")
        return
    report.reachable = True
    try:
        _read_level(answer, report)
        report.ok = True
        if logprobs_mode and report.capture_level != "text":
            await _compare_temperatures(client, report)
        if tools:
            await _try_tool(client, report)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        report.findings.append(
            f"FATAL: its answer has another form than a chat completion ({error!r:.100}): is the URL that of an "
            "OpenAI-compatible API?"
        )


async def _ask(client: InferenceClient, **fields: Any) -> Json:
    request = {"messages": _SAY, "max_tokens": 32, **fields}
    try:
        return await client.completion(request)
    except ModelFailed as error:
        refused = error.status in (400, 422) and ("return_token_ids" in error.message or "logprobs" in error.message)
        if not refused or client.capture_level == "text":
            raise
    client.capture_level = "logprobs" if client.capture_level == "tokens" else "text"
    return await _ask(client, **fields)


def _read_level(answer: Json, report: LLMReport) -> None:
    choice = answer["choices"][0]
    ids = choice.get("token_ids") or choice.get("response_token_ids") or []
    prompt = answer.get("prompt_token_ids") or choice.get("prompt_token_ids") or []
    content = (choice.get("logprobs") or {}).get("content") or []
    logprobs = [each.get("logprob") for each in content]
    tokens = [str(each.get("token")) for each in content]
    report.n_prompt_ids, report.n_completion_ids = len(prompt), len(ids)
    if not logprobs:
        report.findings.append("FATAL: it returns no log probabilities: start it so that it does, or only evaluate")
    elif not ids or not prompt:
        report.capture_level = "logprobs"
        report.findings.append(
            "FATAL: it returns no token ids: vLLM has them from 0.10.2, SGLang from 0.5.16; or only evaluate"
        )
    elif len(ids) != len(logprobs):
        report.capture_level = "logprobs"
        report.findings.append(f"FATAL: it returns {len(logprobs)} log probabilities for {len(ids)} tokens")
    elif not all(isinstance(each, int | float) and math.isfinite(each) and each <= 0 for each in logprobs):
        report.capture_level = "logprobs"
        report.findings.append("FATAL: a log probability is above 0, or no number")
    elif not all(type(each) is int and each >= 0 for each in (*prompt, *ids)):
        report.capture_level = "logprobs"
        report.findings.append("FATAL: a token id is no whole number, or below 0")
    elif any(
        token.startswith(_NAMED) and token != f"{_NAMED}{each}" for token, each in zip(tokens, ids, strict=True)
    ):
        report.capture_level = "logprobs"
        report.findings.append("FATAL: its log probabilities name other tokens than its token ids")
    else:
        report.capture_level = "tokens"


async def _compare_temperatures(client: InferenceClient, report: LLMReport) -> None:
    """A distribution at temperature 2 has half the gap between its two likeliest tokens, if it is the sampled one."""
    gaps = []
    for temperature in (1.0, 2.0):
        try:
            answer = await _ask(client, temperature=temperature, top_logprobs=2, max_tokens=1, seed=0)
        except ModelFailed as error:
            report.findings.append(f"INFO: log probabilities cannot be compared: {error.message}")
            return
        gaps.append(_gap(answer["choices"][0]))
    if None in gaps or not gaps[0]:
        report.findings.append(
            "INFO: it gives no alternatives, so the distribution of its log probabilities is unknown"
        )
        return
    ratio = (gaps[1] or 0.0) / gaps[0]
    if abs(ratio - 0.5) < _TOLERANCE:
        report.logprobs_mode = "processed"
    elif abs(ratio - 1.0) < _TOLERANCE:
        report.logprobs_mode = "raw"
        report.findings.append(
            "WARN: log probabilities are those before temperature and top_p: sample at temperature 1, or start vLLM "
            "with --logprobs-mode processed_logprobs"
        )


def _gap(choice: Json) -> float | None:
    content: Iterable[Json] = (choice.get("logprobs") or {}).get("content") or ()
    values = sorted(
        (float(each["logprob"]) for token in content for each in token.get("top_logprobs") or ()), reverse=True
    )
    return values[0] - values[1] if len(values) > 1 else None


async def _try_tool(client: InferenceClient, report: LLMReport) -> None:
    asked = [{"role": "user", "content": "Report the number 7 with the tool."}]
    try:
        answer = await _ask(client, messages=asked, tools=[_TOOL], max_tokens=256)
    except ModelFailed as error:
        report.tool_support = "rejected"
        report.findings.append(f"WARN: it refuses a request with a tool: {error.message}")
        return
    message = answer["choices"][0].get("message") or {}
    report.tool_support = "ok" if message.get("tool_calls") else "no-tool-call"
    if report.tool_support != "ok":
        report.findings.append("INFO: it answered a request for a tool call without one")
