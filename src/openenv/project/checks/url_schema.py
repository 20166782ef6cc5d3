"""Validate foreign JSON Schemas, validate values against them, and generate actions from them."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ...errors import MissingExtra
from ...testing.check import CheckFailure, CheckSkip, CheckWarning
from ...testing.schemas import NoValue, SchemaValues, first_fault
from .url_server import excerpt

T = TypeVar("T")
# Lengths from which on no value is made up.
LONG = 10_000
_LENGTHS = ("minItems", "minLength", "minProperties")


def check_schema(name: str, schema: Any, seconds: float) -> None:
    """Raises `CheckFailure` unless it is a JSON Schema of objects."""
    if not isinstance(schema, dict):
        raise CheckFailure(f"{name} is {excerpt(repr(schema))}", f"answer /schema with the JSON Schema of {name}")
    if schema.get("type", "object") != "object":
        raise CheckFailure(
            f"{name} is of type {excerpt(schema['type'])}", "actions, observations and states are objects"
        )
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ModuleNotFoundError:
        raise MissingExtra("jsonschema", "core") from None
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)

    def look() -> None:
        try:
            kind.check_schema(schema)
        except jsonschema.SchemaError as error:
            place = "/".join(map(str, error.absolute_path)) or "its root"
            raise CheckFailure(
                f"{name} is no JSON Schema: {excerpt(error.message)}, at {excerpt(place)}", "correct it"
            ) from None
        for part in _parts(schema):
            reference = part.get("$ref")
            if isinstance(reference, str):
                start, _, path = reference.partition("#")
                target: Any = schema
                for step in filter(None, path.split("/")):
                    key = step.replace("~1", "/").replace("~0", "~")
                    target = target.get(key) if isinstance(target, dict) else None
                if start or not isinstance(target, (dict, bool)):
                    raise CheckFailure(
                        f"{name}: $ref {excerpt(reference)} leads to nothing", "put what it means under $defs"
                    )

    _within(seconds, look, name)


def check_value(name: str, value: Any, schema: Any, seconds: float) -> None:
    """Raises `CheckFailure` unless a value is of its schema, `CheckWarning` if only required fields of it are
    absent. Regular expressions are left out: some take years to match, and nothing else can run meanwhile.
    """
    plain = _without_patterns(schema)
    lenient = {keyword: part for keyword, part in plain.items() if keyword != "required"}
    fix = "declare what is sent in the class, or send what it declares"
    fault = _within(seconds, lambda: first_fault(value, lenient, name), name)
    if fault is not None:
        raise CheckFailure(excerpt(fault), fix)
    absent = _within(seconds, lambda: first_fault(value, plain, name), name)
    if absent is not None:
        raise CheckWarning(excerpt(absent), fix)


def action_of(schema: Any, seconds: float) -> Any:
    """An invented action; raises `CheckSkip` if the schema allows none."""
    if any(
        isinstance(part.get(name), (int, float)) and part[name] > LONG for part in _parts(schema) for name in _LENGTHS
    ):
        raise CheckSkip(f"its schema asks for more than {LONG:,} of something")
    try:
        plain = _without_patterns(schema)
        # Optional properties are left out: less can be wrong.
        optional = frozenset(schema.get("properties", ())) - frozenset(schema.get("required", ()))
        return _within(seconds, SchemaValues(plain, skipped=optional).value, "the action")
    except NoValue as error:
        raise CheckSkip(f"no action can be made from its schema: {excerpt(error)}") from None


def _within(seconds: float, look: Callable[[], T], name: str) -> T:
    """The result of a check of a schema; gives up after a time: the work for a schema can double with each line."""
    made: list[T] = []
    raised: list[Exception] = []

    def run() -> None:
        try:
            made.append(look())
        except (CheckFailure, NoValue) as error:
            raised.append(error)
        except RecursionError:
            raised.append(CheckFailure(f"the schema of {name} has no end", "let each $ref lead to something smaller"))
        except Exception as error:  # noqa: BLE001 - of a library, on a schema that was written to break it
            raised.append(CheckSkip(f"the schema of {name} cannot be worked with: {excerpt(repr(error))}"))

    thread = threading.Thread(target=run, daemon=True, name="openenv-schema")
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not made:
        raise CheckFailure(f"the schema of {name} takes more than {seconds:g} s to work with", "write a simpler one")
    return made[0]


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all that is in it."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _without_patterns(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_patterns(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: _without_patterns(each) for name, each in value.items()}
    # Properties may be called like keywords: theirs are no texts.
    if isinstance(value.get("pattern"), str):
        del kept["pattern"]
    if isinstance(value.get("patternProperties"), dict) and "type" in value:
        del kept["patternProperties"]
        kept.pop("additionalProperties", None)
    return kept
