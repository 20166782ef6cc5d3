"""The classes of `environment_factory` in TRL's asynchronous rollouts: a spawned process with many threads."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from datasets import Dataset

from openenv.adapters.trl import environment_factory

from .environments import CountAction, CounterEnv, counter_app, served
from .tiny import tiny_tokenizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from trl.experimental.async_grpo.async_rollout_worker import _child_main

    from .rollouts import CALLS, SelfSpoken

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

PATIENCE_S = 60.0


@pytest.fixture
def address() -> Iterator[str]:
    with served(counter_app()) as at:
        yield at


def test_a_spawned_process_rolls_out_with_the_pickled_factory(address: str) -> None:
    factory = environment_factory(CounterEnv, {"count": CountAction}, base_url=address)
    tokenizer = tiny_tokenizer(CALLS)
    rows = [{"prompt": [{"role": "user", "content": "Count. "}], "start": start} for start in range(4)]
    arguments = {
        "model_name": "tiny",
        "dataset": Dataset.from_list(rows),
        "reward_funcs": [],
        "processing_class": tokenizer,
        "eos_token_ids": [tokenizer.eos_token_id],
        "environment_factory": factory,
        "num_generations": 4,
        "max_inflight_tasks": 16,
        "max_tool_calling_iterations": 4,
    }
    spawning = multiprocessing.get_context("spawn")
    samples, failures, metrics = spawning.Queue(), spawning.Queue(1), spawning.Queue()
    version, heartbeat = spawning.Value("i", 0), spawning.Value("d", 0.0)
    stop, ready, failed = spawning.Event(), spawning.Event(), spawning.Event()
    channels = (samples, version, stop, ready, heartbeat, failed, failures, metrics)
    child = spawning.Process(target=_child_main, args=(SelfSpoken, arguments, *channels))
    child.start()
    try:
        seen = [_next(samples, failed) for _ in range(32)]
    finally:
        stop.set()
        _drain(child, samples, metrics)

    assert child.exitcode == 0
    rewards = [sample.metrics["rewards/CounterEnvironment"] for sample in seen]
    assert all(reward >= 0 for reward in rewards)
    assert len({*rewards}) > 1
    assert any(message["role"] == "tool" for sample in seen for message in sample.completion)


def _next(samples: Any, failed: Any) -> Any:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and not failed.is_set():
        with contextlib.suppress(queue.Empty):
            return samples.get(timeout=0.2)
    pytest.fail("no rollouts: what the process wrote says why")


def _drain(child: Any, *queues: Any) -> None:
    """Reads what the child has still to say, without which it does not end."""
    end = time.monotonic() + PATIENCE_S
    while child.is_alive() and time.monotonic() < end:
        for each in queues:
            with contextlib.suppress(queue.Empty):
                each.get(timeout=0.05)
    if child.is_alive():
        child.kill()
    child.join()
