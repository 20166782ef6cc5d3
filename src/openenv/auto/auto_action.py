"""`AutoAction`: the action class of an environment by name."""

from __future__ import annotations

from typing import Any, Self

from ..client import GenericAction
from ..errors import OpenEnvError
from ..project.catalog import EnvironmentEntry
from .auto_env import class_of, entry_info, entry_of, print_entries


class AutoAction:
    """Finds the action class of an environment. Names are written as for `AutoEnv`::

        EchoAction = AutoAction.from_env("echo")

    Not to be instantiated: it only has class methods.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:  # NoReturn would hide the class methods from mypy
        raise TypeError("AutoAction has no instances: AutoAction.from_env('echo') gives an action class")

    @classmethod
    def from_env(cls, name: str, skip_install: bool = False, *, trust_remote_code: bool = False) -> type[Any]:
        """The action class of an environment.

        Args:
            name: Name of the environment or Space.
            skip_install: Search and install nothing; return `GenericAction`, which takes any fields.
            trust_remote_code: As for `AutoEnv.from_env`.

        Raises:
            UnknownEnvironment: No environment of that name is installed.
            UsageError: It has no action class, or several, and its `openenv.yaml` does not say which.
            ImportFailed: Its package cannot be imported.
        """
        return GenericAction if skip_install else class_of(entry_of(name, trust_remote_code), "action")

    @classmethod
    def from_hub(cls, env_name: str, skip_install: bool = False, *, trust_remote_code: bool = False) -> type[Any]:
        """Alias of `from_env`."""
        return cls.from_env(env_name, skip_install, trust_remote_code=trust_remote_code)

    @classmethod
    def get_action_info(cls, name: str) -> dict[str, Any]:
        """Facts about an environment's action: names, classes, fields. Raises as `from_env` does."""
        entry = entry_of(name)
        action = class_of(entry, "action")
        fields = {field: str(info.annotation) for field, info in getattr(action, "model_fields", {}).items()}
        return {**entry_info(entry), "module": action.__module__, "fields": fields}

    @classmethod
    def list_actions(cls) -> list[str]:
        """Prints the available environments with their action classes, and returns their names."""

        def action_of(entry: EnvironmentEntry) -> str:
            try:
                return class_of(entry, "action").__name__
            except OpenEnvError as error:
                return f"- ({error.message})"

        return print_entries("Actions:", action_of)
