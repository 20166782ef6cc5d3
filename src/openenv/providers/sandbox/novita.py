"""Run servers in sandboxes of Novita (`NovitaSandboxProvider`), whose SDK is a fork of that of E2B."""

from __future__ import annotations

from typing import Any

from .e2b import SLEEP, SLEEP_READY_MS, TEMPLATE, E2BProvider, E2BSandboxes


class NovitaSandboxes(E2BSandboxes):
    """One account at Novita. Arguments and errors: see `E2BSandboxes`."""

    name = "Novita"
    sdk_name = "novita_sandbox"
    extra = "novita"
    prefix = "NOVITA"
    key_setting = "api_key (NOVITA_API_KEY), which https://novita.ai/dashboard shows"

    def origin(self, image: str) -> tuple[dict[str, Any], str | None]:
        if image.startswith(TEMPLATE):
            return super().origin(image)
        ready = self._sdk.wait_for_timeout(SLEEP_READY_MS).get_cmd()
        # A template that Novita makes of an image loses the image's user.
        return {"image": image, "build": {"cmd": SLEEP, "ready_cmd": ready, "build_logs": False}}, "root"


class NovitaSandboxProvider(E2BProvider):
    """Runs servers in sandboxes of Novita.

    Example::

        async with await NovitaSandboxProvider(image="my-org/env:latest").launch(LaunchSpec(target="echo")) as found:
            await found.ready()

    Its arguments are those of `E2BProvider`, with these differences:

    - `image` is the name of an image, `template:NAME`, or what `image_from_dockerfile` returned.
    - `api_key` and `domain` are those of Novita; None takes `NOVITA_API_KEY` and `NOVITA_DOMAIN`.
    """

    account = NovitaSandboxes
