"""What the proxy records of agents, over real sockets: turns and their graph, retries, faults, files and keys."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from openenv.capture import CaptureServer, rollout_of
from openenv.capture.export import paths_of
from openenv.capture.http import HttpConnection
from openenv.errors import InvalidArgument, JournalInUse, UsageError
from openenv.llm.http import HttpClientConnection
from openenv.rollouts.tokens import segments

from ..model_server import ModelServer
from .conftest import Proxies
from .requests import Agent, ask, check_sequence


def test_a_conversation_is_one_sequence_with_the_ids_that_were_sampled(proxy: CaptureServer) -> None:
    agent = Agent(proxy.url, proxy.open("one"))
    for text in ("hello", "and on", "and on again"):
        agent.say(text)
    document = proxy.export("one")
    (sequence,) = document["sequences"]
    assert document["trainable"]
    assert sequence["trainable"]
    assert document["validation"] == []
    assert [turn["parent_id"] for turn in document["turns"]] == [None, "turn-0", "turn-1"]
    assert sequence["n_trainable"] == sum(turn["n_sampled"] for turn in document["turns"])
    check_sequence(sequence)
    (segment,) = proxy.segments("one")
    assert segment.prompt_ids + segment.completion_ids == sequence["input_ids"]
    assert segment.mask == sequence["loss_mask"][sequence["prompt_len"] :]
    assert segment.logprobs == sequence["logprobs"][sequence["prompt_len"] :]
    entries = proxy.trace_entries("one")
    assert [entry["metadata"]["node_id"] for entry in entries] == ["turn-0", "turn-1", "turn-2"]
    assert entries[-1]["request"]["messages"] == agent.messages[:-1]
    assert entries[-1]["prompt_token_ids"] + entries[-1]["completion_token_ids"] == sequence["input_ids"]


def test_an_agent_that_asks_for_alternatives_of_tokens_can_be_trained_on(proxy: CaptureServer) -> None:
    agent = Agent(proxy.url, proxy.open("alternatives"))
    _, answer = agent.send(messages=[{"role": "user", "content": "hello"}], logprobs=True, top_logprobs=2)
    assert len(answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2
    document = proxy.export("alternatives")
    assert document["trainable"], document["validation"]
    check_sequence(document["sequences"][0])


def test_many_agents_connect_at_once_to_a_proxy_that_is_busy(proxy: CaptureServer) -> None:
    with ExitStack() as stack:

        def connect(_: Any) -> int:  # on the loop of the proxy, which accepts no connection meanwhile
            address = (proxy.host, proxy.port)
            return len([stack.enter_context(socket.create_connection(address, timeout=5.0)) for _ in range(400)])

        assert proxy.read(proxy.open("busy"), connect) == 400


def test_a_closed_connection_leaves_nothing_for_the_garbage_collector(proxy: CaptureServer) -> None:
    def connections() -> int:
        return sum(isinstance(each, HttpConnection | HttpClientConnection) for each in gc.get_objects())

    session = proxy.open("one")
    gc.collect()
    gc.disable()
    try:
        before = connections()
        Agent(proxy.url, session).say("hello")
        # The proxy notices the end of the agent's connection, and keeps its own one to the engine.
        assert any(proxy.read(session, lambda _: connections()) == before + 1 for _ in range(1000))
    finally:
        gc.enable()


def test_a_stream_is_recorded_as_an_answer_at_once_is(proxy: CaptureServer) -> None:
    agent = Agent(proxy.url, proxy.open("streamed"))
    agent.say("hello")
    for stream in (True, False):
        agent.messages += [{"role": "user", "content": f"stream {stream}"}]
        lines = read_stream(proxy.url, "streamed", {"model": "echo", "messages": agent.messages, "stream": stream})
        assert ("data: [DONE]" in lines) == stream
        agent.messages += [{"role": "assistant", "content": f"stream {stream}"}]
    document = proxy.export("streamed")
    assert [turn["parent_id"] for turn in document["turns"]] == [None, "turn-0", "turn-1"]
    check_sequence(document["sequences"][0])


def test_sub_agents_parallel_calls_and_dropped_answers(proxy: CaptureServer) -> None:
    key = proxy.open("many")
    tools = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}]
    main = Agent(proxy.url, key, system="You lead.")
    main.say("begin", tools=tools)
    title = Agent(proxy.url, key, system="Find a title.")
    title.say("begin")
    with ThreadPoolExecutor(4) as threads:  # four answers to the same prompt, of which one goes on
        branches = [Agent(proxy.url, key, model=f"say:answer {each}") for each in range(4)]
        for branch in branches:
            branch.messages = list(main.messages)
        list(threads.map(lambda branch: branch.say("which?", tools=tools), branches))
    branches[2].model = "echo"
    branches[2].say("that one", tools=tools)
    document = proxy.export("many", include_discarded=True)
    roles = sorted(sequence["role"] for sequence in document["sequences"])
    assert roles == ["agent", "auxiliary", "discarded", "discarded", "discarded"]
    assert document["stats"]["n_trainable_sequences"] == 1
    assert document["stats"]["n_roots"] == 2
    assert document["stats"]["n_trainable_tokens"] == sum(
        turn["n_sampled"] for turn in document["turns"] if not turn["discarded"] and turn["n_tools"]
    )


def test_a_prompt_with_other_ids_than_were_sampled_is_a_break_that_is_counted(proxy: CaptureServer) -> None:
    agent = Agent(proxy.url, proxy.open("drift"), model="bytewise")
    agent.say("some words")
    agent.say("more words")
    document = proxy.export("drift")
    assert document["turns"][1]["follows_id"] == "turn-0"
    assert document["turns"][1]["prefix_break"] == "other"
    assert "INFO: 1 prompts do not extend the ids before them: other" in document["validation"]
    assert [sequence["n_turns"] for sequence in document["sequences"]] == [1, 1]
    assert sum(sum(segment.mask) for segment in proxy.segments("drift")) == sum(
        turn["n_sampled"] for turn in document["turns"]
    )

    def whole(session: Any) -> int:
        rollout = rollout_of(session, paths_of(session.graph)[-1])
        assert rollout.conversation() == agent.messages
        return len(segments(rollout))

    assert proxy.read("drift", whole) == 2


def test_a_shortened_history_is_known_as_compaction(proxy: CaptureServer) -> None:
    agent = Agent(proxy.url, proxy.open("compacted"), system="You work.")
    for text in ("a long beginning", "a long middle", "a long end"):
        agent.say(text)
    agent.messages[1:] = [{"role": "user", "content": "summary"}]
    agent.say("go on")
    document = proxy.export("compacted")
    assert document["turns"][3]["prefix_break"] == "compaction"
    assert document["turns"][3]["parent_id"] is None


@pytest.mark.parametrize("times", [2, 3])
def test_the_same_call_again_is_answered_from_the_record(
    proxy: CaptureServer, engine: ModelServer, times: int
) -> None:
    agent = Agent(proxy.url, proxy.open("again"))
    agent.messages = [{"role": "user", "content": "hello"}]
    answers = [agent.send() for _ in range(times)]
    assert all(answer == answers[0] for answer in answers)
    assert len(engine.samples) == 1
    assert len(proxy.export("again")["turns"]) == 1


@pytest.mark.parametrize(
    ("headers", "samples"),
    [
        ({"idempotency-key": "the same"}, 1),
        ({"x-stainless-retry-count": "1"}, 1),
        ({"x-stainless-retry-count": "0"}, 2),
    ],
)
def test_what_a_client_says_of_its_retries_counts(
    proxies: Proxies, engine: ModelServer, headers: dict[str, str], samples: int
) -> None:
    proxy = proxies(retry_window_s=0.0)
    agent = Agent(proxy.url, proxy.open("said"))
    agent.messages = [{"role": "user", "content": "hello"}]
    assert agent.send(headers)[0] == agent.send(headers)[0] == 200
    assert len(engine.samples) == samples


def test_another_request_cannot_have_the_key_of_one_before(proxy: CaptureServer) -> None:
    agent = Agent(proxy.url, proxy.open("taken"))
    agent.messages = [{"role": "user", "content": "hello"}]
    agent.send({"idempotency-key": "k"})
    agent.messages = [{"role": "user", "content": "bye"}]
    status, answer = agent.send({"idempotency-key": "k"})
    assert status == 409
    assert "use a new one" in answer["error"]["message"]


def test_a_retry_while_the_first_call_is_in_flight_waits_for_it(proxy: CaptureServer, engine: ModelServer) -> None:
    engine.latency_s = 0.3
    agent = Agent(proxy.url, proxy.open("twice"))
    agent.messages = [{"role": "user", "content": "hello"}]
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda _: agent.send(), range(3)))
    assert [status for status, _ in answers] == [200, 200, 200]
    assert len(engine.samples) == 1
    assert len(proxy.export("twice")["turns"]) == 1


@pytest.mark.parametrize("waits", [True, False])
def test_a_first_attempt_that_its_retry_has_overtaken_samples_nothing(
    proxies: Proxies, engine: ModelServer, waits: bool
) -> None:
    proxy = proxies()
    agent = Agent(proxy.url, proxy.open("late"))
    agent.messages = [{"role": "user", "content": "hello"}]
    engine.latency_s = 0.3 * waits
    with ThreadPoolExecutor(1) as threads:
        retry = threads.submit(agent.send, {"x-stainless-retry-count": "1"})
        wait_until(lambda: engine.open_requests == 1 if waits else retry.done())
        first = agent.send({"x-stainless-retry-count": "0"})
    assert first == retry.result()
    assert len(engine.samples) == 1
    agent.send({"x-stainless-retry-count": "0"})  # one that is meant
    assert len(engine.samples) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_loses_no_turn(proxy: CaptureServer, engine: ModelServer, stream: bool) -> None:
    engine.latency_s = 0.2
    key = proxy.open("gone")
    body = {"model": "echo", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
    data = json.dumps(body)
    place = urlsplit(proxy.url)
    with socket.create_connection((place.hostname, place.port)) as client:
        client.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
            f"content-length: {len(data)}\r\n\r\n{data}".encode()
        )
        wait_until(lambda: engine.open_requests == 1)
    wait_until(lambda: len(proxy.export(key)["turns"]) == 1)
    again = read_stream(proxy.url, key, body, {"x-stainless-retry-count": "1"})
    assert "hel" in "".join(again)
    assert len(engine.samples) == 1
    assert len(proxy.export(key)["turns"]) == 1


@pytest.mark.parametrize("fault", ["429", "500", "half", "reset", "garbage"])
def test_an_engine_that_recovers_is_asked_again(proxies: Proxies, engine: ModelServer, fault: str) -> None:
    proxy = proxies()
    engine.plan(fault)
    agent = Agent(proxy.url, proxy.open("faulty"))
    agent.messages = [{"role": "user", "content": "hello"}]
    status, _ = agent.send()
    if fault == "garbage":
        assert status == 502
        status, _ = agent.send()
    assert status == 200
    assert len(proxy.export("faulty")["turns"]) == 1


@pytest.mark.parametrize("fault", ["never", "stall"])
def test_an_engine_that_is_silent_is_an_error_in_time(proxies: Proxies, engine: ModelServer, fault: str) -> None:
    proxy = proxies(timeout_s=0.3)
    engine.plan(fault)
    agent = Agent(proxy.url, proxy.open("silent"))
    agent.messages = [{"role": "user", "content": "hello"}]
    status, answer = agent.send()
    assert status == 504
    assert "did not answer within 0.3 s" in answer["error"]["message"]
    assert proxy.export("silent")["upstream_errors"] == 1
    assert proxy.export("silent")["turns"] == []


def test_a_stream_that_breaks_off_is_an_error_in_the_stream_and_no_turn(
    proxy: CaptureServer, engine: ModelServer
) -> None:
    engine.plan("half")
    key = proxy.open("broken")
    body = {"model": "say:" + "many words " * 50, "messages": [{"role": "user", "content": "go"}], "stream": True}
    lines = read_stream(proxy.url, key, body)
    assert any('"error"' in line for line in lines)
    assert "data: [DONE]" not in lines
    assert proxy.export(key)["turns"] == []


def test_a_proxy_that_was_killed_goes_on_with_its_sessions(engine: ModelServer, tmp_path: Path) -> None:
    with Program(engine.url, tmp_path) as program:
        key = program.open("resumed")
        agent = Agent(program.url, key)
        agent.say("hello")
        agent.messages.append({"role": "user", "content": "not answered"})
        _, first = agent.send()
        program.process.send_signal(signal.SIGKILL)
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("a") as torn:
        torn.write('{"type":"turn","call":"cut o')
    with Program(engine.url, tmp_path) as program:
        agent.url = program.url
        _, again = agent.send({"x-stainless-retry-count": "1"})
        assert again == first
        assert len(engine.samples) == 2
        agent.messages.append(first["choices"][0]["message"])
        agent.say("and on")
        _, document = ask(program.url, "GET", "/sessions/resumed/rollout", program.admin)
    assert [turn["parent_id"] for turn in document["turns"]] == [None, "turn-0", "turn-1"]
    check_sequence(document["sequences"][0])


def test_a_call_during_which_the_proxy_is_killed_asks_the_engine_with_the_same_key(
    engine: ModelServer, tmp_path: Path
) -> None:
    engine.plan("stall")
    with Program(engine.url, tmp_path) as program, ThreadPoolExecutor(1) as threads:
        agent = Agent(program.url, program.open("killed"))
        agent.messages = [{"role": "user", "content": "hello"}]
        lost = threads.submit(agent.send)
        wait_until(lambda: len(engine.seen) == 1)
        program.process.send_signal(signal.SIGKILL)
        assert isinstance(lost.exception(), OSError)
    with Program(engine.url, tmp_path) as program:
        agent.url = program.url
        assert agent.send({"x-stainless-retry-count": "1"})[0] == 200
    first, second = [seen.headers["idempotency-key"] for seen in engine.seen]
    assert first == second


def test_workers_answer_for_every_session(engine: ModelServer, tmp_path: Path) -> None:
    with Program(engine.url, tmp_path, "--workers", "3") as program:
        agents = [Agent(program.url, program.open(f"agent-{number}")) for number in range(12)]
        for text in ("one", "two", "three"):
            with ThreadPoolExecutor(6) as threads:
                list(threads.map(lambda agent, said=text: agent.say(said), agents))
        lines = read_stream(program.url, "agent-3", {"messages": agents[3].messages, "model": "echo", "stream": True})
        assert "data: [DONE]" in lines
        _, listing = ask(program.url, "GET", "/sessions", program.admin)
        assert {each["session_id"]: each["turns"] for each in listing["sessions"]} == {
            f"agent-{number}": 4 if number == 3 else 3 for number in range(12)
        }


def test_sessions_that_leave_the_memory_come_back(proxies: Proxies) -> None:
    proxy = proxies(memory_mb=0.01)
    agents = [Agent(proxy.url, proxy.open(f"small-{number}")) for number in range(8)]
    for text in ("one", "two", "three"):
        for agent in agents:
            agent.say(text)
    for number in range(8):
        (sequence,) = proxy.export(f"small-{number}")["sequences"]
        assert sequence["n_turns"] == 3
        check_sequence(sequence)


def test_keys_are_not_stored(proxies: Proxies, engine: ModelServer, tmp_path: Path) -> None:
    engine.key = "sk-engine-secret"
    proxy = proxies(folder=tmp_path, api_key="sk-engine-secret")
    named = proxy.open(key="sk-agent-secret")
    status, opened = ask(
        proxy.url, "POST", "/sessions", proxy.admin_key, {"llm_url": engine.url, "api_key": "sk-engine-secret"}
    )
    assert status == 200
    Agent(proxy.url, "sk-agent-secret").say("hello")
    Agent(proxy.url, opened["session_id"]).say("hello")
    status, answer = Agent(proxy.url, named).send()
    assert status == 401, "the id of a session with a key is no key"
    assert "secret" not in "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    assert "secret" not in repr(proxy.service.options.api_key is None) + json.dumps(answer)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/sessions"),
        ("GET", "/sessions"),
        ("GET", "/sessions/a"),
        ("GET", "/v1/models"),
        ("DELETE", "/sessions/a"),
    ],
)
def test_routes_need_a_key(proxy: CaptureServer, method: str, path: str) -> None:
    proxy.open("a")
    assert ask(proxy.url, method, path)[0] == 401
    assert ask(proxy.url, method, path, "wrong")[0] == 401


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": "x"}, "chat completion"),
        ({"messages": []}, "not empty"),
        ({"messages": [1]}, "lists of objects"),
        ({}, "no `messages`"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": "abc"}, "chat completion"),
        ({"messages": [{"role": "user", "content": "x"}], "n": 2}, "one answer at a time"),
        (b"{", "chat completion"),
    ],
)
def test_malformed_requests_reach_no_engine(proxy: CaptureServer, engine: ModelServer, body: Any, said: str) -> None:
    key = proxy.open("bad")
    status, answer = ask(proxy.url, "POST", "/v1/chat/completions", key, body)
    assert status == 400
    assert said in answer["error"]["message"]
    assert engine.requests == 0


def test_other_routes_are_refused(proxy: CaptureServer, engine: ModelServer) -> None:
    key = proxy.open("other")
    status, answer = ask(proxy.url, "POST", "/v1/embeddings", key, {"input": "x"})
    assert status == 404
    assert "no route" in answer["error"]["message"]
    assert engine.requests == 0


def test_the_key_may_stand_in_the_address(proxy: CaptureServer) -> None:
    proxy.open("here")
    body = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
    status, answer = ask(proxy.url, "POST", "/s/here/v1/chat/completions", "of-the-environment", body)
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == "hello"


def test_a_known_or_malformed_id_is_refused(proxy: CaptureServer) -> None:
    proxy.open("known")
    for session_id, status in (("known", 409), ("../up", 400), ("s-", 400)):
        asked = {"session_id": session_id, "purpose": "eval"}
        assert ask(proxy.url, "POST", "/sessions", proxy.admin_key, asked)[0] == status
    assert proxy.export("known")["rollout_type"] == "train"


def test_a_session_without_budget_ends_its_agent(proxies: Proxies, engine: ModelServer) -> None:
    proxy = proxies(max_model_calls=2)
    agent = Agent(proxy.url, proxy.open("spent"))
    said = [agent.say(text)["content"] for text in ("one", "two", "three")]
    assert said[:2] == ["one", "two"]
    assert "budget" in said[2]
    document = proxy.export("spent")
    assert document["budget_stop_count"] == 1
    assert len(document["turns"]) == 2
    assert len(engine.samples) == 2


def test_a_session_with_calls_in_flight_is_not_deleted_unawares(proxy: CaptureServer, engine: ModelServer) -> None:
    engine.latency_s = 0.4
    agent = Agent(proxy.url, proxy.open("busy"))
    agent.messages = [{"role": "user", "content": "hello"}]
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(agent.send)
        wait_until(lambda: engine.open_requests == 1)
        status, refused = ask(proxy.url, "DELETE", "/sessions/busy", proxy.admin_key)
        assert status == 409
        assert "force" in refused["error"]["message"]
        assert ask(proxy.url, "DELETE", "/sessions/busy?force=1", proxy.admin_key) == (200, {"deleted": True})
        assert answer.result()[0] == 410


def test_first_calls_at_once_to_an_engine_that_names_a_field_otherwise(
    proxy: CaptureServer, engine: ModelServer
) -> None:
    engine.refused_fields = ("top_k",)
    key = proxy.open("fields")
    with ThreadPoolExecutor(8) as threads:
        agents = [Agent(proxy.url, key) for _ in range(8)]
        answers = list(threads.map(lambda each: each[1].say(f"hello {each[0]}", top_k=5), enumerate(agents)))
    assert sorted(answer["content"] for answer in answers) == sorted(f"hello {each}" for each in range(8))
    assert {turn["requested_sampling_params"]["top_k"] for turn in proxy.export("fields")["turns"]} == {5}


def test_the_sampling_of_a_session_replaces_that_of_its_agent(proxy: CaptureServer, engine: ModelServer) -> None:
    asked = {"session_id": "pinned", "sampling": {"temperature": 0.7}}
    assert ask(proxy.url, "POST", "/sessions", proxy.admin_key, asked)[0] == 200
    agent = Agent(proxy.url, "pinned")
    agent.say("hello", temperature=0.0, top_p=0.5)
    assert (engine.seen[-1].body["temperature"], engine.seen[-1].body["top_p"]) == (0.7, 1.0)
    agent.messages.append({"role": "user", "content": "as JSON"})
    status, answer = agent.send(response_format={"type": "json_object"})
    assert status == 400
    assert "response_format" in answer["error"]["message"]


def test_an_engine_without_ids_gives_no_training_data(proxy: CaptureServer, engine: ModelServer) -> None:
    message = {"role": "assistant", "content": "hi"}
    engine.canned.append({"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    agent = Agent(proxy.url, proxy.open("blind"))
    agent.say("hello")
    document = proxy.export("blind")
    assert not document["trainable"]
    assert document["validation"] == ["FATAL: the engine gave no token ids"]
    assert ask(proxy.url, "POST", "/sessions", proxy.admin_key, {"purpose": "eval", "session_id": "e"})[0] == 200
    with pytest.raises(UsageError, match="for evaluation"):
        proxy.trace_entries("e")


def test_a_prompt_that_is_too_long_ends_the_agent_cleanly(proxy: CaptureServer, engine: ModelServer) -> None:
    engine.context = 20
    agent = Agent(proxy.url, proxy.open("long"))
    assert "budget" in agent.say("word " * 50)["content"]
    assert "maximum context length" in proxy.export("long")["validation"][0]


def test_a_folder_belongs_to_one_proxy(proxies: Proxies, tmp_path: Path) -> None:
    proxies(folder=tmp_path)
    with pytest.raises(JournalInUse, match="choose another folder"):
        proxies(folder=tmp_path)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="llm_url must be a URL"):
        CaptureServer(llm_url="localhost:8000")


def test_a_thousand_sessions(proxy: CaptureServer) -> None:
    keys = [proxy.open(f"session-{number}") for number in range(300)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda key: Agent(proxy.url, key).say("hello"), keys))
    status, listing = ask(proxy.url, "GET", "/sessions", proxy.admin_key)
    assert status == 200
    assert [each["turns"] for each in listing["sessions"]] == [1] * 300


def wait_until(holds: Any) -> None:
    """Waits for a fact of another thread, which has no event to wait for."""
    ended = threading.Event()
    while not holds():
        ended.wait(0.005)


def read_stream(url: str, key: str, body: Any, headers: dict[str, str] | None = None) -> list[str]:
    """The lines of an answer, up to where it ends or is cut off."""
    import http.client

    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    given = {"content-type": "application/json", "authorization": f"Bearer {key}", **(headers or {})}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), given)
    reply = connection.getresponse()
    content = b""
    try:
        while part := reply.read1():
            content += part
    except (http.client.IncompleteRead, ConnectionError):
        pass
    connection.close()
    return content.decode().splitlines()


class Program:
    """`openenv capture serve` as a program of its own."""

    admin = "the-admin-key"

    def __init__(self, engine: str, folder: Path, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "openenv",
            "capture",
            "serve",
            engine,
            "--port",
            "0",
            "--folder",
            str(folder),
        ]
        environment = {**os.environ, "OPENENV_CAPTURE_ADMIN_KEY": self.admin}
        self.process = subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> Program:
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "capture on http" in line, line + self.process.stderr.read()
        self.url = line.split()[2].rstrip(";")
        return self

    def open(self, name: str) -> str:
        status, opened = ask(self.url, "POST", "/sessions", self.admin, {"session_id": name})
        assert status == 200, opened
        return str(opened["session_id"])

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(60)
        assert self.process.stderr is not None
        self.process.stderr.close()
