"""TRL's worker for harnesses, by its own code: it samples white-box sessions, or reads what an agent sampled."""

from __future__ import annotations

import json
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from accelerate import PartialState
from datasets import Dataset
from fastapi import FastAPI

from openenv.capture import CaptureServer
from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import (
    MCPHarnessAdapter,
    ResourceSessionFactory,
    StepEnvSessionAdapter,
    TrainableSession,
    TrainingTrace,
)
from openenv.rollouts import Sampling
from openenv.rollouts.model import Completion, ModelRequest
from openenv.rollouts.transformers_model import TransformersModel

from .environments import CountAction, CounterEnv, counter_app, served
from .tiny import call_token, tiny_model, tiny_tokenizer, unsaid

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TRL warns of its experimental modules
    from trl.experimental.async_grpo import async_rollout_worker
    from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

CALLS = [call_token("count", {"by": 1}), call_token("count", {"by": 4})]
COUNT = Tool(
    name="count",
    description="Counts on.",
    input_schema={"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]},
)
PATIENCE_S = 120.0
ADMIN = "an-admin-key"


def count_session(kind: type[StepEnvSessionAdapter], address: str, task: Any, **facts: Any) -> StepEnvSessionAdapter:
    return kind(
        CounterEnv(f"http://{address}"),
        task=task,
        tool_specs=[COUNT],
        action_builder=lambda name, arguments: CountAction(**arguments),
        initial_messages_builder=lambda result, task: list(task),
        **facts,
    )


class CountSessions(ResourceSessionFactory[StepEnvSessionAdapter]):
    def __init__(self, address: str) -> None:
        self.address = address

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> StepEnvSessionAdapter:
        return count_session(StepEnvSessionAdapter, self.address, task, seed=seed, episode_id=episode_id)


def ask(url: str, key: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as reply:
        return json.load(reply)


class CountingAgent(StepEnvSessionAdapter):
    """An agent that calls its model through the proxy, until the episode is done."""

    proxy, key = "", ""

    def wait_for_completion(self, timeout_s: float = 60.0) -> int:
        messages = self.initial_messages()
        for _ in range(3):
            answer = ask(f"{self.proxy}/v1/chat/completions", self.key, {"model": "any", "messages": messages})
            message = answer["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls") or ():
                result = self.call_tool(call["function"]["name"], json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result.data)[:40]})
            if not message.get("tool_calls") or result.done:
                break
        return 0

    def fetch_training_trace(self) -> TrainingTrace:
        return TrainingTrace.from_entries(ask(f"{self.proxy}/sessions/{self.key}/trace_entries", ADMIN)["entries"])


class Agents(ResourceSessionFactory[CountingAgent]):
    """Opens a session of the proxy for each agent, with the sampling of the trainer."""

    def __init__(self, address: str, proxy: str, sampling: dict[str, Any]) -> None:
        self.address, self.proxy, self.sampling = address, proxy, sampling

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> CountingAgent:
        opened = {"session_id": episode_id, "sampling": self.sampling, "metadata": {"seed": seed}, "purpose": "train"}
        ask(f"{self.proxy}/sessions", ADMIN, opened)
        session = count_session(CountingAgent, self.address, task, seed=seed, episode_id=episode_id)
        assert isinstance(session, CountingAgent)
        session.proxy, session.key = self.proxy, str(episode_id)
        assert isinstance(session, TrainableSession)
        return session


def engine_app(model: TransformersModel) -> FastAPI:
    """The routes of vLLM that a trainer and a proxy use, in front of a tiny model."""
    app = FastAPI()

    async def sample(body: dict[str, Any], **prompt: Any) -> Completion:
        sampling = Sampling(temperature=body["temperature"], max_tokens=body.get("max_tokens") or 16)
        return await model.complete(ModelRequest(sampling=sampling, **prompt))

    @app.post("/v1/completions")
    async def complete(body: dict[str, Any]) -> dict[str, Any]:
        completion = await sample(body, messages=(), prompt_ids=body["prompt"])
        logprobs = {"token_logprobs": completion.logprobs}
        return {"choices": [{"token_ids": completion.completion_ids, "logprobs": logprobs}]}

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> dict[str, Any]:
        assert (body["top_p"], body["top_k"], body["return_token_ids"]) == (1.0, -1, True)
        completion = await sample(body, messages=body["messages"], tools=body.get("tools") or ())
        logprobs = {"content": [{"token": "?", "logprob": each} for each in completion.logprobs or ()]}
        choice = {"index": 0, "message": completion.message, "finish_reason": completion.finish_reason}
        choice |= {"logprobs": logprobs, "token_ids": completion.completion_ids}
        return {
            "id": "c",
            "object": "chat.completion",
            "choices": [choice],
            "prompt_token_ids": completion.prompt_ids,
        }

    return app


@pytest.fixture
def counter() -> Iterator[str]:
    with served(counter_app()) as address:
        yield address


@pytest.fixture
def tokenizer() -> Any:
    return tiny_tokenizer(CALLS)


@pytest.fixture
def engine(tokenizer: Any) -> Iterator[str]:
    policy = tiny_model(tokenizer)
    never = torch.zeros(len(tokenizer))
    never[unsaid(tokenizer, CALLS)] = -1e9
    policy.lm_head.register_forward_hook(lambda module, given, logits: logits + never)
    with served(engine_app(TransformersModel(policy, tokenizer))) as address:
        yield f"http://{address}"


@contextmanager
def started(monkeypatch: pytest.MonkeyPatch, tokenizer: Any, engine: str, **options: Any) -> Iterator[Any]:
    # vLLM is another program's package here: the worker only asks whether it is installed.
    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)
    worker = HarnessRolloutWorker(
        model_name="tiny",
        dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": f"Count {each}"}]} for each in range(2)]),
        reward_funcs=[],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=4,
        max_inflight_tasks=4,
        max_tokens=12,
        max_tool_calling_iterations=3,
        vllm_server_url=engine,
        **options,
    )
    PartialState(cpu=True)  # TRL's log wants it
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def check_group(rows: list[Any]) -> None:
    assert {row.group_id for row in rows} == {0}
    assert sum(row.metrics["reward"] > 0 for row in rows) > 0
    for row in rows:
        sampled = row.completion_mask == 1
        assert len(row.input_ids) == len(row.completion_mask) == len(row.old_log_probs)
        assert sampled.any()
        assert (row.old_log_probs[sampled] <= 0).all()


def test_white_box_sessions_become_rows_of_the_trainer(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Any, engine: str, counter: str
) -> None:
    sessions = partial(CountSessions, counter)
    options = {"harness_session_factory": sessions, "harness_adapter": MCPHarnessAdapter()}
    with started(monkeypatch, tokenizer, engine, **options) as worker:
        rows = [worker.rollout_buffer.get(timeout=PATIENCE_S) for _ in range(4)]
    check_group(rows)
    for row in rows:
        assert [message["role"] for message in row.completion[:2]] == ["user", "assistant"]


def test_the_calls_of_an_agent_become_rows_of_the_trainer(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Any, engine: str, counter: str
) -> None:
    with CaptureServer(llm_url=engine, admin_key=ADMIN) as proxy:
        agents = partial(Agents, counter, proxy.url)
        with started(monkeypatch, tokenizer, engine, harness_session_factory=agents) as worker:
            rows = [worker.rollout_buffer.get(timeout=PATIENCE_S) for _ in range(4)]
        documents = [proxy.export(session.session_id) for session in proxy.registry.all()]
    check_group(rows)
    captured = [sequence for document in documents for sequence in document["sequences"]]
    for row in rows:
        (same,) = [each for each in captured if each["input_ids"] == row.input_ids.tolist()][:1]
        assert same["loss_mask"] == row.completion_mask.tolist()
        assert same["logprobs"] == pytest.approx(row.old_log_probs.tolist(), abs=1e-6)
