"""Rollouts of tasks: an agent program in a sandbox calls a model through the proxy, and every call is recorded."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from openenv.capture import CaptureServer
from openenv.cli.main import app
from openenv.errors import UsageError
from openenv.harbor.contract import to_training_trace
from openenv.harbor.rollout import run_rollout
from openenv.harbor.runner import run_batch

from ..agents.planted import sum_fault
from ..model_server import ModelServer, model_server
from .written import write_task

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the sandbox has no Python"),
]

# Asks the model twice, then does the task.
AGENT = """python3 - <<'END'
import json, os, urllib.request
messages = [{"role": "user", "content": os.environ["INSTRUCTION"]}]
for _ in range(2):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["MODEL"] or "echo", "messages": messages}).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
    )
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages += [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": "go on"}]
    print(message["content"])
open("/app/result.txt", "w").write("done")
END"""


AGENTS = Path(__file__).parents[2] / "out" / "agents"
SUM_TASK: dict[str, str | None] = {
    "instruction": "Fix add in calc.py.\n",
    "dockerfile": "FROM debian:12-slim\nWORKDIR /workspace\nCOPY calc.py .\n",
    "test": "#!/bin/sh\n/usr/bin/python3 -c 'from calc import add; assert add(2, 3) == 5'\n"
    "if [ $? = 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
    "toml": "[agent]\ntimeout_sec = 120\n",
}


@pytest.fixture
def engine() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def test_a_rollout_has_the_reward_and_the_calls(tmp_path: Path, engine: ModelServer) -> None:
    with CaptureServer(llm_url=engine.url) as proxy:
        result = asyncio.run(
            run_rollout(
                task_dir=write_task(tmp_path / "task"),
                harness=AGENT,
                registry=proxy,
                trials_dir=tmp_path / "trials",
                sampling={"temperature": 1.0},
            )
        )
        entries = proxy.trace_entries(result.session_id)
    assert (result.ok, result.error, result.reward) == (True, None, 1.0)
    assert (result.n_turns, result.n_roots, result.multi_turn, result.trainable) == (2, 1, True, True)
    assert result.turns[0].text in result.agent_log_tail
    trace = to_training_trace(result)
    assert [turn.completion_token_ids for turn in trace.turns] == [each["completion_token_ids"] for each in entries]
    folder = tmp_path / "trials" / result.trial_name
    assert json.loads((folder / "result.json").read_text())["reward"] == 1.0
    trajectory = json.loads((folder / "trajectory.json").read_text())
    assert [step["source"] for step in trajectory["steps"]] == ["user", "agent", "user", "agent"]
    assert set(result.phase_timings) == {"setup", "agent", "verifier"}


def test_a_task_that_cannot_be_played_is_a_result_without_a_reward(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task", test=None)
    result = asyncio.run(run_rollout(task_dir=folder, harness="nop", trials_dir=tmp_path / "trials"))
    assert (result.ok, result.reward, result.exception_type) == (False, None, "UsageError")
    assert result.error is not None
    assert "has no tests/test.sh" in result.error


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo done > result.txt; exit 5", "never called its model at http.*: it ended with exit code 5"),
        ("no-such-agent", "never called its model at http.*: it ended with exit code 127 .*no-such-agent"),
        (
            AGENT.replace('os.environ["MODEL"] or "echo"', '"no-such-model"'),
            "the model answered no call.*no-such-model",
        ),
    ],
)
def test_an_agent_without_an_answer_of_its_model_has_no_reward(
    tmp_path: Path, engine: ModelServer, command: str, reason: str
) -> None:
    with CaptureServer(llm_url=engine.url) as proxy:
        result = asyncio.run(
            run_rollout(
                task_dir=write_task(tmp_path / "task"),
                harness=command,
                registry=proxy,
                trials_dir=tmp_path / "trials",
            )
        )
    assert (result.ok, result.reward, result.exception_type) == (False, None, "AgentFailed")
    assert re.search(reason, result.error or ""), result.error


@pytest.mark.slow
def test_a_gigabyte_of_output_is_bounded(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task")
    command = "echo done > result.txt; head -c 1000000000 /dev/zero; echo end"
    tracemalloc.start()
    try:
        result = asyncio.run(run_rollout(task_dir=folder, harness=command, trials_dir=tmp_path / "trials"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.reward == 1.0
    assert result.agent_log_tail.endswith("end\n")
    assert most < 50_000_000
    assert sum(path.stat().st_size for path in (tmp_path / "trials").rglob("*") if path.is_file()) < 100_000


def test_the_network_is_what_allow_lists(tmp_path: Path, engine: ModelServer) -> None:
    place = urlsplit(engine.url).netloc
    fetch = (
        f"/usr/bin/python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {place.rpartition(':')[2]}))'"
    )
    test = f"#!/bin/sh\nif {fetch}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    folder = write_task(tmp_path / "task", test=test, toml="[environment]\nallow_internet = true\n")
    facts = {"task_dir": folder, "harness": f"{fetch} && echo reached", "trials_dir": tmp_path / "trials"}
    closed = asyncio.run(run_rollout(**facts))
    assert closed.reward == 0.0
    assert "Connection refused" in closed.agent_log_tail
    (finding,) = closed.findings
    assert "name hosts with --allow" in finding
    opened = asyncio.run(run_rollout(**facts, allow=[place]))
    assert (opened.reward, opened.agent_log_tail, opened.findings) == (1.0, "reached\n", [])


def test_an_agent_by_name_needs_a_model(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    with pytest.raises(UsageError, match="agent codex calls a model: give its address and its name"):
        asyncio.run(run_batch(dataset=str(tmp_path / "tasks"), harness="codex", trials_dir=tmp_path / "trials"))


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("agent", ["codex", "mini-swe-agent"])
def test_an_agent_in_use_solves_a_task(agent: str, tmp_path: Path) -> None:
    if not (AGENTS / ".installed").exists():
        pytest.skip("no agents here: make agents")
    folder = write_task(tmp_path / "tasks" / "sum", **SUM_TASK)
    (folder / "environment" / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    command = ["harbor", "run", str(folder), "--agent", agent, "--model", "policy", "-o", str(tmp_path / "trials")]
    command += ["--programs", str(AGENTS), "--programs", str(AGENTS / "mini")]
    with model_server(policies={"policy": sum_fault}) as model:
        ended = CliRunner().invoke(app, [*command, "--llm-url", model.url])
    assert re.match(r"sum.0: reward 1, \d calls of the model\n", ended.output), ended.output
    result = json.loads((tmp_path / "trials/sum.0/result.json").read_text())
    assert result["n_trainable_tokens"] > 10


def test_an_agent_that_reaches_no_model_is_scored_all_the_same(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task")
    result = asyncio.run(run_rollout(task_dir=folder, harness=AGENT, trials_dir=tmp_path / "trials"))
    assert (result.ok, result.reward, result.n_turns) == (True, 0.0, 0)
    assert "KeyError: 'OPENAI_BASE_URL'" in result.agent_log_tail


def test_a_late_agent_keeps_what_was_recorded(tmp_path: Path, engine: ModelServer) -> None:
    with CaptureServer(llm_url=engine.url) as proxy:
        result = asyncio.run(
            run_rollout(
                task_dir=write_task(tmp_path / "task"),
                harness=f"{AGENT}\nsleep 600",
                registry=proxy,
                trials_dir=tmp_path / "trials",
                agent_timeout_sec=8.0,
            )
        )
    assert (result.ok, result.reward, result.n_turns) == (True, 1.0, 2)
    assert "[WARN] agent_timeout: the agent was ended after 8 s" in result.findings


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_task(tmp_path / "tasks" / name)
    (tmp_path / "tasks/b/tests/test.sh").write_text("#!/bin/sh\n")
    options = {"dataset": str(tmp_path / "tasks"), "harness": "oracle", "trials_dir": tmp_path / "trials"}
    first = asyncio.run(run_batch(**options))
    assert [(each.trial_name, each.reward) for each in first] == [("a.0", 1.0), ("b.0", None)]
    write_task(tmp_path / "tasks" / "b")
    second = asyncio.run(run_batch(**options))
    assert second[0] == first[0]
    assert [(each.trial_name, each.reward) for each in second] == [("a.0", 1.0), ("b.0", 1.0)]
    with pytest.raises(UsageError, match="is a trial of the agent 'oracle': choose another folder for 'nop'"):
        asyncio.run(run_batch(**{**options, "harness": "nop"}))
    with pytest.raises(UsageError, match="has the tasks 0 to 1, not 2"):
        asyncio.run(run_batch(**options, task_indices=[2]))


def test_the_commands_print_a_line_for_each_trial(tmp_path: Path, engine: ModelServer) -> None:
    write_task(tmp_path / "tasks" / "good")
    write_task(tmp_path / "tasks" / "bad", test="#!/bin/sh\n")
    tasks, trials = str(tmp_path / "tasks"), str(tmp_path / "trials")
    run = ["harbor", "run", tasks, "--agent", AGENT, "--llm-url", engine.url, "-o", trials]
    ended = CliRunner().invoke(app, run)
    assert ended.exit_code == 1
    assert "good.0: reward 1, 2 calls of the model\n" in ended.output
    assert "bad.0: the verifier wrote no reward" in ended.output
    assert ended.output.endswith("2 trials, 1 failed; mean reward 1\n")
    ended = CliRunner().invoke(app, [*run, "--task", "good", "--json"])
    assert ended.exit_code == 0
    assert json.loads(ended.output)["trials"][0]["reward"] == 1.0
    unknown = CliRunner().invoke(app, [*run, "--task", "none"])
    assert isinstance(unknown.exception, UsageError)
    out = tmp_path / "all.json"
    released = ["harbor", "rollout", "--llm-url", engine.url, "--dataset", tasks, "--task-index", "1", "--port", "0"]
    released += ["--harness", AGENT, "--trials-dir", str(tmp_path / "more"), "--out", str(out)]
    assert CliRunner().invoke(app, released).exit_code == 0
    (row,) = json.loads(out.read_text())
    assert (row["task_id"], row["reward"], len(row["turns"])) == ("good", 1.0, 2)
