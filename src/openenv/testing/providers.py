"""`ProviderConformance`: tests that the author of a provider inherits."""

from __future__ import annotations

import asyncio
import secrets
import sys
import threading
import time
import traceback
import unittest
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from ..client import GenericEnvClient
from ..errors import LaunchFailed, NotReady, OpenEnvError, ProviderFailed
from ..providers.base import Provider
from ..providers.deployment import Deployment, Server
from ..providers.owner import OwnerProcess
from ..providers.spec import LaunchSpec
from .misbehaving import DIE, LAST_WORDS

GLANCE_S = 0.05


def check(holds: bool, otherwise: str) -> None:
    # Not `assert`: the message must also appear where pytest does not rewrite assertions.
    if not holds:
        raise AssertionError(otherwise)


@contextmanager
def raises(kind: type[BaseException], when: str) -> Iterator[list[BaseException]]:
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    else:
        raise AssertionError(f"no {kind.__name__} was raised {when}")


async def until(holds: Callable[[], Awaitable[object]], limit_s: float, otherwise: str) -> None:
    limit = time.monotonic() + limit_s
    while not await holds():
        check(time.monotonic() < limit, f"{otherwise} within {limit_s:g} s")
        await asyncio.sleep(GLANCE_S)


class CommandLines:
    """Searches the command lines of this machine, which all users can read, for secrets."""

    def __init__(self, secrets: list[str]):
        self._secrets = secrets
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="openenv-command-lines", daemon=True)
        self.found: set[str] = set()

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(GLANCE_S):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):  # the process has ended
                    line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if any(each in line for each in self._secrets):
                        self.found.add(line)


def _conducted(test: Callable[[Any, Provider], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
    """A test method for test runners, which gets its provider from `ProviderConformance.conduct`."""

    def conducted(self: ProviderConformance) -> None:
        asyncio.run(self.conduct(test))

    conducted.__name__, conducted.__qualname__ = test.__name__, test.__qualname__
    return conducted


class ProviderConformance:
    """Tests of a provider. Inherit from it in a module of tests, where pytest finds them; no plugin is needed.

    Example::

        class TestMyProvider(ProviderConformance):
            def provider(self) -> Provider:
                return MyProvider()

    Attributes:
        ready_s: Seconds until a server of `spec("serve")` must be ready.
        soon_s: Seconds within which the end of a server must raise an error; less than `ready_s`.
        hang_s: Timeout in seconds for a server that hangs.
        logs: Whether the place keeps the log of a server that has ended.
        restarts: Whether the place restarts a server that has ended.
        chooses: Whether the place chooses which servers `scale` stops, instead of the newest ones.
        moments: Seconds after the beginning of a start at which it is cancelled or stopped, in turn.
    """

    ready_s: ClassVar[float] = 60.0
    soon_s: ClassVar[float] = 20.0
    hang_s: ClassVar[float] = 2.0
    logs: ClassVar[bool] = True
    restarts: ClassVar[bool] = False
    chooses: ClassVar[bool] = False
    moments: ClassVar[tuple[float, ...]] = (0.0, 0.3)

    # Attributes for subclasses.

    def provider(self) -> Provider:
        """A new provider for one test. If it has `close()`, that is called after the test."""
        raise NotImplementedError("implement provider(): return the provider to test")

    def spec(self, behaviour: str) -> LaunchSpec:
        """The specification of a server with a behaviour of `openenv.testing.misbehaving`.

        Args:
            behaviour: serve, crash, hang or die-on-step.
        """
        return LaunchSpec(command=[sys.executable, "-m", "openenv.testing.misbehaving", behaviour])

    async def reachable(self, deployment: Deployment, server: Server) -> str:
        """The address at which this test reaches a server, if it differs from the server's `url`."""
        assert server.url is not None
        return server.url

    async def look_for_remains(self, provider: Provider, deployment: Deployment) -> list[str]:
        """The remains of a stopped deployment, in addition to those that `leftovers` lists."""
        return []

    # The tests.

    @_conducted
    async def test_a_server_starts_and_becomes_ready_and_steps(self, provider: Provider) -> None:
        deployment = await self._ready(provider)
        check(deployment.api_key is not None, "a deployment must have its own key")
        check(len(deployment.urls) == 1, f"one server was requested, but there are {deployment.urls}")
        await self._play(deployment, deployment.servers[0])
        await deployment.refresh()
        check(deployment.servers[0].gone is None, "refresh() says that a working server is gone")
        await deployment.stop()

    @_conducted
    async def test_who_has_no_key_is_refused(self, provider: Provider) -> None:
        deployment = await self._ready(provider)
        address = await self.reachable(deployment, deployment.servers[0])
        with raises(OpenEnvError, "with a wrong key"):
            async with GenericEnvClient(address, api_key="another-key-than-that-one") as env:
                await env.reset()

    @_conducted
    async def test_the_log_is_read_without_secrets(self, provider: Provider) -> None:
        if not self.logs:
            raise unittest.SkipTest("this place keeps no logs")
        deployment = await self._ready(provider)
        await until(deployment.logs, self.soon_s, "the log stays empty")
        log = await deployment.logs()
        for secret in deployment.secrets:
            check(secret not in log, "a secret is in the log")
        check(len((await deployment.logs(lines=1)).splitlines()) <= 1, "logs(lines=1) gives more than one line")

    @_conducted
    async def test_two_at_once_do_not_meet(self, provider: Provider) -> None:
        first, second = await asyncio.gather(self._ready(provider), self._ready(provider))
        check(first.url != second.url, f"both are at {first.url}")
        check(first.api_key != second.api_key, "both have the same key")
        await asyncio.gather(*(self._play(each, each.servers[0]) for each in (first, second)))
        await first.stop()
        await self._play(second, second.servers[0])

    @_conducted
    async def test_replicas_are_added_and_taken_away(self, provider: Provider) -> None:
        if not provider.capabilities.replicas:
            raise unittest.SkipTest("this place has one server per deployment")
        deployment = await self._ready(provider, self.spec("serve").changed(replicas=2))
        await self._play_at_all(deployment, 2)
        await deployment.scale(3)
        await deployment.ready(self.ready_s)
        await self._play_at_all(deployment, 3)
        before, kept = deployment.urls, deployment.servers[0].url
        await deployment.scale(1)
        if self.chooses:
            check(set(deployment.urls) < set(before), f"of {before}, there are now {deployment.urls}")
        else:
            check(
                deployment.urls == [kept],
                f"the oldest server, at {kept}, must stay; there are {deployment.urls}",
            )
        await self._play_at_all(deployment, 1)

    @_conducted
    async def test_one_that_crashes_before_it_is_ready_ends_the_wait_at_once(self, provider: Provider) -> None:
        began = time.monotonic()
        spec = _with(self.spec("crash"), CONFORMANCE_TOKEN=secrets.token_urlsafe(24))
        with raises(LaunchFailed, "when the server crashed") as caught:
            deployment = await provider.launch(spec)
            await deployment.ready(10 * self.soon_s)
        took = time.monotonic() - began
        check(took < self.soon_s, f"it took {took:.1f} s to notice that the server has crashed")
        text = "".join(traceback.format_exception(caught[0]))
        check(not isinstance(caught[0], NotReady), f"the wait for a crashed server did not end: {text}")
        check(not self.logs or LAST_WORDS in text, f"the end of the server's log is not in the error: {text}")
        check(spec.env_vars["CONFORMANCE_TOKEN"] not in text, "a secret is in the error")

    @_conducted
    async def test_one_that_crashes_while_it_steps_ends_the_session_and_is_seen_to_be_gone(
        self, provider: Provider
    ) -> None:
        # Time limit of a client that waits for its lost server.
        patience = {"OPENENV_RESUME_WINDOW_S": f"{self.hang_s:g}"}
        deployment = await self._ready(provider, _with(self.spec("die-on-step"), **patience))
        server = deployment.servers[0]
        async with self._client(deployment, await self.reachable(deployment, server)) as env:
            await env.reset()
            began = time.monotonic()
            with raises(OpenEnvError, "from the step that ended the server"):
                await env.step({"message": DIE})
            took = time.monotonic() - began
            check(took < self.hang_s + self.soon_s, f"the client waited {took:.1f} s for a dead server")
        if self.restarts:
            # The place restarts the server, and `refresh` finds it.

            async def played() -> bool:
                await deployment.refresh()
                try:
                    await deployment.ready(self.hang_s)
                    await self._play(deployment, deployment.servers[0])
                except OpenEnvError:
                    return False
                return True

            await until(played, self.ready_s, "the dead server was not replaced")
        else:

            async def is_gone() -> bool:
                await deployment.refresh()
                return server.gone is not None

            await until(is_gone, self.soon_s, "refresh() does not notice the end")
            check(deployment.urls == [], f"`urls` still has a dead server: {deployment.urls}")

    @_conducted
    async def test_one_that_hangs_is_not_ready_in_time(self, provider: Provider) -> None:
        deployment = await provider.launch(self.spec("hang"))
        began = time.monotonic()
        with raises(NotReady, "for a server that never answers"):
            await deployment.ready(self.hang_s)
        took = time.monotonic() - began
        check(took < self.hang_s + self.soon_s, f"ready({self.hang_s}) took {took:.1f} s")

    @_conducted
    async def test_stopping_twice_is_stopping_once(self, provider: Provider) -> None:
        deployment = await self._ready(provider)
        await asyncio.gather(deployment.stop(), deployment.stop())
        await deployment.stop()
        with raises(ProviderFailed, "for the address of a stopped deployment"):
            _ = deployment.url

    @_conducted
    async def test_stopping_while_it_starts(self, provider: Provider) -> None:
        for moment in self.moments:
            deployment, starting = await self._begun(provider, moment)
            await deployment.stop()
            try:
                await starting
            except ProviderFailed:
                continue
            check(not deployment.urls, "the start has continued after the stop")

    @_conducted
    async def test_cancelling_while_it_starts(self, provider: Provider) -> None:
        for moment in self.moments:
            deployment, starting = await self._begun(provider, moment)
            starting.cancel()
            await asyncio.wait([starting])
            if not starting.cancelled():
                starting.result()
                await deployment.stop()  # it had started before

    @_conducted
    async def test_stopping_from_another_event_loop_and_another_thread(self, provider: Provider) -> None:
        first, second = await asyncio.gather(self._ready(provider), self._ready(provider))
        await asyncio.to_thread(lambda: asyncio.run(first.stop()))
        await asyncio.to_thread(lambda: second.wait(second.stop()))
        check(not first.urls and not second.urls, "a stopped deployment still has addresses")

    @_conducted
    async def test_no_secret_stands_on_a_command_line(self, provider: Provider) -> None:
        spec = _with(self.spec("serve"), CONFORMANCE_TOKEN=secrets.token_urlsafe(24))
        spec = spec.changed(api_key=secrets.token_urlsafe(24))
        assert spec.api_key is not None
        with CommandLines([spec.api_key, spec.env_vars["CONFORMANCE_TOKEN"]]) as lines:
            deployment = await self._ready(provider, spec)
            await deployment.logs()
            await deployment.refresh()
            await deployment.stop()
        check(not lines.found, f"a secret is on a command line: {lines.found}")

    # Helpers of the tests.

    async def conduct(self, test: Callable[[Any, Provider], Coroutine[Any, Any, None]]) -> None:
        """Runs a test with a provider, removes its deployments, and checks that none is left."""
        provider = await asyncio.to_thread(self.provider)
        made: list[Deployment] = []
        make = provider.deployment

        def remembered(spec: LaunchSpec) -> Deployment:
            made.append(make(spec))
            return made[-1]

        vars(provider)["deployment"] = remembered  # only of this provider
        try:
            try:
                async with asyncio.timeout(10 * self.ready_s):
                    await test(self, provider)
            finally:
                addresses = {url: each for each in made for url in each.urls}
                for each in made:
                    await each.stop()
            this = OwnerProcess.this()
            for each in made:
                check(each.servers == [], f"stopped servers are still listed: {each.servers}")
                left = [found for found in await provider.leftovers() if found.deployment == each.name]
                check(all(found.owner == this for found in left), f"the owner of {left} is not this process")
                check(not left, f"left of {each.name}: {left}")
                remains = await self.look_for_remains(provider, each)
                check(not remains, f"left of {each.name}: {remains}")
            for address, each in addresses.items():
                with raises(OpenEnvError, "at the address of a server that was stopped"):
                    async with self._client(each, address, connect_timeout_s=self.hang_s) as env:
                        await env.reset()
        finally:
            close = getattr(provider, "close", None)
            if close is not None:
                await asyncio.to_thread(close)

    async def _ready(self, provider: Provider, spec: LaunchSpec | None = None) -> Deployment:
        deployment = await provider.launch(spec or self.spec("serve"))
        return await deployment.ready(self.ready_s)

    def _client(self, deployment: Deployment, address: str, **options: Any) -> GenericEnvClient:
        return GenericEnvClient(address, api_key=deployment.api_key, **options)

    async def _play(self, deployment: Deployment, server: Server) -> None:
        async with self._client(deployment, await self.reachable(deployment, server)) as env:
            await env.reset()
            said = (await env.step({"message": server.name})).observation
            check(said["message"] == server.name, f"the server answers a step with {said}")

    async def _play_at_all(self, deployment: Deployment, count: int) -> None:
        servers = deployment.servers
        check(len(servers) == count, f"{count} servers were requested, but there are {servers}")
        check(len(set(deployment.urls)) == count, f"their addresses are {deployment.urls}")
        await asyncio.gather(*(self._play(deployment, server) for server in servers))

    async def _begun(self, provider: Provider, moment: float) -> tuple[Deployment, asyncio.Future[Any]]:
        """A deployment some seconds after the beginning of its start, and the running start."""
        deployment = provider.deployment(self.spec("serve"))
        starting = asyncio.ensure_future(deployment.start())

        async def counted() -> bool:
            return bool(deployment.servers) or starting.done()

        await until(counted, self.soon_s, "the start does not begin")
        await asyncio.wait([starting], timeout=moment)
        return deployment, starting


def _with(spec: LaunchSpec, **variables: str) -> LaunchSpec:
    return spec.changed(env_vars={**spec.env_vars, **variables})
