"""One job on the Hub, from the request for it to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ...background import heard
from ...errors import LaunchFailed, NotReady, OpenEnvError, ProviderBusy, ProviderFailed
from ..secrecy import masked
from .hub import ENDED, Hub, check_encrypted, is_loopback, is_missing, may_have_begun

__all__ = ["SERVER", "Job"]

logger = logging.getLogger("openenv.providers.sandbox")
SERVER = "openenv-server"
"""Label of a job: which server it is. So it is found though nobody was told its id."""


class Job:
    """A job, as far as it is known.

    Args:
        hub: Where it runs.
        name: Of its server; nothing else there is called so.
        port: What it listens on.
        glance_s: Seconds for which it is not looked at again.
        secrets: What nothing may show that it says.

    Attributes:
        id: What the Hub calls it; None while there is none.
        stage: What the Hub said last: SCHEDULING, RUNNING, COMPLETED, CANCELED, ERROR or DELETED.
    """

    def __init__(self, hub: Hub, name: str, port: int, glance_s: float, secrets: list[str]):
        self.id: str | None = None
        self.stage = "REQUESTED"
        self._hub = hub
        self._name = name
        self._port = port
        self._glance_s = glance_s
        self._secrets = [hub.token, *secrets]
        self._message = ""
        self._url: str | None = None
        self._request: asyncio.Task[None] | None = None
        self._unwanted = False
        self._glance: asyncio.Task[None] | None = None
        self._seen_at = float("-inf")

    @property
    def gone(self) -> str | None:
        """Why it does not run any more, to go on with after "the server"; None while it does, or may come to."""
        if self.stage not in ENDED:
            return None
        return f"is gone: its job {self.id} is {self.stage}{f' ({self._message})' if self._message else ''}"

    @property
    def authorization(self) -> str:
        """What lets a request through to it."""
        return f"Bearer {self._hub.token}"

    async def begin(self, labels: Mapping[str, str], **wanted: Any) -> None:
        """Has it started; when this is cancelled, it may be started nevertheless, and `end` knows."""
        labels = {**labels, SERVER: self._name}
        self._request = asyncio.ensure_future(self._begin(labels=labels, expose=[self._port], **wanted))
        self._request.add_done_callback(heard)
        await asyncio.shield(self._request)

    async def _begin(self, **wanted: Any) -> None:
        self._learn(await self._hub.run(lambda: not self._unwanted, name=self._name, **wanted))

    async def look(self) -> None:
        """Learns what has become of it. A Hub that does not answer at the moment leaves it as it was known.

        Raises:
            LaunchFailed: The Hub refuses to tell.
        """
        fresh = asyncio.get_running_loop().time() < self._seen_at + self._glance_s
        if self.id is None or self.stage in ENDED or (fresh and self._glance is None):
            return
        if self._glance is None:
            self._glance = asyncio.ensure_future(self._look(self.id))
            self._glance.add_done_callback(self._looked)
        await asyncio.shield(self._glance)

    async def address(self) -> str:
        """Where its server is.

        Raises:
            NotReady: It does not run yet.
            ProviderFailed: It does not run any more, or must not be spoken to.
        """
        if self._url is None:
            await self.look()
        self.check()
        if self._url is None:
            raise NotReady(
                f"job {self.id} is {self.stage}: its server is not there yet", retry_after_s=self._glance_s
            )
        return self._url

    def check(self) -> None:
        """Raises `ProviderFailed` if it does not run any more."""
        if self.gone is not None:
            raise ProviderFailed(f"the sandbox {self.gone}", data={"job": self.id, "stage": self.stage})

    async def log(self, lines: int) -> str:
        """The end of its log; where there is none, in which stage it is."""
        if self.id is None:
            return ""
        told = await self._hub.tail(self.id, lines) or f"(job {self.id} is {self.stage}, and has no log)"
        return masked(told, self._secrets)

    async def end(self) -> None:
        """Has it cancelled, however far its start came. May be called repeatedly."""
        self._unwanted = True
        if self._request is None:
            return
        await asyncio.wait([self._request])
        if self.id is not None:
            if self.stage not in ENDED:
                await self._hub.cancel(self.id)
                self._tell("CANCELED", "cancelled by its owner")
            return
        failure = None if self._request.cancelled() else self._request.exception()
        if isinstance(failure, OpenEnvError) and may_have_begun(failure):
            for job in await self._hub.labelled({SERVER: self._name}):
                await self._hub.cancel(str(job.id))
        self._request = None

    def _looked(self, glance: asyncio.Task[None]) -> None:
        self._glance = None
        self._seen_at = glance.get_loop().time()
        heard(glance)

    async def _look(self, job_id: str) -> None:
        try:
            self._learn(await self._hub.inspect(job_id))
        except ProviderBusy as error:
            logger.warning("job %s: %s", job_id, error, extra=self._subject())
        except LaunchFailed as error:
            if not is_missing(error):
                raise
            self._tell("DELETED", "the Hub does not know it any more")

    def _learn(self, info: Any) -> None:
        self.id = str(info.id)
        stage = getattr(info.status.stage, "value", info.status.stage)
        if stage not in ENDED and self._url is None:
            self._url = self._reached_at(info.status.expose_urls or [])
        self._tell(str(stage), info.status.message or "")

    def _reached_at(self, urls: list[str]) -> str | None:
        """Its address, if it is one that a token may be sent to: nobody but the Hub and this job has that."""
        beginning = f"{self.id}--{self._port}."
        for url in urls:
            host = urlsplit(url).hostname or ""
            if host.startswith(beginning.lower()) or is_loopback(host):
                try:
                    check_encrypted(f"the address of job {self.id}", urlsplit(url), self._hub.insecure)
                except OpenEnvError as error:
                    raise LaunchFailed(str(error)) from None
                return url.rstrip("/")
        if urls:
            raise LaunchFailed(
                f"job {self.id} is at {', '.join(urls)}, which is not where a job's port {self._port} is"
            )
        return None

    def _tell(self, stage: str, message: str) -> None:
        if stage == self.stage:
            return
        before, self.stage, self._message = self.stage, stage, masked(message, self._secrets)
        text = "job %s: %s -> %s%s"
        told = f" ({self._message})" if self._message else ""
        logger.info(text, self.id, before, stage, told, extra=self._subject())

    def _subject(self) -> dict[str, Any]:
        return {"job": self.id, "stage": self.stage}
