"""The conformance suite, with the providers of this machine; and that it finds faults."""

from __future__ import annotations

import shutil
import sys
import unittest
from collections.abc import Callable
from pathlib import Path

import pytest

from openenv.providers import Deployment, LaunchSpec, LocalProvider, Provider, Server, UVProvider
from openenv.providers.process import Process
from openenv.testing import ProviderConformance

pytestmark = [pytest.mark.real, pytest.mark.slow]


class TestLocalProvider(ProviderConformance):
    def provider(self) -> Provider:
        return LocalProvider()


class TestLocalProviderWithItsOwnServer(TestLocalProvider):
    """What says itself where it listens."""

    def spec(self, behaviour: str) -> LaunchSpec:
        if behaviour in {"serve", "die-on-step"}:
            return LaunchSpec(target="openenv.testing.misbehaving:Mortal")
        return super().spec(behaviour)


@pytest.mark.skipif(
    shutil.which("uv") is None and not (Path(sys.executable).parent / "uv").exists(), reason="uv is not installed"
)
class TestUVProvider(ProviderConformance):
    @pytest.fixture(autouse=True)
    def project(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n', encoding="utf-8")
        (tmp_path / "serve.py").write_text(APP, encoding="utf-8")
        (tmp_path / "crash.py").write_text(CRASH, encoding="utf-8")

    def provider(self) -> Provider:
        # With the packages of this Python, and without a network.
        offline = {"UV_PROJECT_ENVIRONMENT": sys.prefix, "UV_OFFLINE": "1", "UV_NO_SYNC": "1"}
        return UVProvider(env_vars=offline)

    def spec(self, behaviour: str) -> LaunchSpec:
        if behaviour == "hang":  # it listens, which uvicorn says before it does not answer
            return super().spec(behaviour)
        module = "crash" if behaviour == "crash" else "serve"
        return LaunchSpec(project=self.folder, options={"app": f"{module}:app"})


APP = """
from openenv.server import create_app
from openenv.testing.misbehaving import Mortal, Said, Say
app = create_app(Mortal, Say, Said)
"""
CRASH = """
import os
for name, value in os.environ.items():
    print(name, value)
raise SystemExit("crashing on purpose")
"""


# Providers with faults.


class Forgetful(LocalProvider):
    """Leaves one process of each deployment."""

    async def start_server(self, deployment: Deployment, server: Server) -> None:
        await super().start_server(deployment, server)
        variables = {**deployment.variables, "OPENENV_PROVIDER": "Forgetful", "OPENENV_DEPLOYMENT": deployment.name}
        variables["OPENENV_OWNER"] = str(deployment.labels["openenv.owner"])
        left.append(Process([sys.executable, "-c", "import time; time.sleep(60)"], variables))


class Idle(LocalProvider):
    """Does not stop what it has started."""

    async def stop_server(self, server: Server) -> None:
        left.append(server.handle.process)


class Chatty(LocalProvider):
    """Puts the key on a command line."""

    def command(self, spec: LaunchSpec, port: int) -> list[str]:
        return [*super().command(spec, port), "--api-key", str(spec.api_key)]


class Blind(LocalProvider):
    """Never sees that a server has ended."""

    async def why_gone(self, server: Server) -> str | None:
        return None


class Open(LocalProvider):
    """Gives its servers no key."""

    def deployment(self, spec: LaunchSpec) -> Deployment:
        return super().deployment(spec.changed(api_key=""))


left: list[Process] = []


def found(provider: Callable[[], Provider], test: str) -> str:
    """What a test of the suite finds."""

    class Suite(ProviderConformance):
        hang_s = 0.3
        soon_s = 4.0

        def provider(self) -> Provider:
            return provider()

        def spec(self, behaviour: str) -> LaunchSpec:
            if behaviour == "serve":
                return LaunchSpec(target="openenv.testing.misbehaving:Mortal")
            return super().spec(behaviour)

    try:
        with pytest.raises((AssertionError, TimeoutError)) as caught:
            getattr(Suite(), f"test_{test}")()
    finally:
        while left:
            left.pop().stop()
    return str(caught.value)


def test_what_is_left_is_found() -> None:
    assert "left of openenv-" in found(Forgetful, "stopping_twice_is_stopping_once")


def test_a_server_that_is_not_stopped_is_found() -> None:
    assert "left of openenv-" in found(Idle, "a_server_starts_and_becomes_ready_and_steps")


def test_a_key_on_a_command_line_is_found() -> None:
    said = found(Chatty, "no_secret_stands_on_a_command_line")
    assert "a secret is on a command line" in said


def test_an_end_that_is_not_seen_is_found() -> None:
    said = found(Blind, "one_that_crashes_while_it_steps_ends_the_session_and_is_seen_to_be_gone")
    assert "refresh() does not notice the end within 4 s" in said


def test_a_server_that_is_open_to_all_is_found() -> None:
    assert "no OpenEnvError was raised with a wrong key" in found(Open, "who_has_no_key_is_refused")


def test_who_says_nothing_about_the_provider_is_told() -> None:
    with pytest.raises(NotImplementedError, match=r"provider\(\)"):
        ProviderConformance().test_stopping_twice_is_stopping_once()


def test_what_a_place_cannot_do_is_skipped() -> None:
    class Suite(TestLocalProvider):
        logs = False

    with pytest.raises(unittest.SkipTest, match="keeps no logs"):
        Suite().test_the_log_is_read_without_secrets()
