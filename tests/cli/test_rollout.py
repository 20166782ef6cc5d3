"""`openenv rollout`: episodes with a model behind an endpoint, in a folder that resumes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from openenv.bench.served import ServedTarget
from openenv.rollouts import Rollout, RolloutFailure, RolloutJournal, RolloutOutcome, RolloutTask, read_rollouts

from ..model_server import ModelReply, ModelServer
from ..project.hub.server import TOKEN, running_hub
from .conftest import EVALS
from .models import Command, guesser
from .process import LIMIT_S


def test_a_run_is_recorded_and_summed_up(command: Command, guess: str, endpoint: ModelServer, tmp_path: Path) -> None:
    asked = (guess, "--model", "guesser", "--base-url", endpoint.url, "--split", "test", "--group", 2)
    code, output, complaints = command("rollout", *asked, "--price", "1,2", "-o", tmp_path / "run", "--json")
    assert code == 0, complaints
    facts = json.loads(output)
    assert facts["rollouts"] == facts["with_return"] == 8
    assert facts["outcomes"] == {"terminated": 8}
    assert facts["turns"] == 2 * (1 + 2 + 3 + 4)
    assert facts["mean_return"] == pytest.approx(1 - 0.125 * 1.5)
    assert facts["cost"] > 0
    rollouts = list(read_rollouts(tmp_path / "run"))
    assert sorted((each.task.index, each.member) for each in rollouts) == [(n, m) for n in range(4) for m in (0, 1)]
    assert all(each.tools and each.turns[0].completion_ids for each in rollouts)
    assert "rollouts: 8 of 8" in complaints or "rollouts: 0 of 8" in complaints


def test_a_complete_run_is_not_played_again_and_more_episodes_extend_it(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    asked = ("rollout", guess, "--model", "guesser", "--base-url", endpoint.url, "-o", tmp_path / "run", "--json")
    assert json.loads(command(*asked, "--episodes", 3)[1])["rollouts"] == 3
    sampled = len(endpoint.samples)
    code, output, _ = command(*asked, "--episodes", 3)
    assert (code, json.loads(output)["rollouts"], len(endpoint.samples)) == (0, 3, sampled)
    assert json.loads(command(*asked, "--episodes", 5)[1])["rollouts"] == 5
    assert len(list(read_rollouts(tmp_path / "run"))) == 5


def test_a_folder_of_another_run_is_refused(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    asked = ("rollout", guess, "--base-url", endpoint.url, "-o", tmp_path / "run", "--episodes", 1)
    assert command(*asked, "--model", "guesser")[0] == 0
    for other, words in {
        ("--model", "tool"): "has a run with model 'guesser', not 'tool'",
        ("--model", "guesser", "--group", 4): "group size 1, not 4",
        ("--model", "guesser", "--sampling", "temperature=2"): "sampling",
        ("--model", "guesser", "--split", "test"): "split None, not 'test'",
    }.items():
        code, output, complaints = command(*asked, *other)
        assert (code, output) == (1, "")
        assert words in complaints
        assert "another folder (-o)" in complaints
    (tmp_path / "run" / "run.json").write_text("[]")
    code, _, complaints = command(*asked, "--model", "guesser")
    assert (code, "run.json is not readable" in complaints) == (1, True)


def test_without_a_terminal_the_summary_is_plain_lines(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    asked = (guess, "--model", "guesser", "--base-url", endpoint.url, "--seeds", "0-4", "--budget", "turns=2")
    code, output, _ = command("rollout", *asked, "-o", tmp_path / "run")
    assert code == 0
    head, outcomes, returns, tokens = output.splitlines()
    assert head.startswith(f"{tmp_path / 'run'}: 5 rollouts in ")
    assert "out of turns" in outcomes
    assert returns.startswith("  mean return ")
    assert "of completions" in tokens


def test_sampling_and_the_key_reach_the_endpoint(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.key = "sk-a-secret-of-the-test"
    monkeypatch.setenv("API_KEY", endpoint.key)
    asked = (guess, "--model", "guesser", "--base-url", endpoint.url, "--episodes", 1)
    sampling = ("--sampling", "temperature=0.5", "--sampling", "max_tokens=99", "--sampling", "top_k=3")
    code, output, complaints = command("rollout", *asked, *sampling, "-o", tmp_path / "run", "--json")
    assert code == 0, complaints
    body = endpoint.seen[0].body
    assert (body["temperature"], body["max_tokens"], body["top_k"]) == (0.5, 99, 3)
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir()).decode() + output + complaints
    assert endpoint.key not in written
    assert endpoint.url not in written.replace(guess, "")


def test_random_needs_no_endpoint(command: Command, guess: str, tmp_path: Path) -> None:
    code, output, complaints = command(
        *("rollout", guess, "--model", "random", "--episodes", 4, "-o", tmp_path / "run", "--json")
    )
    assert code == 0, complaints
    assert json.loads(output)["rollouts"] == 4


def test_rollouts_become_a_dataset(command: Command, guess: str, endpoint: ModelServer, tmp_path: Path) -> None:
    asked = (guess, "--model", "guesser", "--base-url", endpoint.url, "--split", "test")
    assert command("rollout", *asked, "-o", tmp_path / "run")[0] == 0
    target = tmp_path / "sft.jsonl"
    code, output, complaints = command(
        *("rollout", "export", tmp_path / "run", "--to", "sft", "--min-reward", 0.8, "-o", target)
    )
    assert code == 0, complaints
    assert output == f"{target}: 2 rows; left out: 2 with a low return\n"
    code, _, complaints = command("rollout", "export", tmp_path / "run", "--to", "sft", "-o", target)
    assert (code, "exists already" in complaints) == (1, True)
    code, output, _ = command(
        *("rollout", "export", tmp_path / "run", "--to", "grpo", "-o", tmp_path / "ids.jsonl", "--json")
    )
    assert json.loads(output) == {
        "file": str(tmp_path / "ids.jsonl"),
        "kind": "grpo",
        "rows": 4,
        "left_out": {},
        "page": None,
    }
    code, _, complaints = command(
        *("rollout", "export", tmp_path / "run", "--to", "preference", "-o", tmp_path / "x.jsonl")
    )
    assert (code, "--group 8" in complaints) == (1, True)


def test_a_dataset_is_uploaded_alone(
    command: Command, guess: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    assert command("rollout", guess, "--model", "random", "--episodes", 2, "-o", tmp_path / "run")[0] == 0
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        asked = ("--to", "openai", "-o", tmp_path / "chats.jsonl", "--push-to-hub", "team/chats")
        code, output, complaints = command("rollout", "export", tmp_path / "run", *asked)
    assert code == 0, complaints
    assert output.splitlines()[-1] == f"uploaded to {hub.url}/datasets/team/chats"
    assert sorted(hub.repos["team/chats"].files) == [".gitattributes", "README.md", "data/chats.jsonl"]


def test_an_uploaded_failure_does_not_say_where_the_endpoint_is(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    journal = RolloutJournal(tmp_path / "run", "run", "guess", "guesser")
    failure = RolloutFailure("ModelUnavailable", "guesser at gpu7.example.com:8000 answered 500")
    task = RolloutTask(seed=1)
    journal.finish(Rollout("000000-0", task, "000000", 0, RolloutOutcome.MODEL_FAILED, failure=failure))
    journal.close()
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        asked = ("-o", tmp_path / "all.jsonl", "--push-to-hub", "team/all")
        code, _, complaints = command("rollout", "export", tmp_path / "run", *asked)
    assert code == 0, complaints
    files = hub.repos["team/all"].files
    assert b"ModelUnavailable" in files["data/all.jsonl"]
    assert all(b"gpu7" not in text for text in files.values())


def test_what_cannot_be_done_is_said_before_anything_is_started(
    command: Command, endpoint: ModelServer, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    wrong: dict[tuple[object, ...], str] = {
        ("echo", "-o", folder): "--model",
        ("echo", "--model", "m"): "--output",
        ("echo", "--model", "m", "-o", folder): "OPENAI_API_KEY",
        ("echo", "--model", "m", "--provider", "anthropic", "-o", folder): "ANTHROPIC_API_KEY",
        ("echo", "--model", "m", "--base-url", "gpu:8000", "-o", folder): "http",
        ("echo", "--model", "random", "--budget", "steps=3", "-o", folder): "turns, tokens, context",
        ("echo", "--model", "random", "--budget", "turns=-3", "-o", folder): "turns=-3",
        ("echo", "--model", "m", "--base-url", "http://h", "--price", "cheap", "-o", folder): "0.5,1.5",
        ("echo", "--model", "m", "--base-url", "http://h", "--price", "nan,-1", "-o", folder): "0.5,1.5",
        ("echo", "--model", "random", "--seeds", "0-9", "--split", "test", "-o", folder): "--split",
        ("export", folder, "-o", tmp_path / "x.jsonl"): "does not exist",
    }
    for arguments, words in wrong.items():
        code, output, complaints = command("rollout", *arguments)
        assert code in {1, 2}, arguments
        assert words in complaints, arguments
        assert complaints.startswith("error: "), complaints
        assert len(complaints.splitlines()) == 1
        assert not output
    assert not folder.exists()


BAD_INPUT: dict[str, tuple[dict[str, Any], str, str]] = {
    "wrong key": ({"key": "another"}, "guesser", "API_KEY"),
    "unknown model": ({}, "no-such-model", "no-such-model"),
    "context too small": ({"context": 5}, "guesser", "context"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_what_the_endpoint_refuses_is_one_clear_error(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path, case: str
) -> None:
    settings, model, words = BAD_INPUT[case]
    for name, value in settings.items():
        setattr(endpoint, name, value)
    asked = (guess, "--model", model, "--base-url", endpoint.url, "--episodes", 20)
    code, output, complaints = command("rollout", *asked, "-o", tmp_path / "run")
    assert code == 1, output
    assert not output
    error = complaints.splitlines()[-1]
    assert error.startswith("error: ")
    assert words in error, complaints
    assert complaints.count("error: ") == 1


def test_an_endpoint_that_is_not_there_is_named(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    nowhere = "http://127.0.0.1:9"
    asked = (guess, "--model", "m", "--base-url", nowhere, "--episodes", 3, "--retries", 0)
    code, _, complaints = command("rollout", *asked, "-o", tmp_path / "run")
    assert code == 1
    assert "127.0.0.1:9" in complaints.splitlines()[-1]
    assert "--base-url" in complaints.splitlines()[-1]


def test_tasks_that_are_not_there_are_named(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    asked = (guess, "--model", "guesser", "--base-url", endpoint.url, "-o", tmp_path / "run")
    code, _, complaints = command("rollout", *asked, "--split", "train")
    assert (code, "train" in complaints) == (1, True)
    code, _, complaints = command("rollout", *asked, "--split", "test", "--episodes", 5)
    assert code == 1
    assert "5 episodes need as many tasks, and split 'test' has 4" in complaints
    assert not list(read_rollouts(tmp_path / "run"))


def test_a_schema_that_the_endpoint_refuses_is_one_error(
    command: Command, guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    endpoint.faults = {"400": 1.0}
    asked = (guess, "--model", "guesser", "--base-url", endpoint.url, "--episodes", 20)
    code, output, complaints = command("rollout", *asked, "-o", tmp_path / "run")
    assert (code, output) == (1, "")
    assert "answered 400" in complaints.splitlines()[-1]
    assert complaints.count("error: ") == 1


def test_an_environment_without_a_chat_view_says_how_to_get_one(
    command: Command, endpoint: ModelServer, tmp_path: Path
) -> None:
    with ServedTarget("environments:Wordless", max_sessions=4, cwd=EVALS) as server:
        asked = (server.url, "--model", "guesser", "--base-url", endpoint.url, "--episodes", 2)
        code, output, complaints = command("rollout", *asked, "-o", tmp_path / "run")
    assert (code, output) == (1, "")
    assert "declare `chat = Chat(" in complaints.splitlines()[-1]
    assert complaints.count("error: ") == 1


def test_ctrl_c_ends_a_run_and_the_same_command_finishes_it(
    guess: str, endpoint: ModelServer, tmp_path: Path
) -> None:
    reached = threading.Event()

    def stops(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
        if len(endpoint.samples) > 20:
            endpoint.faults = {"never": 1.0}
            reached.set()
        return guesser(messages, tools)

    endpoint.policies = {"guesser": stops}
    asked = [
        "rollout",
        guess,
        "--model",
        "guesser",
        "--base-url",
        endpoint.url,
        "--seeds",
        "0-29",
        "--concurrency",
        "4",
    ]
    arguments = [sys.executable, "-m", "openenv", *asked, "-o", str(tmp_path / "run"), "--json"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(arguments, **pipes) as process:
        assert reached.wait(LIMIT_S)
        process.send_signal(signal.SIGINT)
        output, complaints = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, complaints
    assert "interrupted: the same command goes on with the run" in complaints.splitlines(), complaints
    assert not output
    before = {rollout.rollout_id for rollout in read_rollouts(tmp_path / "run")}
    endpoint.policies, endpoint.faults = {"guesser": guesser}, {}
    with subprocess.Popen(arguments, **pipes) as process:
        output, complaints = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, complaints
    assert json.loads(output)["outcomes"] == {"terminated": 30}
    finished = [rollout.rollout_id for rollout in read_rollouts(tmp_path / "run")]
    assert len(set(finished)) == len(finished) == 30
    assert before <= set(finished)
    keys = [sample.key for sample in endpoint.samples]
    assert len(keys) - len(set(keys)) <= 4  # the answers under way, under the same keys


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [True, False])
def test_an_interrupted_evaluation_says_what_is_left_and_how_to_go_on(
    guess: str, endpoint: ModelServer, tmp_path: Path, recorded: bool
) -> None:
    reached = threading.Event()
    answered: list[int] = []

    def stops(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
        answered.append(1)
        if len(answered) > 30:
            endpoint.faults = {"never": 1.0}
            reached.set()
        return guesser(messages, tools)

    endpoint.policies = {"guesser": stops}
    asked = ["eval", guess, "--model", "guesser", "--base-url", endpoint.url, "--seeds", "0-9", "--repeats", "2"]
    asked += ["--concurrency", "2", *(["--record", str(tmp_path / "run")] if recorded else [])]
    with subprocess.Popen(
        [sys.executable, "-m", "openenv", *asked], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert reached.wait(LIMIT_S)
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, complaints
    (said,) = [line for line in complaints.splitlines() if "unfinished" in line]
    found = re.search(r"(\d+) episodes of (\d+) groups unfinished: ", said)
    assert found is not None, said
    left, groups = map(int, found.groups())
    assert 0 < groups <= 10
    assert groups <= left < 20
    assert said.endswith("the same command goes on with them" if recorded else "goes on after an interruption")
