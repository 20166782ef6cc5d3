"""The episodes of `bench_rollouts.py` in other packages. Runs under their interpreters, without a part of ours."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any


def collect(plan: dict[str, Any]) -> Callable[[], int]:
    """The released package: `CollectRunner`, which plays one episode after another. Returns what plays them."""
    from openenv.core import GenericEnvClient
    from openenv.core.env_server.mcp_types import Tool
    from openenv.core.harness import (
        HarnessRunLimits,
        MCPHarnessAdapter,
        ResourceSessionFactory,
        StepEnvSessionAdapter,
    )
    from openenv.core.harness.collect import CollectRunner, RolloutSerializer, build_model_step
    from openenv.core.llm_client import OpenAIClient

    tool = Tool(name="wait", description="Waits.", input_schema={"type": "object", "properties": {}})

    class Factory(ResourceSessionFactory):  # type: ignore[type-arg,misc]
        def create(self, task: Any, seed: Any = None, episode_id: Any = None) -> Any:
            return StepEnvSessionAdapter(
                GenericEnvClient(base_url=plan["env"]),
                task=task,
                episode_id=episode_id,
                tool_specs=[tool],
                action_builder=lambda name, arguments: {},
                initial_messages_builder=lambda result, task: [{"role": "user", "content": "Wait."}],
            )

    def play() -> int:
        with tempfile.TemporaryDirectory() as folder:
            runner = CollectRunner(
                session_factory=Factory(),
                harness_adapter=MCPHarnessAdapter(),
                serializer=RolloutSerializer(folder),
                limits=HarnessRunLimits(max_turns=plan["turns"]),
            )
            model_step = build_model_step(OpenAIClient(plan["model"], None, "tool"))
            return int(runner.run(model_step=model_step, num_episodes=plan["rollouts"]).num_collected)

    return play


def verifiers(plan: dict[str, Any]) -> Callable[[], int]:
    """verifiers: an agent with a harness in its process, which calls the model through their interception server."""
    import verifiers.v1 as vf
    from openai import AsyncOpenAI
    from websockets.asyncio.client import connect

    tool = {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}}}

    class Harness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc,name-defined]
        APPENDS_SYSTEM_PROMPT = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
        ) -> Any:
            messages: list[Any] = [{"role": "user", "content": "Wait."}]
            url = plan["env"].replace("http", "ws", 1) + "/ws"
            async with connect(url) as there, AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
                await there.send(json.dumps({"type": "reset", "data": {}}))
                await there.recv()
                for _ in range(plan["turns"]):
                    answer = await client.chat.completions.create(model=ctx.model, messages=messages, tools=[tool])
                    said = answer.choices[0].message
                    messages.append(said.model_dump(exclude_none=True))
                    await there.send(json.dumps({"type": "step", "data": {}}))
                    content = str(await there.recv())
                    messages.append({"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": content})
            trace.record_reward("return", 1.0)
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    os.environ["PEER_KEY"] = "none"
    module = sys.modules[__name__]
    module.Harness, module.__all__ = Harness, ["Harness"]  # type: ignore[attr-defined]
    sys.modules["peer_harness"] = module
    config = vf.AgentConfig(
        harness=vf.HarnessConfig(id="peer_harness"),
        runtime=vf.SubprocessConfig(),
        model="tool",
        client=vf.EvalClientConfig(base_url=f"{plan['model']}/v1", api_key_var="PEER_KEY"),
    )

    async def play_all() -> int:
        room = asyncio.Semaphore(plan["sessions"])

        async with vf.make_agent(config) as agent:

            async def play(number: int) -> bool:
                async with room:
                    trace = await agent.run(vf.Task(vf.TaskData(name=f"{number}", prompt="Wait."), vf.TaskConfig()))
                    if not trace.ok:
                        print(trace.errors, file=sys.stderr)
                    return bool(trace.ok)

            return sum(await asyncio.gather(*(play(number) for number in range(plan["rollouts"]))))

    return lambda: asyncio.run(play_all())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=json.loads)
    plan = parser.parse_args().plan
    play = collect(plan) if plan["system"] == "collect" else verifiers(plan)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), time.process_time()
    rewarded = play()
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    turns = rewarded * plan["turns"]
    found = {"turns": turns, "rewarded": rewarded, "seconds": seconds, "cpu_s": cpu_s, "memory_kib": memory}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
