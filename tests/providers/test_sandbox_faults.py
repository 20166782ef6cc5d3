"""What goes wrong on the Hub: refusals, silence, ends of jobs; and who notices, how soon, with what left behind."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from openenv._asyncio import on_shared, shared_loop
from openenv.client import GenericEnvClient
from openenv.errors import (
    LaunchFailed,
    NotReady,
    OpenEnvError,
    ProviderBusy,
    ProviderFailed,
    UsageError,
)
from openenv.providers import Deployment, HFSandboxProvider, LaunchSpec, Resources, StartRate
from openenv.providers.owner import OWNER, OwnerProcess
from openenv.providers.sandbox import proxy as proxies
from openenv.telemetry.logs import JsonLines

from ..asynchronous import until
from .hub import TOKEN, Hub, running_hub
from .standin import Fault

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.real

JOBS = "POST /api/jobs/tester"
# For what takes milliseconds on a machine that has time.
LIMIT_S = 20.0


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as stand_in:
        yield stand_in


def provider_at(hub: Hub, **options: Any) -> HFSandboxProvider:
    rate = StartRate(pause_s=0.01, longest_pause_s=0.02)
    return HFSandboxProvider(**{"endpoint": hub.url, "token": TOKEN, "glance_s": 0.02, "start_rate": rate, **options})


def hasty(hub: Hub) -> HFSandboxProvider:
    """One that waits for a job to be started for 0.2 s, once, and for all else as long as it takes."""
    provider = provider_at(hub, namespace="tester", start_rate=StartRate(attempts=1))
    start = provider.service.run

    async def run(*arguments: Any, **job: Any) -> Any:
        patient, provider.service.timeout_s = provider.service.timeout_s, 0.2
        try:
            return await start(*arguments, **job)
        finally:
            provider.service.timeout_s = patient

    vars(provider.service)["run"] = run
    return provider


def serving(behaviour: str = "serve", **others: Any) -> LaunchSpec:
    return LaunchSpec(command=[sys.executable, "-m", "openenv.testing.misbehaving", behaviour], **others)


def client_of(deployment: Deployment, **options: Any) -> GenericEnvClient:
    return GenericEnvClient(deployment.url, api_key=deployment.api_key, **options)


# Starting.


@pytest.mark.parametrize(
    "fault", [Fault(JOBS, 2, 429), Fault(JOBS, 2, 500), Fault(JOBS, 2, 0), Fault("*/whoami-v2", 2, 503)]
)
async def test_a_start_that_fails_for_a_passing_reason_is_tried_again(hub: Hub, fault: Fault) -> None:
    hub.faults.append(fault)
    async with await provider_at(hub).launch(serving("hang")):
        assert len(hub.alive) == 1
    assert hub.alive == []


async def test_it_is_not_tried_again_for_ever(hub: Hub) -> None:
    hub.faults.append(Fault(JOBS, 1000, 429, {"Retry-After": "1"}))
    with pytest.raises(ProviderBusy) as failure:
        await provider_at(hub).launch(serving())
    assert hub.count(JOBS) == 3
    assert failure.value.retry_after_s == 1.0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_start_that_is_refused_is_not_tried_again(hub: Hub, status: int) -> None:
    hub.faults.append(Fault(JOBS, 1000, status))
    with pytest.raises(LaunchFailed) as failure:
        await provider_at(hub).launch(serving())
    assert hub.count(JOBS) == 1
    assert not failure.value.retryable
    assert TOKEN not in "".join(traceback.format_exception(failure.value))


@pytest.mark.parametrize("status", [500, 0])
async def test_a_job_whose_start_nobody_was_told_of_is_found_and_cancelled(hub: Hub, status: int) -> None:
    hub.faults.append(Fault(JOBS, 1000, status, after=True))
    with pytest.raises(ProviderBusy):
        await provider_at(hub).launch(serving("hang"))
    assert len(hub.jobs) == 3
    assert hub.alive == []


async def test_a_job_that_begins_after_nobody_waits_for_it_any_more_is_cancelled(hub: Hub) -> None:
    hub.faults.append(Fault(JOBS, 1, 200, delay_s=0.5, after=True))
    hub.faults[0].status = 0  # and the answer is lost
    with pytest.raises(ProviderBusy, match="request_timeout_s"):
        await hasty(hub).launch(serving("hang"))
    await until(lambda: len(hub.jobs) == 1)
    # Its label is what it can still be found by: gc, or the next stop.
    provider = provider_at(hub)
    for leftover in await provider.leftovers():
        await provider.discard(leftover)
    assert hub.alive == []


async def test_a_job_that_is_told_late_is_cancelled_by_itself(hub: Hub) -> None:
    slow, given_up = hub.run, threading.Event()

    def late(body: dict[str, Any]) -> Any:
        assert given_up.wait(LIMIT_S)
        return slow(body)

    hub.run = late
    with pytest.raises(ProviderBusy, match="request_timeout_s"):
        await hasty(hub).launch(serving("hang"))
    given_up.set()
    await until(lambda: len(hub.jobs) == 1 and not hub.alive)


async def test_a_hub_that_is_not_there_is_said_so(hub: Hub) -> None:
    with pytest.raises(ProviderBusy) as failure:
        await provider_at(hub, endpoint="http://127.0.0.1:9").launch(serving())
    assert failure.value.blame == "infrastructure"
    assert not getattr(failure.value, "__notes__", [])


def test_a_hub_that_never_answers_keeps_no_program_from_ending() -> None:
    program = (
        "import asyncio, sys\n"
        "from openenv.providers import HFSandboxProvider, StartRate\n"
        "once = StartRate(attempts=1)\n"
        "hf = HFSandboxProvider(endpoint=sys.argv[1], token='t', request_timeout_s=0.2, start_rate=once)\n"
        "try: asyncio.run(hf.leftovers())\n"
        "except RuntimeError as error: print(error)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-c", program, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30.0, check=False)
    assert (done.returncode, "request_timeout_s" in done.stdout) == (0, True), done.stderr


async def test_a_job_that_never_gets_a_machine_is_not_ready_in_time_and_is_cancelled(hub: Hub) -> None:
    hub.schedules = False
    async with await provider_at(hub).launch(serving()) as deployment:
        with pytest.raises(NotReady, match="SCHEDULING"):
            await deployment.ready(0.3)
        assert len(hub.alive) == 1
    assert [run.stage for run in hub.jobs.values()] == ["CANCELED"]


@pytest.mark.parametrize("stage", ["ERROR", "CANCELED", "DELETED", "COMPLETED"])
async def test_a_job_that_is_over_ends_the_wait_at_once(hub: Hub, stage: str) -> None:
    hub.stage = (stage, f"no room for {TOKEN}")
    began = time.monotonic()
    async with await provider_at(hub).launch(serving()) as deployment:
        with pytest.raises(LaunchFailed, match=rf"{stage} \(no room for \*\*\*\)") as failure:
            await deployment.ready(60)
        assert not isinstance(failure.value, NotReady)
    assert time.monotonic() - began < LIMIT_S
    assert hub.count("POST") == 1, "what is over needs no cancelling"


async def test_a_job_that_the_hub_has_forgotten_is_gone(hub: Hub) -> None:
    hub.schedules = False
    async with await provider_at(hub).launch(serving()) as deployment:
        hub.lost.update(hub.jobs)
        with pytest.raises(LaunchFailed, match="DELETED"):
            await deployment.ready(60)


@pytest.mark.slow
async def test_looking_at_jobs_goes_on_while_the_hub_has_no_answer(hub: Hub) -> None:
    async with await provider_at(hub).launch(serving()) as deployment:
        hub.faults.append(Fault("GET /api/jobs/tester/*", 5, 429))
        hub.faults.append(Fault("GET /api/jobs/tester/*", 5, 0))
        await deployment.ready(30)


async def test_whose_the_token_is_is_asked_once(hub: Hub) -> None:
    async with await provider_at(hub).launch(serving("hang", replicas=6)):
        assert hub.count("GET /api/whoami-v2") == 1
        assert len(hub.alive) == 6
    assert hub.alive == []


# Ending.


@pytest.mark.parametrize("fault", [Fault("*/cancel", 2, 429), Fault("*/cancel", 2, 500), Fault("*/cancel", 2, 0)])
async def test_a_cancel_that_fails_for_a_passing_reason_is_tried_again(hub: Hub, fault: Fault) -> None:
    deployment = await provider_at(hub).launch(serving("hang"))
    hub.faults.append(fault)
    await deployment.stop()
    assert hub.alive == []


async def test_a_cancel_of_what_has_ended_or_is_not_there_is_none_that_failed(hub: Hub) -> None:
    ended, lost = [await provider_at(hub).launch(serving("hang")) for _ in range(2)]
    first, second = hub.jobs.values()
    hub.end(first, "ERROR")
    hub.lost.add(second.id)
    await ended.stop()
    await lost.stop()


async def test_a_stop_that_the_hub_refuses_says_so_and_may_be_called_again(hub: Hub) -> None:
    deployment = await provider_at(hub).launch(serving("hang"))
    hub.faults.append(Fault("*/cancel", 3, 500))
    with pytest.raises(ProviderBusy, match="ending job"):
        await deployment.stop()
    assert len(hub.alive) == 1
    await deployment.stop()
    assert hub.alive == []


async def test_what_a_dead_process_left_is_found_by_its_labels(hub: Hub) -> None:
    provider = provider_at(hub)
    async with await provider.launch(serving("hang")) as deployment:
        (found,) = await provider.leftovers()
        assert (found.kind, found.deployment, found.owner) == ("job", deployment.name, OwnerProcess.this())
        dead = replace(OwnerProcess.this(), pid=2**22 + 1)
        (run,) = hub.jobs.values()
        run.body["labels"][OWNER.replace(".", "-")] = str(dead)
        (found,) = await provider.leftovers()
        assert found.owner is not None
        assert found.owner.alive is False
        await provider.discard(found)
        await provider.discard(found)
        assert hub.alive == []


# Running.


@pytest.mark.slow
async def test_a_sandbox_that_dies_is_told_as_infrastructure_over_http_and_as_a_lost_session(hub: Hub) -> None:
    async with await provider_at(hub).launch(serving()) as deployment:
        await deployment.ready(30)
        (run,) = hub.jobs.values()
        async with client_of(deployment) as env:
            await env.reset()
            hub.kill(run)
            began = time.monotonic()
            with pytest.raises(OpenEnvError) as failure:
                await env.step({"message": "hello"})
            assert failure.value.blame == "infrastructure"
            assert "ERROR" in str(failure.value)
            assert time.monotonic() - began < 10
        with pytest.raises(ProviderFailed, match="the machine failed") as refused:
            async with client_of(deployment) as env:
                await env.reset()
        assert refused.value.data["stage"] == "ERROR"
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {deployment.api_key}"}) as http:
            answer = await http.get(f"{deployment.url}/health")
        assert (answer.status_code, answer.json()["blame"], answer.json()["job"]) == (502, "infrastructure", run.id)


@pytest.mark.slow
async def test_the_environments_own_error_is_passed_on_unchanged(hub: Hub) -> None:
    async with await provider_at(hub).launch(serving()) as deployment:
        await deployment.ready(30)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {deployment.api_key}"}) as http:
            answer = await http.post(f"{deployment.url}/step", json={"action": {"no": "such field"}})
            assert answer.status_code == 422
            assert answer.json()["blame"] == "client"
            missing = await http.get(f"{deployment.url}/nowhere")
            assert (missing.status_code, "blame" in missing.json()) == (404, False)


# What is given to the Hub, and to whom.


async def test_secrets_are_given_as_secrets_and_shown_by_nothing(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    provider = provider_at(hub, secrets={"PLAIN_NAME": "hidden-value-1"}, env_vars={"MODEL": "tiny"})
    spec = serving("hang", env_vars={"MY_TOKEN": "hidden-value-2"}, options={"secrets": {"OTHER": "hidden-value-3"}})
    async with await provider.launch(spec) as deployment:
        (run,) = hub.jobs.values()
        told = json.dumps(run.body)
        for secret in ("hidden-value-1", "hidden-value-2", "hidden-value-3", deployment.api_key, TOKEN):
            assert secret is not None
            assert secret not in told
            assert secret not in caplog.text
            assert secret not in repr(spec) + repr(deployment) + repr(deployment.servers)
        assert run.body["environment"]["MODEL"] == "tiny"
        assert run.secrets.keys() == {"PLAIN_NAME", "MY_TOKEN", "OTHER", "OPENENV_API_KEYS"}
        assert TOKEN not in run.secrets.values()


async def test_options_name_hardware_time_labels_and_image(hub: Hub) -> None:
    provider = provider_at(hub, flavor="cpu-upgrade", timeout="2h", labels={"team": "ml"})
    async with await provider.launch(serving("hang")):
        pass
    options = {"flavor": "t4-small", "timeout": 90, "labels": {"run": "7"}}
    async with await provider.launch(serving("hang", image="some/image", port=7000, options=options)):
        pass
    first, second = (run.body for run in hub.jobs.values())
    assert (first["flavor"], first["timeoutSeconds"], first["labels"]["team"]) == ("cpu-upgrade", 7200, "ml")
    assert (second["flavor"], second["timeoutSeconds"], second["labels"]["run"]) == ("t4-small", 90, "7")
    assert (first["dockerImage"], second["dockerImage"]) == ("python:3.12", "some/image")
    assert (first["expose"]["ports"], second["expose"]["ports"]) == ([8000], [7000])


async def test_a_job_elsewhere_is_not_shown_the_token(hub: Hub) -> None:
    told = hub.told
    for url in ("https://evil.example/", "http://687--8000.hf.example", "https://6870--8000.hf.example"):
        hub.told = lambda run, url=url: told(run) | {"status": _running_at(url)}
        with pytest.raises(LaunchFailed, match="job") as failure:
            await provider_at(hub).launch(serving("hang"))
        assert not failure.value.retryable
        assert hub.alive == []
    hub.told = told


async def test_a_job_at_an_address_of_its_own_is_taken(hub: Hub) -> None:
    told = hub.told
    hub.told = lambda run: told(run) | {"status": _running_at(f"https://{run.id}--8000.jobs.example")}
    async with await provider_at(hub).launch(serving("hang")) as deployment:
        assert deployment.servers[0].handle.sandbox.stage == "RUNNING"


def _running_at(url: str) -> dict[str, Any]:
    return {"stage": "RUNNING", "message": None, "exposeUrls": [url]}


def test_a_hub_without_encryption_is_refused(hub: Hub) -> None:
    with pytest.raises(UsageError, match="https"):
        provider_at(hub, endpoint="http://hub.example")
    provider_at(hub, endpoint="http://hub.example", insecure=True)
    provider_at(hub, endpoint="https://hub.example")


def test_what_the_place_cannot_do_is_said_before_anything_is_started(hub: Hub) -> None:
    provider = provider_at(hub)
    for spec in (serving(resources=Resources(gpus=1)), serving(options={"flavour": "x"}), LaunchSpec(project=".")):
        with pytest.raises(UsageError):
            asyncio.run(provider.launch(spec))
    with pytest.raises(UsageError, match="port"):
        provider.start_container("image", port=8000)
    with pytest.raises(UsageError):
        provider_at(hub, request_timeout_s=0)
    assert hub.requests == []


def test_no_token_is_no_place(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ProviderFailed, match="HF_TOKEN"):
        provider_at(hub, token=None)


# How it is told, and what is left.


async def test_what_happens_to_a_job_is_logged_with_its_id_and_stage(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "openenv.providers.sandbox")
    async with await provider_at(hub).launch(serving("hang")) as deployment:
        await deployment.refresh()
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    (run,) = hub.jobs.values()
    assert [(line["job"], line["stage"]) for line in lines] == [(run.id, "RUNNING"), (run.id, "ENDED")]


def test_all_sandboxes_have_one_proxy_and_nothing_is_left_of_it(hub: Hub) -> None:
    provider = provider_at(hub)
    shared_loop()
    before = set(threading.enumerate())

    async def several() -> set[str]:
        spec = serving("hang", replicas=2)
        first, second = await asyncio.gather(provider.launch(spec), provider_at(hub).launch(spec))
        ports = {url.split("/")[2] for url in first.urls + second.urls}
        assert len({*first.urls, *second.urls}) == 4
        await first.stop()
        async with httpx.AsyncClient() as http:
            assert (await http.get(second.url)).status_code == 401
        await second.stop()
        return ports

    (port,) = asyncio.run(several())
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{port}")
    assert asyncio.run(on_shared(_listener())) is None
    started = [thread for thread in set(threading.enumerate()) - before if not thread.name.startswith("hub")]
    for thread in started:
        thread.join(LIMIT_S)
    assert [thread.name for thread in started if thread.is_alive()] == []


async def _listener() -> Any:
    return proxies.proxy_of_this_loop()._listener


@pytest.mark.slow
def test_the_names_that_existing_code_calls_work(hub: Hub) -> None:
    provider = provider_at(hub)
    url = provider.start_container(
        "some/image", env_vars={"A": "1"}, command=[sys.executable, "-m", "openenv.testing.misbehaving", "serve"]
    )
    try:
        provider.wait_for_ready(url, 30)
        assert provider.api_key is not None
        with GenericEnvClient(url, api_key=provider.api_key).sync() as env:
            env.reset()
    finally:
        provider.stop_container()
    assert hub.alive == []


@pytest.mark.slow
def test_a_client_comes_with_its_sandboxes(hub: Hub) -> None:
    provider = provider_at(hub, command=[sys.executable, "-m", "openenv.testing.misbehaving", "serve"])
    with GenericEnvClient.from_hub("owner/name", provider=provider, replicas=2) as env:
        env.reset()
        assert [run.body["dockerImage"].rpartition("/")[2] for run in hub.alive] == ["owner-name:latest"] * 2
    assert hub.alive == []


@pytest.mark.slow
def test_servers_without_a_key_are_still_nobody_elses(hub: Hub) -> None:
    provider = provider_at(hub)
    with provider.deployment(serving(api_key="")) as deployment:
        asyncio.run(deployment.start())
        deployment.wait(deployment.ready(30))
        assert hub.jobs[next(iter(hub.jobs))].secrets == {"OPENENV_API_KEYS": "none"}
        assert httpx.get(f"{deployment.url}/health").status_code == 401
        with client_of(deployment).sync() as env:
            env.reset()
