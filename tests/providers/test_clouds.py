"""Providers of clouds, by their real SDKs against stand-ins of their APIs: conformance, faults, and deviations."""

from __future__ import annotations

import asyncio
import importlib
import shlex
import traceback
from collections.abc import Iterator
from typing import Any, ClassVar

import httpx
import pytest

from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, OpenEnvError, ProviderBusy, ProviderFailed, UsageError
from openenv.providers import LaunchSpec, Provider, StartRate
from openenv.testing import ProviderConformance
from openenv.testing.providers import check

from ..warm import WarmPython
from .clouds import KEY, Cloud
from .standin import Fault

pytestmark = pytest.mark.real


class Service:
    """A cloud under test.

    Args:
        sdk: The module of its SDK.
        stand_in: Module and class of its stand-in.
        provider: Class of its provider.
        create: The request that starts a sandbox.
        key_variable: The environment variable with the key.
        impatient: The argument of its provider that limits the time of a start, and a short time.
        options: Arguments of its provider.
    """

    def __init__(
        self,
        sdk: str,
        stand_in: str,
        provider: str,
        create: str,
        key_variable: str,
        impatient: dict[str, float],
        **options: Any,
    ):
        self.sdk = sdk
        self.stand_in = stand_in
        self.provider_name = provider
        self.create = create
        self.key_variable = key_variable
        self.impatient = impatient
        self.options = options

    def cloud(self, warm: WarmPython) -> Cloud:
        module, _, name = self.stand_in.partition(":")
        found: Cloud = getattr(importlib.import_module(module, __package__), name)(warm)
        return found

    def provider(self, **options: Any) -> Any:
        rate = StartRate(pause_s=0.01, longest_pause_s=0.02)
        given = {"image": "python:3.12", "glance_s": 0.1, "start_rate": rate, **self.options, **options}
        return getattr(importlib.import_module("openenv.providers"), self.provider_name)(**given)


SERVICES = {
    "daytona": Service(
        "daytona",
        ".daytona:Daytona",
        "DaytonaProvider",
        "POST /sandbox",
        "DAYTONA_API_KEY",
        {"create_timeout": 2.0},
    ),
    "e2b": Service(
        "e2b",
        ".e2b:E2B",
        "E2BProvider",
        "POST /v2/sandboxes",
        "E2B_API_KEY",
        {"request_timeout_s": 2.0},
        surface_server_logs=True,
    ),
    "novita": Service(
        "novita_sandbox",
        ".e2b:Novita",
        "NovitaSandboxProvider",
        "POST /sandboxes",
        "NOVITA_API_KEY",
        {"request_timeout_s": 2.0},
        image="template:base",
        surface_server_logs=True,
    ),
    "modal": Service(
        "modal",
        ".modal_api:Modal",
        "ModalProvider",
        "POST /SandboxCreateV2",
        "MODAL_TOKEN_ID",
        {"create_timeout": 2.0},
        surface_server_logs=True,
    ),
    "azure": Service(
        "azure.containerapps.sandbox",
        ".azure_api:Azure",
        "ACASandboxProvider",
        "PUT /subscriptions/subscription/resourceGroups/resources/sandboxGroups/boxes/sandboxes",
        "AZURE_SUBSCRIPTION_ID",
        {"create_timeout": 2},
        image="disk:python",
        anonymous_port=True,
        polling_interval=0.05,
        surface_server_logs=True,
    ),
}


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmPython]:
    with WarmPython("openenv.cli", "openenv.server.app", "openenv.testing.misbehaving") as python:
        yield python


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> Service:
    found = SERVICES[request.param]
    pytest.importorskip(found.sdk, reason="make test-clouds installs it")
    return found


@pytest.fixture
def cloud(service: Service, warm: WarmPython, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    stand_in = service.cloud(warm)
    for name, value in stand_in.settings().items():
        monkeypatch.setenv(name, value)
    service.options |= stand_in.options()
    yield stand_in
    stand_in.close()


def serving(behaviour: str = "serve", **others: Any) -> LaunchSpec:
    forked = {
        "serve": ["openenv.cli:main", "serve", "openenv.testing.misbehaving:Mortal"],
        "die-on-step": ["openenv.cli:main", "serve", "openenv.testing.misbehaving:Mortal"],
    }
    return LaunchSpec(
        command=["warm-python", *forked.get(behaviour, ["openenv.testing.misbehaving:main", behaviour])], **others
    )


class CloudConformance(ProviderConformance):
    """The checks of every provider, and that a dead owner's sandboxes would be found."""

    ready_s: ClassVar[float] = 60.0
    soon_s: ClassVar[float] = 30.0

    def __init__(self, service: Service):
        self._service = service

    def provider(self) -> Provider:
        made: Provider = self._service.provider()
        return made

    def spec(self, behaviour: str) -> LaunchSpec:
        return serving(behaviour)

    def test_what_runs_is_found_by_its_labels(self) -> None:
        async def found(suite: Any, provider: Provider) -> None:
            deployment = await provider.launch(serving("hang"))
            left = [each.deployment for each in await provider.leftovers()]
            check(deployment.name in left, f"leftovers() does not list a running deployment, but {left}")

        asyncio.run(self.conduct(found))


TESTS = [name for name in dir(CloudConformance) if name.startswith("test_")]


@pytest.mark.slow
@pytest.mark.parametrize("test", TESTS)
def test_conformance(service: Service, cloud: Cloud, test: str) -> None:
    getattr(CloudConformance(service), test)()
    assert cloud.alive == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deviation", "test", "found"),
    [
        ("keeps", "test_stopping_while_it_starts", "left of openenv-server"),
        ("forgets", "test_what_runs_is_found_by_its_labels", "does not list a running deployment"),
        ("hurries", "test_a_server_starts_and_becomes_ready_and_steps", "is booting"),
        ("misleads", "test_two_at_once_do_not_meet", "key"),
    ],
)
def test_what_a_cloud_does_wrong_is_found(
    service: Service, cloud: Cloud, deviation: str, test: str, found: str
) -> None:
    cloud.deviations.add(deviation)
    with pytest.raises((AssertionError, OpenEnvError), match=found):
        getattr(CloudConformance(service), test)()


def failure_of(service: Service, **options: Any) -> OpenEnvError:
    """The error of a start."""
    with pytest.raises(OpenEnvError) as caught:
        asyncio.run(service.provider(**options).launch(serving("hang")))
    text = "".join(traceback.format_exception(caught.value))
    assert KEY not in text
    return caught.value


def test_a_used_up_quota_is_said_with_what_to_do(service: Service, cloud: Cloud) -> None:
    cloud.faults.append(Fault(service.create, 9, 403, message="Total CPU quota exceeded"))
    error = failure_of(service)
    assert (type(error), error.data["cause"]) == (LaunchFailed, "quota")
    assert "openenv providers gc" in error.message
    assert cloud.count(service.create) == 1


def test_a_rate_limit_is_waited_out(service: Service, cloud: Cloud) -> None:
    cloud.faults.append(Fault(service.create, 2, 429, {"Retry-After": "0"}))
    provider = service.provider()
    with provider.deployment(serving("hang")) as deployment:
        asyncio.run(deployment.start())
        assert len(cloud.alive) == 1
    assert cloud.alive == []


def test_a_rate_limit_that_lasts_is_said(service: Service, cloud: Cloud) -> None:
    cloud.faults.append(Fault(service.create, 99, 429, {"Retry-After": "0"}))
    error = failure_of(service)
    assert type(error) is ProviderBusy
    assert cloud.alive == []


def test_an_expired_key_is_said_with_its_setting(service: Service, cloud: Cloud) -> None:
    cloud.key = "another-key"
    error = failure_of(service)
    assert (type(error), error.data["cause"]) == (LaunchFailed, "key")
    assert service.key_variable in error.message


def test_no_key_is_no_place(service: Service, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(service.key_variable)
    with pytest.raises((ProviderFailed, UsageError), match=service.key_variable):
        service.provider()


def test_a_sandbox_that_does_not_boot_is_said_and_removed(service: Service, cloud: Cloud) -> None:
    cloud.boots = False
    error = failure_of(service, **service.impatient)
    assert (type(error), error.data.get("cause")) == (LaunchFailed, "slow boot")
    assert next(iter(service.impatient)) in error.message
    assert cloud.alive == []


def test_a_sandbox_that_vanishes_is_said_to_be_gone(service: Service, cloud: Cloud) -> None:
    with service.provider().deployment(serving("hang")) as deployment:
        asyncio.run(deployment.start())
        (box,) = cloud.alive
        cloud.delete(box)
        with pytest.raises(LaunchFailed, match="DELETED"):
            deployment.wait(deployment.ready(60))
        assert httpx.get(f"{deployment.servers[0].url}/health").status_code == 401


def test_a_start_whose_answer_is_lost_leaves_nothing(service: Service, cloud: Cloud) -> None:
    cloud.faults.append(Fault(service.create, 9, 500, after=True))
    failure_of(service)
    assert len(cloud.boxes) >= 1
    assert cloud.alive == []


def test_an_image_that_does_not_say_how_it_starts_is_refused(service: Service, cloud: Cloud) -> None:
    with pytest.raises(LaunchFailed, match=r"pass cmd="):
        service.provider().start_container(service.options.get("image", "some-image"))
    assert cloud.alive == []


@pytest.mark.slow
def test_the_names_that_existing_code_calls_work(service: Service, cloud: Cloud) -> None:
    with service.provider(cmd=shlex.join(serving().command or [])) as provider:
        url = provider.start_container(env_vars={"A": "1"})
        provider.wait_for_ready(url, 60)
        assert provider.base_url == url
        with GenericEnvClient(url, api_key=provider.api_key).sync() as env:
            env.reset()
        (box,) = cloud.alive
        assert box.machine.variables["A"] == "1"
    assert cloud.alive == []
