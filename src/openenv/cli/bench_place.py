"""Where servers are launched for a measurement: the options of `openenv bench scale` that say so."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from ..providers.catalog import CATALOG
from ..providers.secrecy import secrets_of

if TYPE_CHECKING:
    from ..bench.launched import Launching

__all__ = ["Place", "options", "pairs"]

_COUNT = click.IntRange(min=1)
_OPTIONS = (
    click.option("--provider", type=click.Choice(list(CATALOG)), help="Launch servers there for the measurement."),
    click.option("--image", help="Image of the servers, with --provider."),
    click.option("--target", help="What the servers serve, as for `openenv serve`, with --provider."),
    click.option("--replicas", type=_COUNT, help="How many servers, with --provider.  [default: 1]"),
    click.option(
        "--gateway",
        type=click.Choice(["none", "envoy"]),
        help="What spreads sessions over the servers: the load itself (none), or Envoy.  [default: none]",
    ),
    click.option("--cpus", type=click.FloatRange(min=0, min_open=True), help="Processors of each server."),
    click.option("--memory", help="Memory of each server, as 512m."),
    click.option(
        "--option", "given", multiple=True, metavar="NAME=VALUE", help="An option of the place, as its page says."
    ),
    click.option("--provider-option", multiple=True, metavar="NAME=VALUE", help="An argument of the provider."),
)


@dataclass(frozen=True, slots=True)
class Place:
    """What was typed."""

    provider: str | None
    image: str | None
    target: str | None
    replicas: int | None
    gateway: str | None
    cpus: float | None
    memory: str | None
    given: Sequence[str]
    provider_option: Sequence[str]

    def launching(self, url: str | None, serve: str | None, workers: int, sessions: int) -> Launching | None:
        """What is to be launched; None: nothing, since there is a `--url` or something to serve.

        Raises:
            UsageError: It is not said what shall be measured, or more than once.
        """
        if sum(each is not None for each in (url, serve, self.provider)) != 1:
            raise UsageError(
                "what shall be measured? give either --url of a running server, or --serve TARGET, or --provider"
            )
        if self.provider is None:
            self._check_alone()
            return None
        from ..bench.launched import Launching
        from ..providers.local import variables_of
        from ..providers.spec import LaunchSpec, Resources

        if (self.image is None) == (self.target is None):
            raise UsageError("what shall be served? give one of --image and --target (as `--target benchmark`)")
        variables = variables_of({"max_sessions": sessions, "workers": workers})
        spec = LaunchSpec(
            image=self.image,
            target=self.target,
            replicas=self.replicas or 1,
            resources=Resources(cpus=self.cpus, memory=self.memory),
            env_vars=variables,
            name="bench",
            options=pairs(self.given, "--option"),
        )
        return Launching(
            provider=self.provider,
            provider_options=pairs(self.provider_option, "--provider-option"),
            spec=spec,
            gateway=self.gateway or "none",
            sessions=sessions,
        )

    def _check_alone(self) -> None:
        for name in ("image", "target", "replicas", "gateway", "cpus", "memory", "given", "provider_option"):
            if getattr(self, name):
                raise UsageError(f"--{name.replace('given', 'option').replace('_', '-')} needs --provider")


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options to a command, which gets them as its argument `place`."""

    @functools.wraps(command)
    def wrapped(**values: Any) -> None:
        place = Place(**{name: values.pop(name) for name in Place.__dataclass_fields__})
        command(place=place, **values)

    decorated: Callable[..., None] = wrapped
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def pairs(texts: Sequence[str], option: str) -> dict[str, Any]:
    """`NAME=VALUE`, the value as YAML has it: numbers, lists, true and false are such."""
    import yaml

    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{option} is {text!r}: write NAME=VALUE")
        if secrets_of({name: value}):
            raise UsageError(
                f"{option} {name}: everybody can read a command line, and results repeat it: set a variable "
                "in its place (HF_TOKEN, KUBECONFIG)"
            )
        try:
            found[name.replace("-", "_")] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"{option} {name}: {error}") from None
    return found
