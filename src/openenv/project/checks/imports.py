"""Checks that import the modules of an environment and call nothing in it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ...client import EnvClient
from ...client.schema_check import declared_contract
from ...errors import OpenEnvError
from ...protocol.contract import first_misfit
from ...protocol.json_schema import schema_of
from ...testing.check import Check, CheckFailure, CheckSkip
from ...testing.harness import ConformanceHarness
from .. import target as targets
from ..manifest import Project
from ..target import import_module


@dataclass
class EnvironmentUnderTest:
    """What is under examination, in the process that runs its code.

    Attributes:
        target: As for `openenv serve`.
        folder: Of the project, if it is one.
        call_s: Seconds that one call may take.
        sessions: How many sessions are used at once.
        episodes: How many are played to see whether memory grows.
    """

    target: str
    folder: Path | None
    call_s: float
    sessions: int
    episodes: int
    app: Any = field(default=None, init=False)

    def load(self) -> None:
        """Makes the app. Raises as `openenv.project.target.load`."""
        if self.app is None:
            self.app = targets.load(self.target)

    @cached_property
    def harness(self) -> ConformanceHarness:
        """Where it plays. Raises CheckSkip."""
        return ConformanceHarness(self.app, call_s=self.call_s, sessions=self.sessions, episodes=self.episodes)

    @property
    def server(self) -> Any:
        """What serves it. Raises CheckSkip."""
        return self.harness.server


@Check.of("static.import", "Can the app be imported?")
def static_import(subject: EnvironmentUnderTest) -> str:
    try:
        subject.load()
    except OpenEnvError as error:
        raise CheckFailure(
            f"{' '.join(error.message.split())}.", "see the message; `openenv serve` says the same"
        ) from None
    except Exception as error:  # noqa: BLE001 - the edge to foreign code
        raise CheckFailure(f"making the app raised {type(error).__name__}: {error}.", "correct the module") from None
    return f"{type(subject.app).__name__} of {subject.target}"


@Check.of("static.models", "Have action, observation and state a JSON Schema?", "static.import")
def static_models(subject: EnvironmentUnderTest) -> str:
    server = subject.server
    opaque = []
    for name, kind in (
        ("action", server.action_cls),
        ("observation", server.observation_cls),
        ("state", server.state_cls),
    ):
        schema = schema_of(kind)
        if schema is None:
            reason = "it cannot be made"
            try:
                TypeAdapter(kind).json_schema()
            except Exception as error:  # noqa: BLE001 - foreign code: types bring their own schema functions
                reason = str(error).partition("\n")[0]
            raise CheckFailure(
                f"the {name} {_named(kind)} has no JSON Schema: {reason}.",
                "declare its fields with types that JSON has: numbers, texts, lists, dicts, models, enums",
            )
        parts = {"": schema, **{f"{part}.": each for part, each in schema.get("$defs", {}).items()}}
        opaque += [
            f"{name}.{prefix}{field}"
            for prefix, part in parts.items()
            for field, each in part.get("properties", {}).items()
            if "'$comment': 'opaque'" in repr(each)
        ]
    unmade = [place for place in opaque if place.startswith("action.")]
    if unmade:
        raise CheckFailure(
            f"{', '.join(unmade)} cannot be written as JSON: no client can send it.",
            "give it a type that JSON has; for arrays list[float], or a type with a validator of lists",
        )
    said = f"action {_named(server.action_cls)}, observation {_named(server.observation_cls)}"
    return f"{said}, state {_named(server.state_cls)}" + (f"; no schema: {', '.join(opaque)}" if opaque else "")


@Check.of("static.client", "Does the client in client.py fit the server?", "static.models")
def static_client(subject: EnvironmentUnderTest) -> str:
    folder = subject.folder
    if folder is None:
        raise CheckSkip("the target is no folder, so there is no client.py to look at")
    project = Project.find(folder)
    reference = project.manifest.client
    module = reference.partition(":")[0] if reference is not None and ":" in reference else "client"
    if not (folder / f"{module.replace('.', '/')}.py").is_file():
        raise CheckSkip(f"there is no {module}.py: clients use GenericEnvClient")
    names = [module]  # after those of the packages that it is in
    package = folder
    while (package / "__init__.py").is_file():
        names.insert(0, package.name)
        package = package.parent
    try:
        found = import_module(".".join(names), str(project.manifest.path))
    except OpenEnvError as error:
        raise CheckFailure(f"{' '.join(error.message.split())}.", f"correct {module}.py") from None
    classes = [each for each in vars(found).values() if inspect.isclass(each) and each.__module__ == found.__name__]
    clients = [each for each in classes if issubclass(each, EnvClient)]
    if not clients:
        said = f"{module}.py defines no subclass of EnvClient."
        raise CheckFailure(said, "write class MyEnv(EnvClient[MyAction, MyObservation, State])")
    for client in clients:
        misfit = first_misfit(declared_contract(client), subject.server.contract)
        if misfit is not None:
            raise CheckFailure(
                f"{client.__name__} does not fit the server: {misfit.sentence('in the client', 'on the server')}.",
                "take the models of both from the same module",
            )
    return f"{', '.join(client.__name__ for client in clients)}, whose types fit the server's"


def _named(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


CHECKS = (
    static_import,
    static_models,
    static_client,
)
