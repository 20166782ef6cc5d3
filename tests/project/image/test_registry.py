"""Pushing, on a stand-in for an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from openenv.errors import LaunchFailed, ProviderBusy, UsageError
from openenv.project.image import PushProgress, push_image

from ...providers.engine import Engine, Events

NAME = "h.example:5000/me/my_env:1.2"
DIGEST = "sha256:" + "0" * 64


def fine() -> Events:
    return Events(
        [
            {"status": "The push refers to repository [h.example:5000/me/my_env]"},
            {"status": "Preparing", "id": "a", "progressDetail": {}},
            {"status": "Preparing", "id": "b", "progressDetail": {}},
            {"status": "Layer already exists", "id": "a", "progressDetail": {}},
            {"status": "Pushing", "id": "b", "progressDetail": {"current": 5, "total": 10}},
            {"status": "Pushing", "id": "b", "progressDetail": {"current": 12}},
            {"status": "Pushed", "id": "b", "progressDetail": {}},
            {"status": f"1.2: digest: {DIGEST} size: 1", "id": None},
            {"progressDetail": {}, "aux": {"Tag": "1.2", "Digest": DIGEST, "Size": 1}},
        ]
    )


def test_an_image_is_pushed_and_named_by_its_contents(engine: Engine) -> None:
    engine.said["push"] = fine()
    seen: list[PushProgress] = []
    pushed = push_image("img:1", NAME, seen.append)
    assert (pushed.name, pushed.digest, pushed.layers, pushed.there) == (NAME, DIGEST, 2, 1)
    assert pushed.reference == f"h.example:5000/me/my_env@{DIGEST}"
    assert engine.made["push"] == {"tag": "1.2"}
    assert NAME in engine.images
    assert seen[-1] == PushProgress(layers=2, done=2, there=1, sent=12, total=12)
    assert all(each.layers for each in seen)


def test_an_engine_that_says_the_digest_in_words_alone(engine: Engine) -> None:
    engine.said["push"] = Events(fine()[:-1])
    assert push_image("img:1", NAME).digest == DIGEST


@pytest.mark.parametrize(
    ("said", "advice", "passing"),
    [
        ("unauthorized: authentication required", "`docker login h.example:5000`", False),
        ("no basic auth credentials", "`docker login h.example:5000`", False),
        (
            "denied: requested access to the resource is denied",
            "run `docker login h.example:5000` with an account that may push to h.example:5000/me/my_env",
            False,
        ),
        ("dial tcp 10.0.0.1:5000: connect: connection refused", "whether the engine reaches it", True),
        ("lookup h.example: no such host", "check h.example:5000", True),
        ("http: server gave HTTP response to HTTPS client", "insecure-registries", False),
        ("x509: certificate signed by unknown authority", "/etc/docker/certs.d/h.example:5000/ca.crt", False),
        ("name unknown: repository does not exist", "create h.example:5000/me/my_env there first", False),
        ("toomanyrequests: slow down", "try again later", True),
        ("unsupported: The operation is unsupported.", "set another --registry", False),
        ("something else", "something else$", False),
    ],
)
def test_a_push_that_fails_says_what_to_do_and_leaves_no_name(
    engine: Engine, said: str, advice: str, passing: bool
) -> None:
    engine.said["push"] = Events([{"errorDetail": {"message": said}, "error": said}])
    with pytest.raises(LaunchFailed) as caught:
        push_image("img:1", NAME)
    assert caught.value.message.startswith(f"pushing {NAME} failed: {said}")
    assert advice.rstrip("$") in caught.value.message
    assert "\n" not in caught.value.message
    assert isinstance(caught.value, ProviderBusy) is passing
    assert NAME not in engine.images


def test_a_name_that_the_image_had_before_stays(engine: Engine) -> None:
    engine.said["push"] = Events([{"error": "denied"}])
    engine.images.add(NAME)
    with pytest.raises(LaunchFailed):
        push_image(NAME, NAME)
    assert NAME in engine.images


def test_secrets_in_what_a_registry_says_are_not_repeated(engine: Engine) -> None:
    engine.said["push"] = Events([{"error": 'Get "https://me:hush-hush@h.example/v2/": Bearer abcdefghijkl'}])
    with pytest.raises(LaunchFailed) as caught:
        push_image("img:1", NAME)
    assert "hush" not in caught.value.message
    assert "abcdefghijkl" not in caught.value.message


def test_an_engine_that_ends_in_the_midst_is_a_passing_failure(engine: Engine) -> None:
    engine.said["push"] = Events(fine()[:4])
    with pytest.raises(ProviderBusy, match="try it again"):
        push_image("img:1", NAME)


def test_an_image_that_is_not_here(engine: Engine) -> None:
    with pytest.raises(UsageError, match="there is no image other:1 here: build it with `openenv build -t other:1`"):
        push_image("other:1", NAME)


def test_a_store_of_credentials_that_is_not_there_is_said(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"credsStore": "none-such"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(LaunchFailed, match="docker-credential-none-such not installed.*`credsStore`") as caught:
        push_image("img:1", NAME)
    assert "\n" not in caught.value.message
