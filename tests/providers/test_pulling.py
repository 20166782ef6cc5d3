"""How far the fetching of an image has come, by what an engine tells. `tests/infra` fetches real ones."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from openenv.errors import LaunchFailed, ProviderBusy
from openenv.providers.docker_engine import PullProgress, pull

docker = pytest.importorskip("docker")

TWO_LAYERS: list[dict[str, Any]] = [
    {"status": "Pulling from team/echo", "id": "2"},
    {"status": "Pulling fs layer", "progressDetail": {}, "id": "aaa"},
    {"status": "Already exists", "progressDetail": {}, "id": "bbb"},
    {"status": "Downloading", "progressDetail": {"current": 10, "total": 40}, "id": "aaa"},
    {"status": "Downloading", "progressDetail": {"current": 40, "total": 40}, "id": "aaa"},
    {"status": "Download complete", "progressDetail": {}, "id": "aaa"},
    {"status": "Extracting", "progressDetail": {"current": 3, "total": 9}, "id": "aaa"},
    {"status": "Pull complete", "progressDetail": {}, "id": "aaa"},
    {"status": "Digest: sha256:1"},
    {"status": "Status: Downloaded newer image for team/echo:2"},
]


def engine_of(events: Any) -> Any:
    """An engine whose pulls tell these events."""

    def tell(image: str, **options: Any) -> Iterator[Any]:
        yield from events

    return SimpleNamespace(api=SimpleNamespace(pull=tell))


def told(events: Any) -> list[PullProgress]:
    seen: list[PullProgress] = []
    asyncio.run(pull(engine_of(events), "team/echo:2", report=seen.append))
    return seen


def test_layers_are_summed_up() -> None:
    last = told(TWO_LAYERS)[-1]
    assert last == PullProgress("team/echo:2", layers=2, done=2, received=40, total=40, finished=True)
    assert str(last) == "pulled team/echo:2: 2 layers, 0.0 MB"


def test_an_image_that_was_here_all_along() -> None:
    assert told([{"status": "Status: Image is up to date"}])[-1] == PullProgress("team/echo:2", finished=True)


def test_in_the_midst_it_says_how_much_is_here() -> None:
    progress = PullProgress("team/echo:2", layers=3, done=1, received=12_300_000, total=45_600_000)
    assert str(progress) == "pulling team/echo:2: 1 of 3 layers, 12.3 of 45.6 MB"


@pytest.mark.parametrize(
    ("image", "asked"),
    [
        ("echo", ("echo", "latest")),
        ("echo:2", ("echo", "2")),
        ("host:1/echo", ("host:1/echo", "latest")),
        ("host:1/echo:2", ("host:1/echo", "2")),
        ("echo@sha256:abc", ("echo", "sha256:abc")),
        ("echo:2@sha256:abc", ("echo:2", "sha256:abc")),
    ],
)
def test_names_of_images(image: str, asked: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the engine gets them from the SDK."""
    seen: list[Any] = []
    with docker.APIClient(base_url="http://127.0.0.1:1", version="1.43") as api:
        monkeypatch.setattr(api, "_post", lambda _, params, **__: seen.append(params))
        monkeypatch.setattr(api, "_raise_for_status", lambda _: None)
        monkeypatch.setattr(api, "_stream_helper", lambda _, decode: (each for each in ()))
        asyncio.run(pull(SimpleNamespace(api=api), image, platform="linux/amd64"))
    assert seen == [{"fromImage": asked[0], "tag": asked[1], "platform": "linux/amd64"}]


@pytest.mark.parametrize(
    ("reason", "busy"),
    [
        ("toomanyrequests: You have reached your pull rate limit", True),
        ("received unexpected HTTP status: 503 Service Unavailable", True),
        ("net/http: TLS handshake timeout", True),
        ("unexpected EOF", True),
        ("manifest for team/echo:2 not found: manifest unknown", False),
        ("pull access denied for team/echo", False),
        ("no space left on device", False),
    ],
)
def test_refusals_in_the_midst(reason: str, busy: bool) -> None:
    event = {"error": f"{reason}, key hush-hush", "errorDetail": {"message": reason}}
    with pytest.raises(LaunchFailed, match=reason[:20]) as caught:
        asyncio.run(pull(engine_of([event]), "team/echo:2", variables={"MY_KEY": "hush-hush"}))
    assert isinstance(caught.value, ProviderBusy) is busy
    assert "hush-hush" not in str(caught.value)


@pytest.mark.parametrize(
    "end",
    [
        b"",  # it has died
        b'40\r\n{"status":',
        b'9\r\n{"status"\r\n0\r\n\r\n',
    ],
)
def test_an_engine_that_goes_away_in_the_midst(end: bytes) -> None:
    event = json.dumps(TWO_LAYERS[1]).encode()
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(event), event)

    def answer() -> None:
        with listener.accept()[0] as end_of_ours:
            end_of_ours.recv(65_536)
            end_of_ours.sendall(head + end)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        answered = threads.submit(answer)
        host = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with closing(docker.DockerClient(base_url=host, version="1.41")) as engine:
            with pytest.raises(ProviderBusy, match="pulling team/echo:2 failed: the engine does not answer"):
                asyncio.run(pull(engine, "team/echo:2"))
        answered.result()


STALLED = """
import asyncio, threading
from types import SimpleNamespace
from openenv.providers.docker_engine import pull

begun = asyncio.Event()

def events(*_, **__):
    loop.call_soon_threadsafe(begun.set)
    threading.Event().wait()
    yield

async def main():
    global loop
    loop = asyncio.get_running_loop()
    waiting = asyncio.ensure_future(pull(SimpleNamespace(api=SimpleNamespace(pull=events)), "team/echo:2"))
    await begun.wait()
    waiting.cancel()

asyncio.run(main())
print("ended")
"""


def test_a_registry_that_stalls_keeps_no_program_from_ending() -> None:
    ended = subprocess.run([sys.executable, "-c", STALLED], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "ended\n"


def test_nobody_waits_any_more() -> None:
    first, over, closed = threading.Event(), threading.Event(), threading.Event()

    def events() -> Iterator[Any]:
        try:
            first.set()
            yield TWO_LAYERS[1]
            over.wait(10.0)
            yield TWO_LAYERS[3]
            raise AssertionError("it goes on")
        finally:
            closed.set()

    async def test() -> None:
        waiting = asyncio.ensure_future(pull(engine_of(events()), "team/echo:2"))
        await asyncio.to_thread(first.wait, 10.0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(test())
    over.set()
    assert closed.wait(10.0)
