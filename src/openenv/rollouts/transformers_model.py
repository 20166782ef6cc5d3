"""A local model of `transformers` as a `Model`: it takes token ids, and returns those it sampled, with logprobs."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ..errors import ContextOverflow, MissingExtra, ModelFailed, ModelTimeout, UsageError
from ..llm.messages import TextParser, parse_hermes
from .chat_template import ChatTemplate
from .model import Completion, ModelRequest
from .records import TokenUsage


@dataclass(eq=False)
class _Sample:
    """A completion that is being sampled.

    Attributes:
        limit: Most tokens of the completion.
        done: Set when the last token is sampled; cancelled if no one wants the completion any more.
    """

    prompt_ids: list[int]
    limit: float
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = "stop"
    version: int | None = None
    done: Future[None] = field(default_factory=Future)


def _finish(sample: _Sample) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled
        sample.done.set_result(None)


class TransformersModel:
    """A causal language model in this process. Requests that wait are sampled together, on a thread.

    A trainer changes the weights between rollouts and then sets `version`.

    Args:
        model: A causal language model of `transformers`, on its device.
        tokenizer: Its tokenizer, with a chat template.
        name: The name in records; by default that of the model's configuration.
        batch_size: Most requests that are sampled together.
        parser: Reads the sampled text.

    Attributes:
        version: Version of the weights, for `Completion.version`.

    Raises:
        MissingExtra: torch is not installed.
    """

    takes_ids = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "",
        batch_size: int = 64,
        parser: TextParser = parse_hermes,
    ) -> None:
        try:
            import torch
        except ImportError:
            raise MissingExtra("torch", "transformers") from None
        self._torch = torch
        self.name = name or model.config.name_or_path or type(model).__name__
        self.version: int | None = None
        self._model = model
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)
        self._batch_size = batch_size
        self._parser = parser
        self._context = getattr(model.config, "max_position_embeddings", None)
        ends = model.generation_config.eos_token_id
        self._ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
        self._waiting: deque[_Sample] = deque()
        self._sampling = self._closed = False
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="openenv-model")

    async def complete(self, request: ModelRequest) -> Completion:
        """Samples one completion. A call that is cancelled, or out of time, is sampled no further.

        Raises:
            ContextOverflow: The prompt leaves no room in the model's context.
            ModelTimeout: `request.timeout_s` have passed.
            ModelFailed: The model raised.
            UsageError: A setting of `request.sampling` that this model does not have, or the model is closed.
        """
        started = time.monotonic()
        sample = self._sample_for(request)
        with self._lock:
            if self._closed:
                raise UsageError(f"{self.name} is closed: make another TransformersModel")
            self._waiting.append(sample)
            if not self._sampling:
                self._thread.submit(self._sample_all)
                self._sampling = True
        try:
            async with asyncio.timeout(request.timeout_s):
                await asyncio.wrap_future(sample.done)
        except TimeoutError as error:
            raise ModelTimeout(f"{self.name} did not answer within {request.timeout_s:g} s") from error
        ids = sample.ids[:-1] if sample.ids[-1] in self._ends else sample.ids
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        for stop in sample.stop:
            text = text.partition(stop)[0]
        message = self._parser(text)
        return Completion(
            message=message,
            finish_reason="tool_calls" if message.get("tool_calls") else sample.finish_reason,
            usage=TokenUsage(prompt_tokens=len(sample.prompt_ids), completion_tokens=len(sample.ids)),
            prompt_ids=sample.prompt_ids,
            completion_ids=sample.ids,
            logprobs=sample.logprobs,
            tokens="sampled",
            model=self.name,
            version=sample.version,
            seconds=time.monotonic() - started,
        )

    async def aclose(self) -> None:
        """Ends the thread. Requests that wait are cancelled."""
        with self._lock:
            self._closed = True
            while self._waiting:
                self._waiting.popleft().done.cancel()
        self._thread.shutdown(wait=False)

    def _sample_for(self, request: ModelRequest) -> _Sample:
        sampling = request.sampling
        if sampling.extra:
            raise UsageError(f"{self.name} has no setting {', '.join(sampling.extra)}: remove it from Sampling.extra")
        prompt = request.prompt_ids
        ids = list(prompt) if prompt is not None else self._template.prompt(request.messages, request.tools)
        room = None if self._context is None else self._context - len(ids)
        if room is not None and room < 1:
            raise ContextOverflow(f"the prompt has {len(ids)} tokens, and the context of {self.name} {self._context}")
        limits = [limit for limit in (sampling.max_tokens, room) if limit is not None]
        return _Sample(
            prompt_ids=ids,
            limit=min(limits, default=math.inf),
            temperature=1.0 if sampling.temperature is None else sampling.temperature,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
            stop=tuple(sampling.stop),
        )

    def _sample_all(self) -> None:
        """Samples what waits, a batch at a time; on the thread."""
        while True:
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(self._batch_size, len(self._waiting)))]
                self._sampling = bool(batch)
            if not batch:
                return
            try:
                self._sample_batch([sample for sample in batch if not sample.done.cancelled()])
            except Exception as error:  # noqa: BLE001 - the model is foreign code
                failure = ModelFailed(f"{self.name} failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                for sample in batch:
                    with contextlib.suppress(InvalidStateError):
                        sample.done.set_exception(failure)

    def _sample_batch(self, batch: list[_Sample]) -> None:
        """Samples the completions of a batch, a token of each at a time. Those that have ended leave the batch."""
        torch, version, was_training = self._torch, self.version, self._model.training
        ids, mask = self._padded(batch)
        cache, ended = None, []
        self._model.eval()
        try:
            while batch:
                with torch.inference_mode():
                    output = self._model(
                        input_ids=ids,
                        attention_mask=mask,
                        position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :],
                        past_key_values=cache,
                        use_cache=True,
                        logits_to_keep=1,
                    )
                    logprobs = self._logprobs(output.logits[:, -1].float(), batch)
                    chosen = torch.multinomial(logprobs.exp(), 1)
                    chosen_logprobs = logprobs.gather(1, chosen)[:, 0].tolist()
                for sample, token, logprob in zip(batch, chosen[:, 0].tolist(), chosen_logprobs, strict=True):
                    sample.ids.append(token)
                    sample.logprobs.append(logprob)
                    sample.version = version
                ended += [sample for sample in batch if self._ends_here(sample)]
                going = [row for row, sample in enumerate(batch) if sample not in ended]
                cache, ids = output.past_key_values, chosen
                if len(going) < len(batch):
                    rows = torch.tensor(going, dtype=torch.long, device=ids.device)
                    batch, ids, mask = [batch[row] for row in going], ids[rows], mask[rows]
                    cache.batch_select_indices(rows)
                mask = torch.cat([mask, mask.new_ones(len(batch), 1)], dim=1)
                while batch and ended:
                    _finish(ended.pop())
        finally:
            self._model.train(was_training)
        for sample in ended:  # the last ones: their caller may train at once
            _finish(sample)

    def _padded(self, batch: list[_Sample]) -> tuple[Any, Any]:
        """The prompts and their attention mask, `(requests, longest prompt)`, padded on the left."""
        longest = max((len(sample.prompt_ids) for sample in batch), default=0)
        pads = [longest - len(sample.prompt_ids) for sample in batch]
        ids = [[0] * pad + sample.prompt_ids for pad, sample in zip(pads, batch, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
        device = self._model.device
        return self._torch.tensor(ids, device=device), self._torch.tensor(mask, device=device)

    def _logprobs(self, logits: Any, batch: list[_Sample]) -> Any:
        """The log probabilities of the distributions to sample from, `(requests, vocabulary)`."""
        torch = self._torch
        temperatures = logits.new_tensor([[sample.temperature or 1.0] for sample in batch])
        logprobs = (logits / temperatures).log_softmax(-1)
        if any(sample.top_p < 1 for sample in batch):
            ordered, order = logprobs.exp().sort(descending=True)
            above = ordered.cumsum(-1) - ordered >= logits.new_tensor([[sample.top_p] for sample in batch])
            above[:, 0] = False
            left_out = torch.zeros_like(above).scatter(1, order, above)
            logprobs = logprobs.masked_fill(left_out, -math.inf).log_softmax(-1)
        greedy = torch.tensor([[sample.temperature == 0] for sample in batch], device=logits.device)
        best = torch.full_like(logprobs, -math.inf).scatter(1, logits.argmax(-1, keepdim=True), 0.0)
        return torch.where(greedy, best, logprobs)

    def _ends_here(self, sample: _Sample) -> bool:
        """Whether a completion ends with its last token."""
        if sample.ids[-1] in self._ends:
            return True
        if sample.stop:  # it has at most as many tokens as bytes
            longest = max(len(stop.encode()) for stop in sample.stop)
            text = self._tokenizer.decode(sample.ids[-longest:], skip_special_tokens=False)
            if any(stop in text for stop in sample.stop):
                return True
        if len(sample.ids) < sample.limit:
            return sample.done.cancelled()
        sample.finish_reason = "length"
        return True
